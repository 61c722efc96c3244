//! Converts a LoRA adapter of PEFT, a folder with `adapter_config.json` and safetensors, to a GGUF file.
//!
//! A conversion that reorders the rows of a matrix reorders those of `B`, and one that reorders its columns
//! reorders those of `A`. The model's GGUF file gives heads and shapes, and the tables of `arch.rs` the
//! names. Each pair has a factor of its own in PEFT; a file has one alpha for all pairs, so that other
//! factors are multiplied into `B`.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use ggml_types::{QuantType, types};
use regex::Regex;
use serde_json::Value as Json;

use super::arch::{self, Architecture, Change, Dim, Rule};
use super::checkpoint::{Checkpoint, Elem};
use super::order::{Tiles, f32s, permuted, transposed};
use super::tensors::{NOT_TEXT, short_name};
use super::{ConvertError, read_json, ternary};
use sterna_gguf::{Gguf, GgufWriter, Metadata, TensorInfo, type_id};

const CONFIG: &str = "adapter_config.json";
/// Prefix of PEFT's names.
const PREFIX: &str = "base_model.model.";

/// True for the folder of an adapter.
pub fn is_adapter(folder: &Path) -> bool {
    folder.join(CONFIG).is_file()
}

/// Converts the adapter in `folder` to a GGUF file for the model `base`.
///
/// # Errors
/// [`ConvertError::File`] for a configuration that asks for anything but pairs of matrices;
/// [`ConvertError::Tensor`] for a tensor that is not half of a pair, or not one of the model's shape.
pub fn adapter(folder: &Path, base: &Gguf) -> Result<Bytes, ConvertError> {
    let config = Config::read(folder)?;
    let key = base.metadata().require_str("general.architecture");
    let name = key.map_err(|err| ConvertError::Unsupported(err.to_string()))?.to_owned();
    let arch = arch::by_file(&name).ok_or_else(|| {
        ConvertError::Unsupported(format!(
            "adapters of PEFT for architecture `{name}`: the names of its tensors are not known; convert the \
             adapter with llama.cpp's convert_lora_to_gguf.py"
        ))
    })?;
    let checkpoint = Checkpoint::open(folder)?;
    let mut to = Pairs { arch, base, name, config: &config, pairs: BTreeMap::new() };
    for (module, half) in halves(&checkpoint)? {
        to.add(&module, half)?;
    }
    to.write()
}

/// The settings of an adapter.
struct Config {
    alpha: f64,
    alphas: Vec<(Regex, f64)>,
    rslora: bool,
    /// Parameters that are no module's weight.
    parameters: Vec<String>,
}

