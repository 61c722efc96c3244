//! The inputs of experts, which are internal to a stage. The router and the first half of each expert run
//! again as stages of a separate program, on the rows that the router sends to the expert.

use super::{Normalise, name_of, vector};
use sterna_backend::{Backend, BackendError, Exec, WeightId};
use sterna_engine::Error;
use sterna_model::Model;
use sterna_program::{
    Buf, Experts, FfnIn, Linear, PageTable, Program, ProjAdd, Routing, Row, RowsOf, Stage, Step,
};

/// The mixtures of a model.
pub(super) struct Mixtures {
    program: Program,
    exec: Exec,
    x: Buf,
    layers: Vec<Layer>,
}

/// One mixture.
pub(super) struct Layer {
    /// Index of its stage in the model's program.
    stage: usize,
    /// Its first stage in the program of the mixtures: the router, followed by the experts.
    first: usize,
    n_used: usize,
    routing: Routing,
    /// Values of its bias.
    bias: Option<Vec<f32>>,
    /// Logits of the router.
    z: Buf,
    /// Buffer of an expert's `h`.
    h: Buf,
    /// GGUF names of the weights that multiply the rows, and of the one that multiplies the hidden layer.
    outer: Vec<String>,
    inner: String,
    /// Sums of squares, `[experts, cols]`.
    outer_sums: Vec<f64>,
    inner_sums: Vec<f64>,
    /// Number of rows per expert.
    counts: Vec<u64>,
}

impl Mixtures {
    /// The mixtures of a program whose weights are uploaded, with their [`biases`]; `None` if it has none.
    pub fn new(
        model: &Program,
        backend: &mut dyn Backend,
        weights: &[WeightId],
        biases: Vec<Option<Vec<f32>>>,
    ) -> Result<Option<Self>, BackendError> {
        let mut program = Program::new(model.name.clone(), model.limits);
        program.weights.clone_from(&model.weights);
        let mut layers = Vec::new();
        let mut x = None;
        for ((stage, label, s), bias) in mixtures(model).zip(biases) {
            let dim = model.buf_decl(s.x).cols;
            let x = *x.get_or_insert_with(|| program.buf("x", RowsOf::Step, dim));
            layers.push(Layer { bias, ..Layer::new(stage, label, s, &mut program, x) });
        }
        let Some(x) = x else { return Ok(None) };
        let exec = backend.compile(&program, weights)?;
        Ok(Some(Self { program, exec, x, layers }))
    }

    /// Adds the input rows of a mixture, `[rows, dim]`; does nothing for other stages.
    pub fn add(
        &mut self,
        stage: usize,
        values: &[f32],
        norm: &Normalise,
        backend: &mut dyn Backend,
        pages: &PageTable,
    ) -> Result<(), BackendError> {
        let Some(layer) = self.layers.iter_mut().find(|layer| layer.stage == stage) else { return Ok(()) };
        let (n_experts, dim) = (layer.counts.len(), self.program.buf_decl(self.x).cols);
        let n = values.len() / dim;
        let rows: Vec<Row> = (0..n).map(|i| Row { token: 0, pos: i as u32, seq: 0, logits: false }).collect();
        let mut z = vec![0.0; n * n_experts];
        backend.write(self.exec, self.x, 0, values)?;
        backend.write(self.exec, layer.z, 0, &z)?;
        let step = Step { rows: &rows, pages, sampling: &[], changes: &[] };
        backend.run_stages(self.exec, layer.first..layer.first + 1, &step)?;
        backend.read(self.exec, layer.z, 0, &mut z)?;
        let mut chosen: Vec<Vec<usize>> = vec![Vec::new(); n_experts];
        let (mut order, mut scores) = (Vec::new(), Vec::new());
        for (row, z) in z.chunks_exact_mut(n_experts).enumerate() {
            layer.routing.choose(z, layer.bias.as_deref(), layer.n_used, &mut order, &mut scores);
            order[..layer.n_used].iter().for_each(|expert| chosen[*expert].push(row));
        }
        let ffn_dim = self.program.buf_decl(layer.h).cols;
        for (expert, chosen) in chosen.iter().enumerate().filter(|(_, chosen)| !chosen.is_empty()) {
            let own: Vec<f32> = chosen.iter().flat_map(|row| &values[row * dim..][..dim]).copied().collect();
            backend.write(self.exec, self.x, 0, &own)?;
            let step = Step { rows: &rows[..chosen.len()], pages, sampling: &[], changes: &[] };
            let stage = layer.first + 1 + expert;
            backend.run_stages(self.exec, stage..stage + 1, &step)?;
            let mut hidden = vec![0.0; chosen.len() * ffn_dim];
            backend.read(self.exec, layer.h, 0, &mut hidden)?;
            let sums = &mut layer.outer_sums[expert * dim..][..dim];
            for row in own.chunks_exact(dim) {
                let mut row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
                norm.apply(&mut row);
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x);
            }
            let sums = &mut layer.inner_sums[expert * ffn_dim..][..ffn_dim];
            for row in hidden.chunks_exact(ffn_dim) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
            }
            layer.counts[expert] += chosen.len() as u64;
        }
        Ok(())
    }

    /// Name, sums and rows per weight: see [`Importance::sums`](super::Importance::sums).
    pub fn sums(&self) -> impl Iterator<Item = (&str, &[f64], Vec<f32>)> {
        self.layers.iter().flat_map(|layer| {
            let counts = || layer.counts.iter().map(|n| *n as f32).collect();
            let outer = layer.outer.iter().map(move |name| (name.as_str(), &layer.outer_sums[..], counts()));
            outer.chain([(layer.inner.as_str(), &layer.inner_sums[..], counts())])
        })
    }
}

