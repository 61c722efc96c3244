//! LoRA adapters: files of pairs of narrow matrices `A` and `B`, which add `alpha / rank * B A` to matrices
//! of a model. A pair keeps the name of the model's tensor, followed by `.lora_a` and `.lora_b`.
//!
//! [`Adapter::read`] checks a file, [`Adapter::attach`] adds its pairs to the layers of a model's program.
//! The pair of `token_embd.weight` changes only the embedding of tokens, and that of `output.weight` only the
//! head, also in a model whose head is the token table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use ggml_types::{QuantType, types};

use super::{Model, ModelError};
use sterna_gguf::{Gguf, TensorInfo};
use sterna_program::{Linear, Lora, Stage, Weight, WeightDecl};

/// Types that a pair may have.
const TYPES: [&dyn QuantType; 4] = [&types::F32, &types::F16, &types::Bf16, &types::Q8_0];

const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// The name of a tensor of queries, keys and values together, and those of tensors of one of them.
const QKV: &str = ".attn_qkv.";
const Q_K_V: [&str; 3] = [".attn_q.", ".attn_k.", ".attn_v."];

/// A LoRA adapter whose file was checked.
#[derive(Debug)]
pub struct Adapter {
    gguf: Gguf,
    /// `A` and `B` by the name of the model's tensor.
    pairs: BTreeMap<String, [TensorInfo; 2]>,
    /// `None` if the factor of each pair is 1.
    alpha: Option<f32>,
}

