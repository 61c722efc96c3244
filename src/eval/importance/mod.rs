//! Mean squares of the inputs of a model's linear layers on a text, per column: the contents of importance
//! matrices.
//!
//! It does not depend on backend internals: the input of a linear layer is read from the buffer before its
//! stage, and normalised here as the stage defines.

mod experts;

use experts::Mixtures;
use sterna_backend::{self as backend, Backend, Exec};
use sterna_engine::{self as engine, EngineOptions, Error};
use sterna_gguf::Gguf;
use sterna_model::Model;
use sterna_program::{Buf, Limits, Linear, Norm, NormKind, PageTable, Program, Row, Stage, Step, Weight};

/// Reason why inputs cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Engine(#[from] Error),
    /// An input that is NaN or infinite.
    #[error("{name}: input column {col} is {value}")]
    Value {
        /// The first weight that multiplies it.
        name: String,
        /// Column, from 0.
        col: usize,
        /// The value.
        value: f64,
    },
}

/// A model on the CPU backend that accumulates the inputs of its linear layers.
pub struct Importance {
    backend: Box<dyn Backend>,
    exec: Exec,
    program: Program,
    inputs: Vec<Inputs>,
    mixtures: Option<Mixtures>,
    n_rows: u64,
}

/// Inputs shared by several linear layers.
struct Inputs {
    /// The stage before which `buf` contains them.
    stage: usize,
    buf: Buf,
    /// Norms applied before the linear layers, in order.
    norms: Vec<Normalise>,
    /// GGUF names of the weights.
    names: Vec<String>,
    /// Sums of squares, `[cols]`.
    sums: Vec<f64>,
}

/// A norm with its decoded weights.
struct Normalise {
    kind: NormKind,
    eps: f64,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Importance {
    /// Prepares the model in `gguf` for texts of up to `n` tokens. Of the options, only threads and the
    /// quantisation of activations are used.
    ///
    /// # Errors
    /// As [`Engine::from_gguf`](sterna_engine::Engine::from_gguf).
    pub fn new(gguf: &Gguf, options: &EngineOptions, n: usize) -> Result<Self, ImportanceError> {
        let options = super::one_text(options, n);
        let model = engine::model(gguf, &options)?;
        let inputs = inputs(&model)?;
        let biases = experts::biases(&model)?;
        let Model { program, weights, .. } = model;
        let mut backend = backend::open("cpu", options.n_threads()).map_err(Error::from)?;
        engine::fits(&backend.plan(&program).map_err(Error::from)?, n)?;
        let ids = engine::upload(&mut *backend, weights, &program, options.n_threads(), |_| ())?;
        let exec = backend.compile(&program, &ids).map_err(Error::from)?;
        let mixtures = Mixtures::new(&program, &mut *backend, &ids, biases).map_err(Error::from)?;
        Ok(Self { backend, exec, program, inputs, mixtures, n_rows: 0 })
    }

    /// Runs a text from an empty context, and adds its inputs.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::ContextFull`], [`Error::Backend`]; [`ImportanceError::Value`].
    pub fn add(&mut self, tokens: &[u32]) -> Result<(), ImportanceError> {
        let Limits { rows: n_ctx, pages, .. } = self.program.limits;
        let n = tokens.len();
        if n > n_ctx {
            return Err(Error::ContextFull { n_ctx, used: 0, more: n }.into());
        }
        let n_vocab = self.program.weights[0].rows;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(Error::Token { token, n_vocab }.into());
        }
        let rows: Vec<Row> =
            (0..n).map(|i| Row { token: tokens[i], pos: i as u32, seq: 0, logits: false }).collect();
        let mut table = PageTable::new(1, pages);
        table.seq_mut(0).extend(0..pages as u32);
        let step = Step { rows: &rows, pages: &table, sampling: &[], changes: &[] };
        let mut start = 0;
        for inputs in &mut self.inputs {
            self.backend.run_stages(self.exec, start..inputs.stage, &step).map_err(Error::from)?;
            start = inputs.stage;
            let mut values = vec![0.0; n * self.program.buf_decl(inputs.buf).cols];
            self.backend.read(self.exec, inputs.buf, 0, &mut values).map_err(Error::from)?;
            inputs.add(&values);
            if let (Some(mixtures), Some(norm)) = (&mut self.mixtures, inputs.norms.first()) {
                let added = mixtures.add(inputs.stage, &values, norm, &mut *self.backend, &table);
                added.map_err(Error::from)?;
            }
            if let Some(col) = inputs.sums.iter().position(|sum| !sum.is_finite()) {
                let (name, value) = (inputs.names[0].clone(), inputs.sums[col]);
                return Err(ImportanceError::Value { name, col, value });
            }
        }
        self.n_rows += n as u64;
        Ok(())
    }