impl Config {
    fn read(folder: &Path) -> Result<Self, ConvertError> {
        let path = folder.join(CONFIG);
        let json = read_json(&path)?;
        let wrong = |key: &str, want: &str| {
            let found = json.get(key).map_or("nothing".to_owned(), Json::to_string);
            ConvertError::file(&path, format!("{key}: want {want}, found {found}"))
        };
        if json.get("peft_type").and_then(Json::as_str) != Some("LORA") {
            return Err(wrong("peft_type", "LORA"));
        }
        let is_off = |value: &Json| match value {
            Json::Null | Json::Bool(false) => true,
            Json::Array(list) => list.is_empty(),
            Json::Object(map) => map.is_empty(),
            _ => false,
        };
        // Other arithmetic, whole tensors, and adapters that some tokens activate.
        for key in [
            "use_dora",
            "use_qalora",
            "use_bdlora",
            "layer_replication",
            "modules_to_save",
            "lora_bias",
            "trainable_token_indices",
            "alora_invocation_tokens",
            "alora_invocation_string",
            "arrow_config",
        ] {
            if json.get(key).is_some_and(|value| !is_off(value)) {
                return Err(wrong(key, "none: only pairs of matrices are supported"));
            }
        }
        if json.get("bias").and_then(Json::as_str).is_some_and(|bias| bias != "none") {
            return Err(wrong("bias", "none"));
        }
        let number = |key: &str| json.get(key).and_then(Json::as_f64).filter(|number| number.is_finite());
        let patterns = |key: &str| -> Result<Vec<(Regex, f64)>, ConvertError> {
            let list = json.get(key).and_then(Json::as_object).into_iter().flatten();
            let read = |(pattern, value): (&String, &Json)| {
                let want = "regular expressions with numbers";
                let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).ok();
                regex.zip(value.as_f64()).ok_or_else(|| wrong(key, want))
            };
            list.map(read).collect()
        };
        let strings = |key: &str| -> Vec<String> {
            let list = json.get(key).and_then(Json::as_array).into_iter().flatten();
            list.filter_map(Json::as_str).map(str::to_owned).collect()
        };
        Ok(Self {
            alpha: number("lora_alpha").ok_or_else(|| wrong("lora_alpha", "a number"))?,
            alphas: patterns("alpha_pattern")?,
            rslora: json.get("use_rslora").and_then(Json::as_bool) == Some(true),
            parameters: strings("target_parameters"),
        })
    }

    /// Factor of a module's pair. Ranks that patterns set are those of the matrices.
    fn factor(&self, module: &str, rank: usize) -> f64 {
        let own = self.alphas.iter().find(|(regex, _)| regex.is_match(module));
        let (alpha, rank) = (own.map_or(self.alpha, |(_, alpha)| *alpha), rank as f64);
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }
}

/// A matrix in f32.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    /// Type in the checkpoint.
    ty: &'static dyn QuantType,
}

impl Matrix {
    fn bytes(&self) -> Bytes {
        f32s(&self.values)
    }

    /// The same values in another order and shape.
    fn with(&self, rows: usize, cols: usize, bytes: &[u8]) -> Self {
        let values = ternary::reals(Elem::F32, bytes).expect("f32 is a type of numbers");
        Self { rows, cols, values, ty: self.ty }
    }

    fn transposed(&self) -> Self {
        self.with(self.cols, self.rows, &transposed(&self.bytes(), self.cols, size_of::<f32>()))
    }

    fn row_bytes(&self) -> usize {
        self.cols * size_of::<f32>()
    }

    /// Some of the rows.
    fn cut(&self, first: usize, rows: usize) -> Self {
        let values = self.values[first * self.cols..(first + rows) * self.cols].to_vec();
        Self { rows, values, ..*self }
    }
}

/// The two matrices of a module.
struct Half {
    a: Matrix,
    b: Matrix,
    is_embedding: bool,
}

/// The pairs of a checkpoint by module.
fn halves(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Half>, ConvertError> {
    const ENDS: [(&str, usize, bool); 4] = [
        (".lora_A.weight", 0, false),
        (".lora_B.weight", 1, false),
        (".lora_embedding_A", 0, true),
        (".lora_embedding_B", 1, true),
    ];
    let mut found: BTreeMap<String, ([Option<Matrix>; 2], bool)> = BTreeMap::new();
    for name in checkpoint.names() {
        let end = ENDS.iter().find_map(|(end, which, is)| Some((name.strip_suffix(end)?, *which, *is)));
        let Some((module, which, is_embedding)) = end else {
            let detail = "is not half of a pair: magnitudes (DoRA), biases and whole modules \
                          (modules_to_save) are not supported";
            return Err(ConvertError::tensor(name, detail));
        };
        let tensor = checkpoint.get(name).expect("a name of the checkpoint");
        let bytes = checkpoint.bytes(tensor).map_err(|err| ConvertError::tensor(name, err))?;
        let ([rows, cols], Some(values)) = (&tensor.shape[..], ternary::reals(tensor.elem, &bytes)) else {
            let detail = format!("want a matrix of numbers, found {} {:?}", tensor.elem.name(), tensor.shape);
            return Err(ConvertError::tensor(name, detail));
        };
        let ty = tensor.elem.ty().unwrap_or(&types::F32);
        let entry = found.entry(module.to_owned()).or_insert(([None, None], is_embedding));
        entry.0[which] = Some(Matrix { rows: *rows, cols: *cols, values, ty });
    }
    let pair = |(module, (halves, is_embedding)): (String, ([Option<Matrix>; 2], bool))| match halves {
        [Some(a), Some(b)] if a.rows == b.cols => Ok((module, Half { a, b, is_embedding })),
        [Some(a), Some(b)] => {
            let detail = format!("A has rank {}, B has rank {}", a.rows, b.cols);
            Err(ConvertError::tensor(&module, detail))
        }
        _ => Err(ConvertError::tensor(&module, "has one half of a pair only")),
    };
    found.into_iter().map(pair).collect()
}

/// A pair for the file. The factor is still that of PEFT.
struct Pair {
    a: Matrix,
    b: Matrix,
    rank: usize,
    factor: f64,
    /// Experts of a tensor of several matrices, in order; only the numbers of those that were found.
    experts: Vec<usize>,
}

struct Pairs<'a> {
    arch: &'static Architecture,
    base: &'a Gguf,
    /// Architecture of the base.
    name: String,
    config: &'a Config,
    /// By GGUF name.
    pairs: BTreeMap<String, Pair>,
}