impl Adapter {
    /// Checks an adapter's file: its keys, that every tensor belongs to a pair, and that all values are
    /// finite.
    ///
    /// # Errors
    /// [`ModelError`], with the key or the tensor.
    pub fn read(gguf: Gguf) -> Result<Self, ModelError> {
        let metadata = gguf.metadata();
        for (key, want) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found = metadata.str(key)?;
            if found != Some(want) {
                return Err(metadata_error(key, want, found.unwrap_or("no such key")));
            }
        }
        const ACTIVATED: &str = "adapter.alora.invocation_tokens";
        if metadata.get(ACTIVATED).is_some() {
            let want = "no such key: adapters that are activated by tokens (aLoRA) are not supported";
            return Err(metadata_error(ACTIVATED, want, "some"));
        }
        let alpha = metadata.f32("adapter.lora.alpha")?.filter(|alpha| *alpha != 0.0);
        if let Some(alpha) = alpha.filter(|alpha| !alpha.is_finite()) {
            return Err(metadata_error("adapter.lora.alpha", "a finite number", &alpha.to_string()));
        }
        let mut halves: BTreeMap<String, [Option<TensorInfo>; 2]> = BTreeMap::new();
        for info in gguf.tensors() {
            let half = |which: usize, end: &str| Some((info.name.strip_suffix(end)?, which));
            match half(0, ".lora_a").or_else(|| half(1, ".lora_b")) {
                Some((name, which)) => halves.entry(name.to_owned()).or_default()[which] = Some(info.clone()),
                // Norms that were not trained, in files of mergekit.
                None if info.name.ends_with("_norm.weight") => {}
                None => {
                    let want = "a name that ends with .lora_a or .lora_b: whole tensors and magnitudes \
                                (DoRA) are not supported";
                    return Err(tensor_error(&info.name, want, describe(info)));
                }
            }
        }
        let mut pairs = BTreeMap::new();
        for (name, halves) in halves {
            match halves {
                [Some(a), Some(b)] => pairs.insert(name, [a, b]),
                [None, _] => return Err(missing_half(&name, "lora_a")),
                [_, None] => return Err(missing_half(&name, "lora_b")),
            };
        }
        if pairs.is_empty() {
            return Err(tensor_error("*.lora_a", "at least one pair", "no tensors of a pair".to_owned()));
        }
        let adapter = Self { gguf, pairs, alpha };
        adapter.check_values()?;
        Ok(adapter)
    }

    /// The adapter's file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    fn check_values(&self) -> Result<(), ModelError> {
        for info in self.pairs.values().flatten() {
            if !info.ty.is_some_and(|ty| TYPES.iter().any(|known| known.is(ty))) {
                let known: Vec<_> = TYPES.iter().map(|ty| ty.name()).collect();
                return Err(tensor_error(&info.name, format!("one of {}", known.join(", ")), describe(info)));
            }
            let tensor = self.gguf.host_tensor(info)?;
            let mut values = vec![0.0; tensor.cols];
            for row in 0..tensor.rows {
                let decoded = tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, &mut values);
                decoded.map_err(|source| ModelError::Quant { tensor: info.name.clone(), source })?;
                if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                    return Err(tensor_error(&info.name, "finite values", format!("{value} in row {row}")));
                }
            }
        }
        Ok(())
    }

    /// Adds the pairs to the layers of `model`, which was built from `base`, under the name `name`.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for a model of another architecture; [`ModelError::Tensor`] for a pair of
    /// another shape, or whose tensor the model does not have or does not multiply.
    pub fn attach(&self, name: &str, base: &Gguf, model: &mut Model) -> Result<(), ModelError> {
        self.check_architecture(base)?;
        let adapter = model.program.adapters.len() as u32;
        model.program.adapters.push(name.to_owned());
        let mut attached: HashSet<&str> = HashSet::new();
        let mut stages = std::mem::take(&mut model.program.stages);
        let mut declare = Declare { id: adapter, gguf: &self.gguf, model, known: HashMap::new() };
        for (_, stage) in &mut stages {
            if let Stage::Embed(s) = stage {
                let decl = declare.model.program.weight_decl(s.table).clone();
                if let (Some(pair), TABLE) = (self.pairs.get(decl.tensor()), decl.tensor()) {
                    attached.insert(TABLE);
                    let rank = pair[0].cols();
                    let want = [vec![decl.rows, rank], vec![decl.cols, rank]];
                    check_shapes(&decl.name, [decl.rows, decl.cols], pair, want)?;
                    let [a, b] = [0, 1].map(|which| declare.whole(&pair[which]));
                    s.lora.push(Lora { adapter, a: a?, b: b?, scale: self.factor(rank) * s.scale });
                }
                continue;
            }
            let (is_head, is_attention) =
                (matches!(stage, Stage::Logits(_)), matches!(stage, Stage::AttnIn(_)));
            for (i, linear) in stage.linears_mut().enumerate() {
                let decl = declare.model.program.weight_decl(linear.w).clone();
                let tensor = if is_head { HEAD } else { decl.tensor() };
                // Queries, keys and values may be rows of one tensor, and yet have pairs of their own.
                let own =
                    || Some(tensor.replace(QKV, Q_K_V.get(i)?)).filter(|own| is_attention && own != tensor);
                let fused = self.pairs.get_key_value(tensor).map(|found| (found, false));
                let found = fused.or_else(|| Some((self.pairs.get_key_value(&own()?)?, true)));
                let Some(((tensor, pair), is_own)) = found else { continue };
                attached.insert(tensor);
                let decl = if is_own { WeightDecl { part_of: None, ..decl } } else { decl };
                let pair = self.pair(&mut declare, base, linear, &decl, pair)?;
                linear.lora.push(Lora { adapter, ..pair });
            }
        }
        model.program.stages = stages;
        match self.pairs.iter().find(|(name, _)| !attached.contains(name.as_str())) {
            None => Ok(()),
            Some((name, [a, _])) => {
                let want = match base.find(name) {
                    Some(_) => "the name of a matrix that the model multiplies rows with",
                    None => "the name of a tensor of the model (is it the adapter of another model?)",
                };
                Err(tensor_error(&a.name, want, describe(a)))
            }
        }
    }

    /// The pair of a layer, whose weight is a tensor of `base`, an expert of one, or some of its rows.
    fn pair(
        &self,
        declare: &mut Declare<'_>,
        base: &Gguf,
        linear: &Linear,
        decl: &WeightDecl,
        pair @ [a, b]: &[TensorInfo; 2],
    ) -> Result<Lora, ModelError> {
        let part = decl.part_of.as_ref();
        // Experts are matrices of one tensor, and so are their pairs.
        let whole = part.and_then(|part| base.find(&part.tensor));
        let n_matrices = whole.filter(|info| info.dims.len() > 2).map(|info| info.dims[0]);
        let rows = whole.map_or(decl.rows, TensorInfo::rows) / n_matrices.unwrap_or(1);
        let rank = b.cols();
        let want = match n_matrices {
            None => [vec![rank, decl.cols], vec![rows, rank]],
            Some(n) => [vec![n, rank, decl.cols], vec![n, rows, rank]],
        };
        check_shapes(&decl.name, [rows, decl.cols], pair, want)?;
        if linear.basis.is_some() {
            let want = "no adapter of this tensor, whose inputs are in a rotated basis";
            return Err(tensor_error(&a.name, want, describe(a)));
        }
        let matrix = part.map_or(0, |part| part.rows[0].start / rows);
        let of_a = n_matrices.map(|_| std::iter::once(matrix * rank..(matrix + 1) * rank).collect());
        let scale = self.factor(rank) * linear.scale / own_scale(base, decl.tensor(), matrix)?;
        let (a, b) = (declare.rows(a, of_a)?, declare.rows(b, part.map(|part| part.rows.clone()))?);
        Ok(Lora { adapter: declare.id, a, b, scale })
    }

    fn check_architecture(&self, base: &Gguf) -> Result<(), ModelError> {
        const KEY: &str = "general.architecture";
        let [own, wanted] = [&self.gguf, base].map(|gguf| gguf.metadata().require_str(KEY));
        let (own, wanted) = (own?, wanted?);
        let are_bitnet = [own, wanted].iter().all(|name| name.starts_with("bitnet"));
        match own == wanted || are_bitnet {
            true => Ok(()),
            false => Err(metadata_error(KEY, &format!("{wanted}, the architecture of the model"), own)),
        }
    }

    /// True if it has a pair for a tensor of the model.
    pub fn changes(&self, tensor: &str) -> bool {
        self.pairs.contains_key(tensor)
    }

    /// Checks that [`merge`](Self::merge) adds all pairs to tensors of `base`.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); [`ModelError::Tensor`] for a pair of the token table or the head if they
    /// are one tensor, which only one of the two pairs would change.
    pub fn check_merges(&self, base: &Gguf) -> Result<(), ModelError> {
        self.check_architecture(base)?;
        for (name, pair @ [a, _]) in &self.pairs {
            if [TABLE, HEAD].contains(&name.as_str()) && base.find(HEAD).is_none() {
                let want = "no pair of the token table or of the head, which are one tensor of this model: \
                            such an adapter cannot be merged";
                return Err(tensor_error(&a.name, want, describe(a)));
            }
            let Some(info) = base.find(name) else {
                let want = "the name of a tensor of the model (is it the adapter of another model?)";
                return Err(tensor_error(&a.name, want, describe(a)));
            };
            check_shapes(name, [info.rows(), info.cols()], pair, shapes(info, pair))?;
        }
        Ok(())
    }

    /// Adds the product of a tensor's pair, times `scale`, to `values`, the tensor `info` of `base`. Products
    /// are summed in f64. Does nothing if there is no pair.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a pair of another shape.
    pub fn merge(
        &self,
        base: &Gguf,
        info: &TensorInfo,
        scale: f32,
        values: &mut [f32],
    ) -> Result<(), ModelError> {
        let Some(pair) = self.pairs.get(&info.name) else { return Ok(()) };
        check_shapes(&info.name, [info.rows(), info.cols()], pair, shapes(info, pair))?;
        let rank = pair[1].cols();
        let n_matrices = if info.dims.len() > 2 { info.dims[0] } else { 1 };
        let (rows, cols) = (info.rows() / n_matrices, info.cols());
        let [a, b] = [0, 1].map(|which| self.gguf.host_tensor(&pair[which]));
        let (a, b) = (super::build::decode(&a?)?, super::build::decode(&b?)?);
        let mut sums = vec![0.0_f64; cols];
        for (i, values) in values.chunks_exact_mut(cols).enumerate() {
            let (matrix, row) = (i / rows, i % rows);
            sums.fill(0.0);
            for j in 0..rank {
                // The table's first matrix has a row per token, its second one a row per column.
                let (first, second): (f32, &mut dyn Iterator<Item = &f32>) = match info.name == TABLE {
                    true => (a[row * rank + j], &mut b[j..].iter().step_by(rank)),
                    false => (b[i * rank + j], &mut a[(matrix * rank + j) * cols..][..cols].iter()),
                };
                sums.iter_mut().zip(second).for_each(|(sum, x)| *sum += f64::from(first) * f64::from(*x));
            }
            let factor = self.factor(rank) * scale / own_scale(base, &info.name, matrix)?;
            values.iter_mut().zip(&sums).for_each(|(x, sum)| *x += (f64::from(factor) * sum) as f32);
        }
        Ok(())
    }

    /// Factor of the products of pairs of a rank.
    fn factor(&self, rank: usize) -> f32 {
        self.alpha.map_or(1.0, |alpha| alpha / rank as f32)
    }
}