/// Stage, label and content of each mixture.
///
/// Mixtures with an input of their own are not measured: it is a product within the layer.
fn mixtures(program: &Program) -> impl Iterator<Item = (usize, &str, &Experts)> {
    program.stages.iter().enumerate().filter_map(|(at, (label, stage))| match stage {
        Stage::Experts(s) if s.input.is_none() => Some((at, label.as_str(), s)),
        _ => None,
    })
}

/// The biases of the mixtures' routings.
pub(super) fn biases(model: &Model) -> Result<Vec<Option<Vec<f32>>>, Error> {
    let of = |routing: &Routing| routing.bias.map(|bias| vector(model, bias)).transpose();
    mixtures(&model.program).map(|(_, _, s)| of(&s.routing)).collect()
}

impl Layer {
    fn new(stage: usize, label: &str, s: &Experts, program: &mut Program, x: Buf) -> Self {
        let (n_experts, dim) = (s.experts.len(), program.buf_decl(x).cols);
        let ffn_dim = program.weight_decl(s.experts[0].up.w).rows;
        // Buffers are shared by all mixtures of one shape.
        let mut buf = |name: &'static str, cols: usize| {
            let there = program.bufs.iter().position(|buf| buf.name == name && buf.cols == cols);
            there.map_or_else(|| program.buf(name, RowsOf::Step, cols), |at| Buf(at as u32))
        };
        let (z, h) = (buf("z", n_experts), buf("h", ffn_dim));
        let first = program.stages.len();
        let w = Linear { norm: Some(s.norm_of_router().clone()), ..s.router.clone() };
        program.push(format!("{label}.router"), ProjAdd::plain(x, w, z));
        for (i, expert) in s.experts.iter().enumerate() {
            let (gate, up) = (expert.gate.clone(), expert.up.clone());
            let stage = FfnIn { gate, ..FfnIn::plain(x, s.norm.clone(), up, s.act, h) };
            program.push(format!("{label}.{i}"), stage);
        }
        let mut outer: Vec<String> = s.experts[0].layers().map(|layer| name_of(program, layer)).collect();
        let inner = outer.pop().expect("the down projection");
        outer.dedup();
        Self {
            stage,
            first,
            n_used: s.n_used,
            routing: s.routing.clone(),
            bias: None,
            z,
            h,
            outer,
            inner,
            outer_sums: vec![0.0; n_experts * dim],
            inner_sums: vec![0.0; n_experts * ffn_dim],
            counts: vec![0; n_experts],
        }
    }
}