    /// Number of rows so far.
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Name, sums of squares of the inputs (`[matrices, cols]`) and number of rows per matrix, for each
    /// weight. For experts, which are several matrices, these are the rows that the router sent to each.
    pub fn sums(&self) -> impl Iterator<Item = (&str, &[f64], Vec<f32>)> {
        let of_products = self.inputs.iter().flat_map(move |inputs| {
            let entry = move |name| (name, &inputs.sums[..], vec![self.n_rows as f32]);
            inputs.names.iter().map(String::as_str).map(entry)
        });
        of_products.chain(self.mixtures.iter().flat_map(Mixtures::sums))
    }
}

impl Inputs {
    /// Adds rows of the buffer.
    fn add(&mut self, values: &[f32]) {
        let mut row = vec![0.0; self.sums.len()];
        for values in values.chunks_exact(self.sums.len()) {
            row.iter_mut().zip(values).for_each(|(x, value)| *x = f64::from(*value));
            self.norms.iter().for_each(|norm| norm.apply(&mut row));
            self.sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x * x);
        }
    }
}

impl Normalise {
    fn of(norm: &Norm, model: &Model) -> Result<Self, Error> {
        let Norm { kind, weight, bias, eps } = *norm;
        let (weight, bias) = (vector(model, weight)?, bias.map(|bias| vector(model, bias)).transpose()?);
        Ok(Self { kind, eps: f64::from(eps), weight, bias })
    }

    fn apply(&self, row: &mut [f64]) {
        let n = row.len() as f64;
        if self.kind == NormKind::Layer {
            let mean = row.iter().sum::<f64>() / n;
            row.iter_mut().for_each(|x| *x -= mean);
        }
        let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / n + self.eps).sqrt();
        row.iter_mut().zip(&self.weight).for_each(|(x, weight)| *x *= scale * f64::from(*weight));
        for (x, bias) in row.iter_mut().zip(self.bias.iter().flatten()) {
            *x += f64::from(*bias);
        }
    }
}

/// Collects the inputs of the linear layers of a model, stage by stage; without the head, as in
/// llama-imatrix.
fn inputs(model: &Model) -> Result<Vec<Inputs>, Error> {
    let program = &model.program;
    let mut found = Vec::new();
    for (stage, (_, what)) in program.stages.iter().enumerate() {
        let (buf, norm, linears): (_, _, Vec<&Linear>) = match what {
            Stage::AttnIn(s) => {
                (s.x, s.norm.as_ref(), [&s.wq].into_iter().chain(&s.wk).chain(&s.wv).collect())
            }
            Stage::ProjAdd(s) => (s.y, None, vec![&s.w]),
            Stage::ProjIn(s) => (s.x, Some(&s.norm), s.products.iter().map(|(linear, _)| linear).collect()),
            Stage::FfnIn(s) => (s.x, s.norm.as_ref(), s.gate.iter().chain([&s.up]).chain(&s.share).collect()),
            // The experts themselves: see `experts.rs`.
            Stage::Experts(s) => (s.x, Some(s.norm_of_router()), vec![&s.router]),
            Stage::LatentIn(s) => {
                let first = s.q_latent.as_ref().map_or(&s.wq, |(linear, _)| linear);
                (s.x, Some(&s.norm), vec![first, &s.wkv])
            }
            // Inputs of one head each, and of a product within a stage, are not measured.
            Stage::HeadProj(_)
            | Stage::NormAdd(_)
            | Stage::AltUpPredict(_)
            | Stage::AltUpCorrect(_)
            | Stage::Rescale(_)
            | Stage::AddVector(_)
            | Stage::Conv(_)
            | Stage::Mamba(_)
            | Stage::Embed(_)
            | Stage::Attend(_)
            | Stage::Delta(_)
            | Stage::Logits(_)
            | Stage::Sample(_) => {
                continue;
            }
        };
        let own = |linear: &Linear| linear.prepared().0;
        for linears in linears.chunk_by(|a, b| own(a) == own(b)) {
            let mut names: Vec<String> = linears.iter().map(|linear| name_of(program, linear)).collect();
            names.dedup();
            let norms = norm.into_iter().chain(&linears[0].norm);
            let norms = norms.map(|norm| Normalise::of(norm, model)).collect::<Result<_, _>>()?;
            let sums = vec![0.0; program.buf_decl(buf).cols];
            found.push(Inputs { stage, buf, norms, names, sums });
        }
    }
    Ok(found)
}

/// Values of a vector.
fn vector(model: &Model, weight: Weight) -> Result<Vec<f32>, Error> {
    let tensor = model.weights[weight.0 as usize].read()?;
    let mut values = vec![0.0; tensor.cols];
    let decoded = tensor.ty.decode_row(&tensor.bytes, tensor.rows, 0, &mut values);
    decoded.expect("the program was checked");
    Ok(values)
}

/// GGUF name of a layer's weight, or of the tensor that it is a part of.
fn name_of(program: &Program, linear: &Linear) -> String {
    let decl = program.weight_decl(linear.w);
    decl.tensor().to_owned()
}