/// Declares the matrices of an adapter in a model's program.
struct Declare<'a> {
    id: u32,
    gguf: &'a Gguf,
    model: &'a mut Model,
    /// Declared matrices by name.
    known: HashMap<String, Weight>,
}

impl Declare<'_> {
    fn whole(&mut self, info: &TensorInfo) -> Result<Weight, ModelError> {
        self.rows(info, None)
    }

    /// Declares some rows of a matrix, or all.
    fn rows(&mut self, info: &TensorInfo, rows: Option<Vec<Range<usize>>>) -> Result<Weight, ModelError> {
        let name = match &rows {
            None => format!("adapter {} {}", self.id, info.name),
            Some(rows) => format!("adapter {} {} rows {rows:?}", self.id, info.name),
        };
        if let Some(known) = self.known.get(&name) {
            return Ok(*known);
        }
        let whole = self.gguf.file_tensor(info)?;
        let tensor = match rows.as_deref() {
            None => {
                let rows = whole.rows;
                whole.cut(name.clone(), 0..rows)
            }
            Some([one]) => whole.cut(name.clone(), one.clone()),
            Some(several) => whole.gather(name.clone(), several),
        };
        let weight = self.model.program.weight(name.clone(), tensor.ty, tensor.rows, tensor.cols);
        self.model.weights.push(tensor);
        self.known.insert(name, weight);
        Ok(weight)
    }
}