impl Pairs<'_> {
    /// Adds the pair of a module.
    fn add(&mut self, module: &str, half: Half) -> Result<(), ConvertError> {
        let fail = |detail: &str| ConvertError::tensor(module, detail);
        let path = module
            .strip_prefix(PREFIX)
            .ok_or_else(|| fail("want a name that begins with base_model.model"))?;
        let short = short_name(&format!("{path}.weight"));
        if NOT_TEXT.iter().any(|prefix| short.starts_with(prefix)) {
            return Err(fail("is not part of a text model"));
        }
        let (to, name) = match short.strip_prefix(self.arch.layers).and_then(|rest| rest.split_once('.')) {
            Some((layer, name)) => (format!("blk.{layer}."), name),
            None => (String::new(), short.as_str()),
        };
        if let Some(experts) = name.strip_suffix(".weight").filter(|name| name.contains(".experts")) {
            let (experts, is_inner) = match experts.strip_suffix(".base_layer") {
                Some(experts) => (experts, true),
                None => (experts, false),
            };
            if experts.ends_with(".experts") {
                return self.add_fused(module, &to, (path, experts, is_inner), half);
            }
        }
        let (rule, expert) = self.rule(name).ok_or_else(|| {
            fail(&format!("does not belong to {}, or is not a matrix", self.arch.classes[0]))
        })?;
        let name = format!("{to}{}", rule.to);
        let factor = self.config.factor(path, half.b.cols);
        let info = base_tensor(self.base, &name, rule).ok_or_else(|| {
            fail(&format!(
                "the model has no tensor {name}: its file joins several matrices, or is of another model"
            ))
        })?;
        let n_experts = expert.map(|_| info.dims[0]);
        if expert.zip(n_experts).is_some_and(|(expert, n)| expert >= n) {
            return Err(fail("is an expert that the model does not have"));
        }
        let (rows, cols) = (info.rows() / n_experts.unwrap_or(1), info.cols());
        if half.is_embedding {
            // Both are [r, n_vocab] and [dim, r] here; rows of the file's A are looked up.
            let a = half.a.transposed();
            if a.rows < rows || half.b.rows != cols {
                let detail = format!("want {rows} tokens of {cols}, found {} of {}", a.rows, half.b.rows);
                return Err(fail(&detail));
            }
            let a = a.cut(0, rows);
            return self.put(module, name, Pair { rank: a.cols, a, b: half.b, factor, experts: Vec::new() });
        }
        let Half { a, mut b, .. } = half;
        if rule.change == Change::CutVocab && b.rows > rows {
            b = b.cut(0, rows);
        }
        if (b.rows, a.cols) != (rows, cols) {
            let detail = format!("want [{rows}, {cols}] as {name}, found [{}, {}]", b.rows, a.cols);
            return Err(fail(&detail));
        }
        let (a, b) = self.reordered(rule, a, b)?;
        self.put(module, name, Pair { rank: a.rows, a, b, factor, experts: expert.into_iter().collect() })
    }

    /// The rule for the weight of a matrix, with the number of its expert.
    fn rule(&self, name: &str) -> Option<(&'static Rule, Option<usize>)> {
        let arch = self.arch;
        if name == arch.head {
            let head = arch.globals.first()?;
            return Some((HEADS.iter().find(|rule| rule.change == head.change)?, None));
        }
        let lists = arch.layer.iter().chain(arch.delta).chain(arch.dense_first).copied().flatten();
        let mut rules = arch.globals.iter().chain(lists).filter(|rule| rule.shape.len() > 1);
        rules.find_map(|rule| {
            let fits = |from: &&str| match from.split_once('*') {
                Some((start, end)) if rule.change == Change::Stack => {
                    let number = name.strip_prefix(start)?.strip_suffix(end)?;
                    Some(Some(number.parse().ok()?))
                }
                _ => (*from == name).then_some(None),
            };
            Some((rule, rule.from.iter().find_map(fits)?))
        })
    }

    /// The pair with rows and columns in the order of the file.
    fn reordered(&self, rule: &Rule, a: Matrix, b: Matrix) -> Result<(Matrix, Matrix), ConvertError> {
        let number = |key: &str| {
            let key = format!("{}.{key}", self.name);
            self.base.metadata().require_usize(&key).map_err(|err| ConvertError::Unsupported(err.to_string()))
        };
        Ok(match rule.change {
            Change::PermuteQ | Change::PermuteK => {
                let of_keys = rule.change == Change::PermuteK;
                let of_queries = number("attention.head_count");
                let n_heads =
                    if of_keys { number("attention.head_count_kv").or(of_queries) } else { of_queries };
                let bytes = permuted(&b.bytes(), n_heads?, b.row_bytes());
                (a, b.with(b.rows, b.cols, &bytes))
            }
            Change::TileRows | Change::TileCols => {
                let (n_groups, n_heads) = (number("ssm.group_count")?, number("ssm.time_step_rank")?);
                let head_dim = number("ssm.state_size")?;
                let of_rows = rule.change == Change::TileRows;
                let dim = if of_rows { rule.shape.first() } else { rule.shape.last() };
                let lead = if dim == Some(&Dim::DeltaChannels) { 2 * n_groups * head_dim } else { 0 };
                let unit = if dim == Some(&Dim::DeltaHeads) { 1 } else { head_dim };
                let tiles = Tiles { lead, n_groups, per_group: n_heads / n_groups.max(1), unit };
                let tiled = |matrix: &Matrix, step: usize| {
                    let (bytes, mut out) = (matrix.bytes(), Vec::new());
                    bytes.chunks_exact(step).for_each(|rows| tiles.extend(&mut out, rows));
                    matrix.with(matrix.rows, matrix.cols, &out)
                };
                match of_rows {
                    true => (a, tiled(&b, b.bytes().len())),
                    false => (tiled(&a, a.row_bytes()), b),
                }
            }
            _ => (a, b),
        })
    }

    /// Adds the pair of the experts of a layer, which transformers keeps in one parameter: `[n, 2 f, dim]` of
    /// gates and ups, the inner pair if both are there, and `[n, dim, f]`.
    fn add_fused(
        &mut self,
        module: &str,
        to: &str,
        (path, experts, is_inner): (&str, &str, bool),
        half: Half,
    ) -> Result<(), ConvertError> {
        let fail = |detail: String| ConvertError::tensor(module, detail);
        let of_module = |which: &str| {
            let path = format!("{}.{which}", path.strip_suffix(".base_layer").unwrap_or(path));
            self.config.parameters.iter().any(|own| path == *own || path.ends_with(&format!(".{own}")))
        };
        let has_gates = of_module("gate_up_proj");
        let is_gates = is_inner || (has_gates && !of_module("down_proj"));
        let file = |which: &str| {
            let rule = self.rule(&format!("{experts}.0.{which}_proj.weight"));
            rule.map(|(rule, _)| format!("{to}{}", rule.to))
        };
        let parts: Vec<String> = match is_gates {
            true => ["gate", "up"].iter().filter_map(|which| file(which)).collect(),
            false => file("down").into_iter().collect(),
        };
        let joined = format!("{to}ffn_gate_up_exps.weight");
        let parts = if is_gates && self.base.find(&joined).is_some() { vec![joined] } else { parts };
        let base = self.base;
        let infos: Vec<&TensorInfo> = parts.iter().filter_map(|name| base.find(name)).collect();
        let [first, ..] = infos[..] else {
            return Err(fail(format!("does not belong to experts of {}", self.arch.classes[0])));
        };
        let (n, cols) = (first.dims[0], first.cols());
        let rows: usize = infos.iter().map(|info| info.rows() / n).sum();
        let Half { a, b, .. } = half;
        if a.rows % n != 0 {
            return Err(fail(format!("want a rank for each of {n} experts, found {} rows of A", a.rows)));
        }
        let rank = a.rows / n;
        // Rows of A are ordered by expert, columns of B by rank. Older versions read the parameter the other
        // way around, so that the two change places.
        let fits = |inputs: usize, outputs: usize| (a.cols, b.rows) == (inputs, outputs);
        let by_rank = |b: &Matrix| -> Vec<f32> {
            let elem = |e: usize, row: usize, j: usize| b.values[row * b.cols + j * n + e];
            let of = |e: usize| (0..b.rows).flat_map(move |row| (0..rank).map(move |j| elem(e, row, j)));
            (0..n).flat_map(of).collect()
        };
        let of_b = Matrix { rows: n * b.rows, cols: rank, values: by_rank(&b), ty: b.ty };
        let (a, b) = match (fits(cols, rows), fits(rows, cols)) {
            (true, true) => {
                let detail = format!(
                    "experts of [{rows}, {cols}]: versions of PEFT disagree about the sides of such a pair, \
                     and its shapes do not tell them apart"
                );
                return Err(fail(detail));
            }
            (true, false) => (a, of_b),
            (false, true) => {
                let flipped = |matrix: &Matrix, rows: usize| {
                    let all = (0..n).flat_map(|e| matrix.cut(e * rows, rows).transposed().values);
                    Matrix { rows: n * matrix.cols, cols: rows, values: all.collect(), ty: matrix.ty }
                };
                (flipped(&of_b, cols), flipped(&a, rank))
            }
            (false, false) => {
                let detail = format!("want [{rows}, {cols}] per expert, found [{}, {}]", b.rows, a.cols);
                return Err(fail(detail));
            }
        };
        let parameter = if is_gates { "gate_up_proj" } else { "down_proj" };
        let factor =
            self.config.factor(&format!("{}.{parameter}", path.trim_end_matches(".base_layer")), rank);
        let mut first = 0;
        let names: Vec<(String, usize)> =
            parts.into_iter().zip(infos.iter().map(|info| info.rows() / n)).collect();
        for (name, outputs) in names {
            let of = |e: usize| b.cut(e * rows + first, outputs).values;
            let values = (0..n).flat_map(of).collect();
            let part = Matrix { rows: n * outputs, values, ..b.clone() };
            let experts = (0..n).collect();
            self.put(module, name, Pair { a: a.clone(), b: part, rank, factor, experts })?;
            first += outputs;
        }
        Ok(())
    }

    /// Adds a pair, or that of one expert to those of the same tensor.
    fn put(&mut self, module: &str, name: String, pair: Pair) -> Result<(), ConvertError> {
        let Some(known) = self.pairs.get_mut(&name) else {
            self.pairs.insert(name, pair);
            return Ok(());
        };
        let is_next = !pair.experts.is_empty() && pair.experts.iter().all(|e| !known.experts.contains(e));
        if !is_next {
            return Err(ConvertError::tensor(module, format!("is a second pair of {name}")));
        }
        if (pair.rank, pair.factor) != (known.rank, known.factor) {
            let detail = "has another rank or factor than the other experts of its layer";
            return Err(ConvertError::tensor(module, detail));
        }
        known.experts.extend(pair.experts);
        known.a.values.extend(pair.a.values);
        known.b.values.extend(pair.b.values);
        known.a.rows += pair.a.rows;
        known.b.rows += pair.b.rows;
        Ok(())
    }

    /// The file.
    fn write(self) -> Result<Bytes, ConvertError> {
        let alpha = self.config.alpha;
        // Exactly what a reader of the file computes.
        let is_common = |pair: &Pair| pair.factor == alpha / pair.rank as f64;
        let is_common = alpha != 0.0 && self.pairs.values().all(is_common);
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", self.name.as_str());
        metadata.set("general.type", "adapter");
        metadata.set("adapter.type", "lora");
        if is_common {
            metadata.set("adapter.lora.alpha", alpha as f32);
        }
        let fault = |err: &dyn std::fmt::Display| ConvertError::Unsupported(err.to_string());
        let mut writer = GgufWriter::new(metadata).map_err(|err| fault(&err))?;
        let mut data = Vec::new();
        for (name, mut pair) in self.pairs {
            if !is_common {
                pair.b.values.iter_mut().for_each(|b| *b = (f64::from(*b) * pair.factor) as f32);
                pair.b.ty = &types::F32;
            }
            let of_experts = self.base.find(&name).filter(|info| info.dims.len() > 2);
            if let Some(n) = of_experts.map(|info| info.dims[0]) {
                pair.complete(n);
            }
            let n = of_experts.map(|info| info.dims[0]);
            for (end, matrix) in [("lora_a", &pair.a), ("lora_b", &pair.b)] {
                let Matrix { rows, cols, ref values, ty } = *matrix;
                let dims = n.map_or(vec![rows, cols], |n| vec![n, rows / n, cols]);
                let bytes = ty.encode(values, rows, cols).map_err(|err| fault(&err))?;
                let id = type_id(ty).expect("a type of files");
                let name = format!("{name}.{end}");
                writer.tensor(&name, &dims, id, bytes.len() as u64).map_err(|err| fault(&err))?;
                data.push(bytes);
            }
        }
        let mut out = Vec::with_capacity(writer.file_bytes() as usize);
        let mut file = writer.begin(&mut out).map_err(|err| fault(&err))?;
        data.into_iter().try_for_each(|bytes| file.tensor([bytes])).map_err(|err| fault(&err))?;
        Ok(out.into())
    }
}

/// The tensor that a rule makes. A tied model has the token table as its head.
fn base_tensor<'b>(base: &'b Gguf, name: &str, rule: &Rule) -> Option<&'b TensorInfo> {
    let tied = || base.find("token_embd.weight").filter(|_| rule.to == HEADS[0].to);
    base.find(name).or_else(tied)
}

impl Pair {
    /// Sorts `n` experts by number; those without a pair get zeros.
    fn complete(&mut self, n: usize) {
        let sorted = |matrix: &Matrix, experts: &[usize]| {
            let rows = matrix.rows / experts.len();
            let none = vec![0.0; rows * matrix.cols];
            let at = |e: usize| experts.iter().position(|own| *own == e);
            let of = |e| at(e).map_or_else(|| none.clone(), |at| matrix.cut(at * rows, rows).values);
            let values = (0..n).flat_map(of).collect();
            Matrix { rows: n * rows, values, ..matrix.clone() }
        };
        (self.a, self.b) = (sorted(&self.a, &self.experts), sorted(&self.b, &self.experts));
    }
}

/// The output head, whose rows are cut as those of the token table are.
static HEADS: [Rule; 2] = [arch::head(Change::None), arch::head(Change::CutVocab)];