/// The dimensions of a pair for a whole tensor, whose rank is that of `b`.
fn shapes(info: &TensorInfo, [_, b]: &[TensorInfo; 2]) -> [Vec<usize>; 2] {
    let (rank, cols) = (b.cols(), info.cols());
    match info.dims[..] {
        _ if info.name == TABLE => [vec![info.rows(), rank], vec![cols, rank]],
        [n, rows, cols] => [vec![n, rank, cols], vec![n, rows, rank]],
        _ => [vec![rank, cols], vec![info.rows(), rank]],
    }
}

/// The factor of a tensor's own, which its pairs do not have: low-bit types have it in a tensor of its own.
fn own_scale(base: &Gguf, tensor: &str, matrix: usize) -> Result<f32, ModelError> {
    let name = format!("{}.scale", tensor.strip_suffix(".weight").unwrap_or(tensor));
    let Some(info) = base.find(&name) else { return Ok(1.0) };
    let scales = super::build::decode(&base.host_tensor(info)?)?;
    Ok(scales[if scales.len() == 1 { 0 } else { matrix }])
}

fn check_shapes(
    name: &str,
    [rows, cols]: [usize; 2],
    pair: &[TensorInfo; 2],
    want: [Vec<usize>; 2],
) -> Result<(), ModelError> {
    match pair.iter().zip(want).find(|(info, want)| info.dims != *want || want.contains(&0)) {
        None => Ok(()),
        Some((info, want)) => {
            let of = format!("{want:?} for {name} of [{rows}, {cols}]");
            Err(tensor_error(&info.name, of, describe(info)))
        }
    }
}

fn describe(info: &TensorInfo) -> String {
    format!("{:?} {}", info.dims, info.type_name)
}

fn missing_half(name: &str, half: &str) -> ModelError {
    tensor_error(&format!("{name}.{half}"), "the other half of a pair", "no tensor of that name".to_owned())
}

fn metadata_error(key: &str, want: &str, got: &str) -> ModelError {
    ModelError::Metadata { key: key.to_owned(), want: want.to_owned(), got: got.to_owned() }
}

fn tensor_error(tensor: &str, want: impl Into<String>, got: String) -> ModelError {
    ModelError::Tensor { tensor: tensor.to_owned(), want: want.into(), got }
}
