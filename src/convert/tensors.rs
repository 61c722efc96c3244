//! Maps a checkpoint's tensors to those of a file and computes each on request.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, types};

use super::altup::STREAMS;
use super::arch::{self, Architecture, Change, Dim, Need, Rule};
use super::checkpoint::{Checkpoint, Elem, Tensor};
use super::config::{Config, Rope, RopeScaling};
use super::layered::Layered;
use super::order::{Tiles, f32s, half, permuted, transposed};
use super::pooling::Dense;
use super::shape::{CHANNELS, Shape};
use super::ternary::{self, ScaleMeaning};
use super::{ConvertError, ConvertOptions};
use sterna_gguf::TensorInfo;

/// Source of the values of a tensor.
#[derive(Clone, Debug)]
pub enum Values {
    /// Values of the checkpoint.
    Real,
    /// Packed ternary codes and their scales: one scale, or one per row.
    Packed {
        /// Factors of the codes.
        scales: Vec<f32>,
    },
    /// Master weights of a ternary model.
    Masters,
    /// Computed in f32.
    Computed(Bytes),
}

/// A planned tensor of the output file.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    /// Name, dimensions, and the type in which it is computed.
    pub info: TensorInfo,
    /// True if it is a linear layer's weight.
    pub linear: bool,
    /// Source of its values.
    pub values: Values,
    /// The tensors it is built from: several for experts.
    parts: Vec<(String, Tensor)>,
    change: Change,
    /// Heads, if rows are reordered within each head.
    n_heads: usize,
    /// Order of value heads, if it changes.
    tiles: Option<Tiles>,
    /// Factors on the rows.
    factors: Vec<(usize, f64)>,
    /// Rows that are kept of each group, and the rows of a group, if others become another tensor.
    kept: (Range<usize>, usize),
}

/// Prefixes of the parts of a multimodal model that are not text.
pub const NOT_TEXT: [&str; 18] = [
    "vision_tower.",
    "vision_model.",
    "visual.",
    "model.visual.",
    "model.vision_",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "model.connector.",
    "connector.",
    "mm_projector",
    "model.mm_projector",
    "audio_tower.",
    "embed_vision.",
    "model.embed_vision.",
    "embed_audio.",
    "model.embed_audio.",
    "model.audio_tower.",
    "vision_",
];

/// Prefixes of a vision tower and its projector, with their counterparts in the rules.
const TOWER: [(&str, &str); 14] = [
    ("model.vision_tower.vision_model.", "tower."),
    ("model.vision_tower.", "tower."),
    ("vision_tower.vision_model.", "tower."),
    ("vision_tower.", "tower."),
    ("model.vision_model.", "tower."),
    ("vision_model.", "tower."),
    ("model.visual.", "tower."),
    ("visual.", "tower."),
    ("model.multi_modal_projector.", "projector."),
    ("multi_modal_projector.", "projector."),
    ("model.connector.", "projector."),
    ("connector.", "projector."),
    ("model.embed_vision.", "projector."),
    ("embed_vision.", "projector."),
];

/// Prefixes of names, with their counterparts in a text model.
const PREFIXES: [(&str, &str); 11] = [
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("transformer.", ""),
    // The head of GPT-NeoX.
    ("embed_out.", "lm_head."),
    ("bert.", ""),
    // A model without its head, such as an embedding model.
    ("embed_tokens.", "model.embed_tokens."),
    ("layers.", "model.layers."),
    // The only layer of an EAGLE-3 head.
    ("midlayer.", "model.layers.0."),
    ("norm.", "model.norm."),
];

/// The checkpoint's tensors by the names used in the rules.
pub struct NamedTensors<'a> {
    checkpoint: &'a Checkpoint,
    by_name: BTreeMap<String, &'a str>,
    /// Notes on tensors that are left out, with the reason.
    pub notes: Vec<String>,
}

impl<'a> NamedTensors<'a> {
    /// Drops tensors that are not stored in GGUF files.
    ///
    /// # Errors
    /// [`ConvertError::Unsupported`] for parts that are not text, unless they are to be left out;
    /// [`ConvertError::Tensor`] if two names refer to the same tensor.
    pub fn new(
        checkpoint: &'a Checkpoint,
        arch: &Architecture,
        options: &ConvertOptions,
    ) -> Result<Self, ConvertError> {
        let (mut by_name, mut n_other, mut n_mtp) = (BTreeMap::new(), 0, 0);
        for name in checkpoint.names() {
            if NOT_TEXT.iter().any(|prefix| name.starts_with(prefix)) {
                if !options.text_only {
                    let detail = format!("tensor {} is not part of a text model", name.escape_debug());
                    return Err(ConvertError::Unsupported(detail).avoided_by(TEXT_ONLY));
                }
                n_other += 1;
                continue;
            }
            let of_mtp = arch.mtp.iter().find_map(|prefix| name.strip_prefix(prefix));
            if of_mtp.is_some() && arch.mtp_block.is_empty() {
                n_mtp += 1;
                continue;
            }
            let short = match of_mtp {
                Some(rest) => format!("mtp.{rest}"),
                None => short_name(name),
            };
            // Frequencies and masks, which transformers recomputes.
            let is_mask = ["h.", "gpt_neox.layers."].contains(&arch.layers)
                && [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"]
                    .iter()
                    .any(|end| short.ends_with(end));
            let is_unused = arch.unused.iter().any(|prefix| short.starts_with(prefix));
            if is_mask || is_unused || short.ends_with("rotary_emb.inv_freq") {
                continue;
            }
            if let Some(other) = by_name.insert(short, name) {
                let detail = format!("is also stored as {}", other.escape_debug());
                return Err(ConvertError::tensor(name, detail));
            }
        }
        let mut notes = Vec::new();
        notes.extend(mtp_note(n_mtp));
        if n_other > 0 {
            notes.push(format!("{n_other} tensors that are not part of a text model are left out"));
        }
        Ok(Self { checkpoint, by_name, notes })
    }

    /// The tensors of a vision tower and its projector. The others are those of the text model.
    ///
    /// # Errors
    /// [`ConvertError::Tensor`] if two names refer to the same tensor.
    pub fn of_tower(checkpoint: &'a Checkpoint) -> Result<Self, ConvertError> {
        let mut by_name = BTreeMap::new();
        for name in checkpoint.names() {
            let part = TOWER.iter().find_map(|(prefix, part)| Some((name.strip_prefix(prefix)?, part)));
            // Numbers that transformers recomputes.
            let Some((rest, part)) = part.filter(|(rest, _)| !rest.ends_with(".position_ids")) else {
                continue;
            };
            if let Some(other) = by_name.insert(format!("{part}{rest}"), name) {
                let detail = format!("is also stored as {}", other.escape_debug());
                return Err(ConvertError::tensor(name, detail));
            }
        }
        Ok(Self { checkpoint, by_name, notes: Vec::new() })
    }

    /// Drops the tensors whose names begin with this prefix.
    pub fn leave_out(&mut self, prefix: &str) {
        self.by_name.retain(|name, _| !name.starts_with(prefix));
    }

    /// Returns the tensor with this name in the rules, without taking it.
    pub fn get(&self, name: &str) -> Option<&'a Tensor> {
        self.by_name.get(name).and_then(|name| self.checkpoint.get(name))
    }

    /// Returns the tensor with this name, which another rule also takes.
    fn share(&self, name: &str) -> Option<(String, Tensor)> {
        let name = *self.by_name.get(name)?;
        Some((name.to_owned(), self.checkpoint.get(name)?.clone()))
    }

    /// Takes the tensor with this name.
    pub fn take(&mut self, name: &str) -> Option<(String, Tensor)> {
        let name = self.by_name.remove(name)?;
        Some((name.to_owned(), self.checkpoint.get(name)?.clone()))
    }

    /// Drops the tensors of blocks for multi-token prediction, which begin with these prefixes.
    fn leave_out_mtp(&mut self, prefixes: impl Iterator<Item = String>) {
        let before = self.by_name.len();
        prefixes.for_each(|prefix| self.leave_out(&prefix));
        self.notes.extend(mtp_note(before - self.by_name.len()));
    }

    /// The first tensor that no rule has taken, and the number of such tensors.
    pub fn left(&self) -> Option<(&'a str, usize)> {
        self.by_name.values().next().map(|name| (*name, self.by_name.len()))
    }
}

/// The note on `n` tensors that are left out.
fn mtp_note(n: usize) -> Option<String> {
    (n > 0).then(|| {
        format!(
            "{n} tensors of the block for multi-token prediction (MTP) are left out: they are not converted \
             to a GGUF block"
        )
    })
}

/// Ways out of errors, each with an option.
const TEXT_ONLY: [&str; 3] = [": ", "ConvertOptions::text_only", " leaves such tensors out"];
const TERNARY: [&str; 3] = ["; ", "ConvertOptions::ternary", " absmean rounds such weights by BitNet's rule"];
const SCALE: [&str; 3] =
    ["; ", "ConvertOptions::scale", " sets the meaning of weight_scale: multiply or divide"];

/// Properties that decide how linear weights are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Meaning of the scales stored with packed codes; the reason if packed codes are an error.
    pub scale: Result<ScaleMeaning, String>,
    /// True if real linear weights are masters, or the reason why that is unknown.
    pub masters: Result<bool, String>,
    /// Parts of names of linear layers that are not quantised.
    pub spared: Vec<String>,
}

/// Plans all tensors of the file, in order.
///
/// # Errors
/// [`ConvertError::Tensor`] for a tensor that is missing or unknown, has a different shape or type, or has
/// invalid scales.
pub fn plan(
    named: &mut NamedTensors<'_>,
    config: &Config,
    arch: &Architecture,
    shape: &Shape,
    reading: &Reading,
    rope: Option<&Rope>,
    tied: bool,
) -> Result<Vec<OutputTensor>, ConvertError> {
    let mut out = Vec::new();
    let mut planner = Planner { named, config, shape: shape.clone(), reading };
    let (embedding, others) = arch.globals.split_first().expect("the table begins with the embedding");
    out.extend(planner.one("", "", embedding)?);
    if let Some(rope) = rope {
        out.extend(rope_factors(rope, shape.head_dim));
        let global = shape.layered.as_ref().map(Layered::global_dim);
        out.extend(partial_rope(rope, global.unwrap_or(shape.head_dim)));
        out.extend(long_rope(rope));
    }
    for layer in 0..shape.n_layers {
        let (from, to) = (format!("{}{layer}.", arch.layers), format!("blk.{layer}."));
        planner.shape = shape.of_layer(layer);
        if shape.layered.as_ref().is_some_and(|layered| layered.reads_another(layer)) {
            for unused in ["k_proj", "v_proj", "k_norm"] {
                planner.named.take(&format!("{from}self_attn.{unused}.weight"));
            }
        }
        let has_delta = shape.hybrid.as_ref().is_some_and(|hybrid| hybrid.has_delta(layer));
        let recurrent = shape.recurrent.as_ref();
        let recurs = has_delta || recurrent.is_some_and(|recurrent| recurrent.layers[layer]);
        let rules = match shape.sparse {
            Some(sparse) if !sparse.is_at(layer) => arch.dense_first,
            _ if recurrent.is_some_and(|recurrent| recurrent.ffns.get(layer) == Some(&true)) => {
                arch.dense_first
            }
            _ if recurs => arch.delta,
            _ => arch.layer,
        };
        planner.layer(&from, &to, rules, arch.fused, &mut out)?;
        if let Some(key) = arch.query_factor {
            let factor = config.positive(&[key])?.unwrap_or(1.0) as f32;
            for (which, weight) in [("q", factor), ("k", 1.0)] {
                let name = format!("{to}attn_{which}_norm.weight");
                out.push(computed(name, vec![shape.head_dim], f32s(&vec![weight; shape.head_dim])));
            }
        }
    }
    planner.shape = shape.clone();
    if shape.has_mtp {
        let to = format!("blk.{}.", shape.n_layers);
        let [block, layer] = arch.mtp_prefixes(shape.n_layers);
        let embedding = out[0].parts[0].1.clone();
        let head = planner.named.get(arch.head).unwrap_or(&embedding).clone();
        planner.leave_out_copy(&format!("{block}embed_tokens.weight"), &embedding)?;
        planner.leave_out_copy(&format!("{block}shared_head.head.weight"), &head)?;
        planner.layer(&layer, &to, arch.layer, arch.fused, &mut out)?;
        for rule in arch.mtp_block.iter().copied().flatten() {
            out.extend(planner.one(&block, &to, rule)?);
        }
    }
    for rule in others {
        out.extend(planner.one("", "", rule)?);
    }
    let head = Rule { factors: arch.head_factors, ..arch::head(arch.globals[0].change) };
    if tied {
        if arch.head_factors.is_some() {
            // The embedding has other factors.
            let parts = out[0].parts.clone();
            out.push(planner.made(&head, "output.weight".to_owned(), parts)?);
        }
        if let Some((_, tensor)) = planner.named.take(arch.head) {
            let why = match planner.same(arch.head, &tensor, &out[0].parts[0].1)? {
                true => "is the embedding",
                false => "differs from the embedding, to which it is tied",
            };
            planner.named.notes.push(format!("{} {why}: left out", arch.head));
        }
    } else {
        let (name, tensor) = planner.named.take(arch.head).expect("an untied head is there");
        out.push(planner.made(&head, "output.weight".to_owned(), vec![(name, tensor)])?);
    }
    if let Some(sparse) = shape.sparse {
        let blocks = shape.n_layers + usize::from(shape.has_mtp)..shape.n_layers + sparse.n_mtp;
        named.leave_out_mtp(blocks.map(|block| format!("{}{block}.", arch.layers)));
    }
    match named.left() {
        None => Ok(out),
        Some((name, n)) => {
            let more = if n > 1 { format!(", and {} more tensors", n - 1) } else { String::new() };
            let is_embedding = name.ends_with("_proj.norm.weight") || name.ends_with("rms_norm.weight");
            let detail = match is_embedding {
                true => "is a norm of a projection's input: supported only for Qwen3 and Gemma 3".to_owned(),
                false => format!("does not belong to {}{more}", arch.classes[0]),
            };
            Err(ConvertError::tensor(name, detail))
        }
    }
}

/// Plans tensors by their rules.
pub struct Planner<'a, 'b> {
    /// The tensors that no rule has taken yet.
    pub named: &'a mut NamedTensors<'b>,
    /// For rules with conditions and factors.
    pub config: &'a Config,
    /// Shape of the layer that is planned.
    pub shape: Shape,
    /// How linear weights are read.
    pub reading: &'a Reading,
}

impl Planner<'_, '_> {
    /// Plans the tensors of a layer.
    fn layer(
        &mut self,
        from: &str,
        to: &str,
        rules: &[&[Rule]],
        fused: &[Rule],
        out: &mut Vec<OutputTensor>,
    ) -> Result<(), ConvertError> {
        let is_there = |name: &&str| self.named.get(&format!("{from}{name}")).is_some();
        let is_fused = fused.first().is_some_and(|rule| rule.from.iter().any(is_there));
        let rules = rules.iter().copied().flatten().filter(|rule| !is_fused || rule.change != Change::Stack);
        for rule in rules.chain(fused.iter().filter(|_| is_fused)) {
            out.extend(self.one(from, to, rule)?);
        }
        Ok(())
    }

    /// True if two tensors are the same. `name` is the first one's.
    fn same(&self, name: &str, a: &Tensor, b: &Tensor) -> Result<bool, ConvertError> {
        self.named.checkpoint.same(a, b).map_err(|err| ConvertError::tensor(name, err))
    }

    /// Drops a tensor that is a copy of another one.
    fn leave_out_copy(&mut self, name: &str, of: &Tensor) -> Result<(), ConvertError> {
        if let Some(found) = self.named.get(name)
            && self.same(name, found, of)?
        {
            self.named.take(name);
        }
        Ok(())
    }

    /// Plans the tensor of a rule, if there is one.
    ///
    /// # Errors
    /// [`ConvertError::Tensor`], as [`plan`].
    pub fn one(&mut self, from: &str, to: &str, rule: &Rule) -> Result<Option<OutputTensor>, ConvertError> {
        let name = format!("{to}{}", rule.to);
        if matches!(rule.need, Need::If(condition) if !condition(self.config)) {
            return Ok(None);
        }
        let n_stacked = match rule.change {
            Change::Stack => Some(self.shape.experts.map_or(0, |(n, _, _)| n)),
            Change::StackStreams => Some(STREAMS - 1),
            _ => None,
        };
        if let Some(n) = n_stacked {
            let mut parts = Vec::new();
            for which in 0..n {
                let part = format!("{from}{}", rule.from[0].replace('*', &which.to_string()));
                parts.push(self.named.take(&part).ok_or_else(|| missing(&part))?);
            }
            return self.made(rule, name, parts).map(Some);
        }
        let found = rule.from.iter().find_map(|short| {
            let name = format!("{from}{short}");
            match rule.change {
                Change::FirstHalf
                | Change::EitherFirstHalf
                | Change::KeysOfHeads
                | Change::QueriesOfGroups
                | Change::KeysOfGroups
                | Change::FirstThird
                | Change::SecondThird
                | Change::FirstFrame => self.named.share(&name),
                _ => self.named.take(&name),
            }
        });
        match found {
            Some(part) => self.made(rule, name, vec![part]).map(Some),
            None if matches!(rule.need, Need::Maybe) => Ok(None),
            None => Err(missing(&format!("{from}{}", rule.from[0]))),
        }
    }

    /// Plans the tensor `to` of a rule, from these tensors of the checkpoint.
    ///
    /// # Errors
    /// [`ConvertError::Tensor`], as [`plan`].
    pub fn made(
        &mut self,
        rule: &Rule,
        to: String,
        parts: Vec<(String, Tensor)>,
    ) -> Result<OutputTensor, ConvertError> {
        let dims: Vec<usize> = rule.shape.iter().map(|dim| self.shape.len(*dim)).collect();
        let elem = parts.first().map_or(Elem::F32, |(_, part)| part.elem);
        let is_packed = rule.linear && elem == Elem::U8 && dims.len() == 2;
        let mut want = dims.clone();
        if is_packed {
            if !dims[0].is_multiple_of(4) {
                let detail = format!("want a multiple of 4 rows, found {}", dims[0]);
                return Err(ConvertError::tensor(&parts[0].0, detail));
            }
            want[0] /= 4;
        }
        let is_either =
            matches!(rule.change, Change::Either | Change::EitherFirstHalf | Change::EitherSecondHalf);
        for (name, part) in &parts {
            let is_transposed = is_either && part.shape == [want[0], want[2], want[1]];
            if part.shape != want && !is_transposed {
                let detail = format!("want {want:?}, found {:?}", part.shape);
                return Err(ConvertError::tensor(name, detail));
            }
            if part.elem != elem || !(is_packed || part.elem.is_real()) {
                let want = if part.elem.is_real() { elem.name() } else { "F32, F16, BF16 or F64".to_owned() };
                let way_out = match part.elem {
                    Elem::U8 | Elem::Other(_) if rule.linear => {
                        "; the only quantised checkpoints that are supported are packed ternary ones"
                    }
                    _ => "",
                };
                let detail = format!("want {want}, found {}{way_out}", part.elem.name());
                return Err(ConvertError::tensor(name, detail));
            }
        }
        let n_heads = match rule.change {
            Change::PermuteQ | Change::QueriesOfGroups => self.shape.n_heads,
            Change::PermuteK | Change::KeysOfGroups => self.shape.n_kv_heads,
            _ => 1,
        };
        let permutes = n_heads > 1 || matches!(rule.change, Change::PermuteQ | Change::PermuteK);
        if permutes && !self.shape.head_dim.is_multiple_of(2) {
            let detail = format!("want heads of even length, found {}", self.shape.head_dim);
            return Err(ConvertError::tensor(&parts[0].0, detail));
        }
        let values = self.values(rule, &parts, is_packed, dims.first().copied().unwrap_or(1))?;
        let mut info = TensorInfo {
            name: to,
            dims,
            type_id: 0,
            ty: Some(made_in(rule, &values, elem)),
            type_name: String::new(),
            part: 0,
            start: 0,
            n_bytes: 0,
        };
        match rule.change {
            Change::Transpose => info.dims.reverse(),
            Change::Stack | Change::StackStreams => info.dims.insert(0, parts.len()),
            Change::FirstHalf | Change::SecondHalf | Change::EitherFirstHalf | Change::EitherSecondHalf => {
                let rows = info.dims.len() - 2;
                info.dims[rows] /= 2;
            }
            _ => {}
        }
        if rule.shape.get(1) == Some(&Dim::One) {
            info.dims.remove(1);
        }
        if rule.to.ends_with(".bias") && rule.shape.first() == Some(&Dim::One) {
            info.dims.remove(0);
        }
        if !rule.reshaped.is_empty() {
            info.dims = rule.reshaped.iter().map(|dim| self.shape.len(*dim)).collect();
        }
        let factors = rule.factors.map(|read| read(self.config)).transpose()?.unwrap_or_default();
        let runs = rule.runs.iter().map(|dim| self.shape.len(*dim)).chain([usize::MAX]);
        let factors = runs.zip(factors).collect();
        let (linear, change, tiles, kept) = (rule.linear, rule.change, self.tiles(rule), self.kept(rule));
        Ok(OutputTensor { info, linear, values, parts, change, n_heads, tiles, factors, kept })
    }

    /// The rows that a rule keeps of each group, and the rows of a group.
    fn kept(&self, rule: &Rule) -> (Range<usize>, usize) {
        let [key, value] = [Dim::LatentKey, Dim::LatentValue].map(|dim| self.shape.len(dim));
        let head = self.shape.head_dim;
        let queries = head * self.shape.n_heads / self.shape.n_kv_heads;
        match rule.change {
            Change::KeysOfHeads => (0..key, key + value),
            Change::ValuesOfHeads => (key..key + value, key + value),
            Change::QueriesOfGroups | Change::Ungroup => (0..queries, queries + 2 * head),
            Change::KeysOfGroups => (queries..queries + head, queries + 2 * head),
            Change::ValuesOfGroups => (queries + head..queries + 2 * head, queries + 2 * head),
            Change::FirstThird | Change::SecondThird | Change::LastThird => {
                let third = self.shape.len(rule.shape[0]) / 3;
                let at = match rule.change {
                    Change::FirstThird => 0,
                    Change::SecondThird => third,
                    _ => 2 * third,
                };
                (at..at + third, 3 * third)
            }
            _ => (0..0, 0),
        }
    }

    /// Order of value heads for a rule.
    fn tiles(&self, rule: &Rule) -> Option<Tiles> {
        let hybrid = self.shape.hybrid.as_ref()?;
        let dim = match rule.change {
            Change::TileRows | Change::TileDecay => rule.shape.first()?,
            Change::TileCols => rule.shape.last()?,
            _ => return None,
        };
        let lead = if *dim == Dim::DeltaChannels { hybrid.keys() } else { 0 };
        let unit = if *dim == Dim::DeltaHeads { 1 } else { hybrid.head_dim };
        let n_groups = hybrid.n_key_heads;
        Some(Tiles { lead, n_groups, per_group: hybrid.n_heads / n_groups, unit })
    }

    fn values(
        &mut self,
        rule: &Rule,
        parts: &[(String, Tensor)],
        is_packed: bool,
        rows: usize,
    ) -> Result<Values, ConvertError> {
        let Some((name, _)) = parts.first() else { return Ok(Values::Real) };
        if !is_packed {
            let is_spared = self.reading.spared.iter().any(|part| name.contains(part.as_str()));
            if !rule.linear || is_spared {
                return Ok(Values::Real);
            }
            let masters = self.reading.masters.clone();
            let masters = masters.map_err(|detail| ConvertError::tensor(name, detail).avoided_by(TERNARY))?;
            return Ok(if masters { Values::Masters } else { Values::Real });
        }
        if parts.len() > 1 {
            return Err(ConvertError::tensor(name, "want real-valued experts, found packed codes"));
        }
        let meaning = self.reading.scale.clone();
        let meaning = meaning.map_err(|detail| ConvertError::tensor(name, detail).avoided_by(SCALE))?;
        let short = short_name(name);
        let scale = short.strip_suffix(".weight").map(|stem| format!("{stem}.weight_scale"));
        let found = scale.as_ref().and_then(|scale| self.named.take(scale));
        let Some((scale, tensor)) = found else {
            return Err(missing(&scale.unwrap_or_else(|| format!("{short}_scale"))));
        };
        let bytes = self.named.checkpoint.bytes(&tensor);
        let bytes = bytes.map_err(|detail| ConvertError::tensor(&scale, detail))?;
        let scales = ternary::scales(tensor.elem, &bytes, rows, meaning);
        let scales = scales.map_err(|detail| ConvertError::tensor(&scale, detail))?;
        Ok(Values::Packed { scales })
    }
}

/// A checkpoint's name as used in the rules.
pub fn short_name(name: &str) -> String {
    match PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((prefix, instead)) => format!("{instead}{}", &name[prefix.len()..]),
        None => name.to_owned(),
    }
}

fn missing(name: &str) -> ConvertError {
    ConvertError::tensor(name, "is missing")
}

/// The type in which a tensor is computed, before conversion to the file's type.
fn made_in(rule: &Rule, values: &Values, elem: Elem) -> &'static dyn QuantType {
    match (values, rule.change) {
        (Values::Real, _) if rule.factors.is_some() => &types::F32,
        (Values::Real, Change::AddOne | Change::Decay | Change::TileDecay)
        | (Values::Packed { .. } | Values::Masters | Values::Computed(_), _) => &types::F32,
        // The embedding, the head and linear weights keep their type until the file's type is known. Norms,
        // biases, routers and positions are f32 in every file.
        (Values::Real, _)
            if rule.linear || matches!(rule.shape.first(), Some(Dim::Vocab | Dim::LayerVocab)) =>
        {
            elem.ty().unwrap_or(&types::F32)
        }
        (Values::Real, _) => &types::F32,
    }
}

/// `rope_freqs.weight`: Llama 3.1's divisors of the frequencies, computed in f32 like in llama.cpp's
/// converter.
fn rope_factors(rope: &Rope, head_dim: usize) -> Option<OutputTensor> {
    let RopeScaling::Llama3 { factor, low, high, original } = rope.scaling else { return None };
    let of = |pair: usize| {
        let exponent = (2 * pair) as f32 / head_dim as f32;
        let freq = 1.0 / (rope.base.powf(f64::from(exponent)) as f32);
        // PyTorch computes number / tensor as number x reciprocal.
        let wavelength = (1.0 / freq) * std::f32::consts::TAU;
        if wavelength < (original / high) as f32 {
            return 1.0;
        }
        if wavelength > (original / low) as f32 {
            return factor as f32;
        }
        let smooth = ((1.0 / wavelength) * original as f32 - low as f32) / (high - low) as f32;
        1.0 / ((1.0 - smooth) / factor as f32 + smooth)
    };
    let bytes: Vec<u8> = (0..head_dim / 2).flat_map(|pair| of(pair).to_le_bytes()).collect();
    Some(computed("rope_freqs.weight".to_owned(), vec![head_dim / 2], bytes.into()))
}

/// `rope_freqs.weight` of a RoPE that rotates only a share of the pairs, with the frequencies of all: the
/// other ones are divided by so much that they do not rotate, as in llama.cpp's converter.
fn partial_rope(rope: &Rope, head_dim: usize) -> Option<OutputTensor> {
    let RopeScaling::Partial(share) = rope.scaling else { return None };
    let (pairs, rotated) = (head_dim / 2, (share * head_dim as f64 / 2.0) as usize);
    let factors: Vec<f32> = (0..pairs).map(|pair| if pair < rotated { 1.0 } else { 1e30 }).collect();
    Some(computed("rope_freqs.weight".to_owned(), vec![pairs], f32s(&factors)))
}

/// The two tables of long RoPE.
fn long_rope(rope: &Rope) -> Vec<OutputTensor> {
    let RopeScaling::Long { short, long, .. } = &rope.scaling else { return Vec::new() };
    let tables = [("long", long), ("short", short)];
    let of = |(name, table): (&str, &Vec<f32>)| {
        computed(format!("rope_factors_{name}.weight"), vec![table.len()], f32s(table))
    };
    tables.map(of).into()
}

/// Numbers of xIELU in all layers, by their keys.
///
/// # Errors
/// [`ConvertError::Tensor`] if one is missing, or is not one real number.
pub fn xielu(
    named: &mut NamedTensors<'_>,
    arch: &Architecture,
    n_layers: usize,
) -> Result<Vec<(String, Vec<f32>)>, ConvertError> {
    let mut all = Vec::new();
    for key in ["alpha_p", "alpha_n", "beta", "eps"] {
        let mut numbers = Vec::with_capacity(n_layers);
        for layer in 0..n_layers {
            let name = format!("{}{layer}.mlp.act_fn.{key}", arch.layers);
            let (_, tensor) = named.take(&name).ok_or_else(|| missing(&name))?;
            let bytes = named.checkpoint.bytes(&tensor).map_err(|err| ConvertError::tensor(&name, err))?;
            match ternary::reals(tensor.elem, &bytes).as_deref() {
                Some([number]) => numbers.push(*number),
                _ => return Err(ConvertError::tensor(&name, "want one real number")),
            }
        }
        all.push((format!("xielu.{key}"), numbers));
    }
    Ok(all)
}

/// A matrix applied after the pooling.
///
/// # Errors
/// [`ConvertError::Tensor`] if it is missing, has a different shape or type, or has a bias.
pub fn dense(module: &Dense) -> Result<OutputTensor, ConvertError> {
    const NAME: &str = "linear.weight";
    let tensor = module.checkpoint.get(NAME).ok_or_else(|| missing(NAME))?;
    if let Some(other) = module.checkpoint.names().find(|name| *name != NAME) {
        return Err(ConvertError::tensor(other, format!("does not belong to {}", module.name)));
    }
    let dims = vec![module.n_out, module.n_in];
    if tensor.shape != dims || !tensor.elem.is_real() {
        let detail = format!("want real numbers, {dims:?}, found {} {:?}", tensor.elem.name(), tensor.shape);
        return Err(ConvertError::tensor(NAME, detail));
    }
    let bytes = module.checkpoint.bytes(tensor).map_err(|detail| ConvertError::tensor(NAME, detail))?;
    let reals = ternary::reals(tensor.elem, &bytes).expect("its type was checked");
    Ok(computed(format!("{}.weight", module.name), dims, f32s(&reals)))
}

/// A tensor computed in f32.
fn computed(name: String, dims: Vec<usize>, bytes: Bytes) -> OutputTensor {
    let info = TensorInfo {
        name,
        dims,
        type_id: 0,
        ty: Some(&types::F32),
        type_name: String::new(),
        part: 0,
        start: 0,
        n_bytes: 0,
    };
    let (values, parts) = (Values::Computed(bytes), Vec::new());
    let (change, n_heads, tiles) = (Change::None, 1, None);
    let (factors, kept) = (Vec::new(), (0..0, 0));
    OutputTensor { info, linear: false, values, parts, change, n_heads, tiles, factors, kept }
}

impl OutputTensor {
    /// Leaves out all rows after the first `n`.
    pub fn cut_rows(&mut self, n: usize) {
        if matches!(self.change, Change::CutVocab | Change::PadVocab) {
            self.info.dims[0] = self.info.dims[0].min(n);
        }
    }

    /// The type of its elements in the checkpoint, if there is a weight type like it.
    pub fn source_type(&self) -> Option<&'static dyn QuantType> {
        self.parts.first().and_then(|(_, part)| part.elem.ty())
    }

    /// Computes the whole tensor.
    ///
    /// # Errors
    /// Name of a tensor of the checkpoint, with the reason why it cannot be read or the position of an
    /// invalid code.
    pub fn make(&self, checkpoint: &Checkpoint) -> Result<HostTensor, (String, String)> {
        let bytes = match (&self.values, &self.parts[..]) {
            (Values::Computed(bytes), _) => bytes.clone(),
            (_, [(name, part)]) => self.part(checkpoint, name, part)?,
            (_, parts) => {
                let mut all = Vec::new();
                for (name, part) in parts {
                    all.extend_from_slice(&self.part(checkpoint, name, part)?);
                }
                all.into()
            }
        };
        let (rows, cols) = (self.info.rows(), self.info.cols());
        let ty = self.info.ty.expect("every tensor is made in a type");
        Ok(HostTensor { name: self.info.name.clone(), ty, rows, cols, bytes })
    }

    fn part(&self, checkpoint: &Checkpoint, name: &str, part: &Tensor) -> Result<Bytes, (String, String)> {
        let bytes = checkpoint.bytes(part).map_err(|detail| (name.to_owned(), detail))?;
        let mut cols = part.shape.last().copied().unwrap_or(1);
        let n_matrices = if part.shape.len() > 2 { part.shape[0] } else { 1 };
        let bytes = match self.change {
            Change::Either | Change::EitherFirstHalf | Change::EitherSecondHalf
                if cols != self.info.cols() =>
            {
                let elem_bytes = bytes.len() / part.shape.iter().product::<usize>().max(1);
                let matrices = bytes.chunks_exact((bytes.len() / n_matrices).max(1));
                let of = matrices.flat_map(|matrix| transposed(matrix, cols, elem_bytes));
                let of: Vec<u8> = of.collect();
                cols = self.info.cols();
                of.into()
            }
            _ => bytes,
        };
        let bytes = match self.change {
            Change::FirstHalf | Change::EitherFirstHalf => half(&bytes, n_matrices, 0),
            Change::SecondHalf | Change::EitherSecondHalf => half(&bytes, n_matrices, 1),
            Change::FirstFrame => half(&bytes, part.shape[0] * part.shape[1], 0),
            Change::SecondFrame => half(&bytes, part.shape[0] * part.shape[1], 1),
            _ => bytes,
        };
        let reals = || ternary::reals(part.elem, &bytes).expect("the plan checked the type");
        let (bytes, elem_bytes) = match &self.values {
            Values::Packed { scales } => {
                let codes = ternary::unpack(&bytes, cols).map_err(|(row, col)| {
                    let detail = format!("want codes 0, 1 and 2, found 3 at row {row}, column {col}");
                    (name.to_owned(), detail)
                })?;
                let scale = |row: usize| scales[if scales.len() == 1 { 0 } else { row }];
                let rows = codes.chunks_exact(cols.max(1)).enumerate();
                // Adding 0 turns -0 into 0.
                let value = |row: usize, code: &i8| (f32::from(*code) * scale(row) + 0.0).to_le_bytes();
                let mut out = Vec::with_capacity(4 * codes.len());
                rows.for_each(|(row, codes)| codes.iter().for_each(|code| out.extend(value(row, code))));
                (Bytes::from(out), 4)
            }
            Values::Masters => {
                let mut values = reals();
                // Each expert is rounded separately.
                let matrix_elems = (values.len() / n_matrices).max(1);
                values.chunks_exact_mut(matrix_elems).for_each(ternary::absmean);
                (f32s(&values), 4)
            }
            _ if !self.factors.is_empty() => {
                let factors =
                    self.factors.iter().flat_map(|(rows, factor)| std::iter::repeat_n(*factor, *rows));
                let mut values = reals();
                for (row, factor) in values.chunks_exact_mut(cols.max(1)).zip(factors) {
                    row.iter_mut().for_each(|value| *value *= factor as f32);
                }
                (f32s(&values), 4)
            }
            _ if self.change == Change::AddOne => {
                (f32s(&reals().iter().map(|value| value + 1.0).collect::<Vec<_>>()), 4)
            }
            _ if matches!(self.change, Change::Decay | Change::TileDecay) => {
                let decay = |value: f32| -f64::from(value).exp() as f32;
                (f32s(&reals().into_iter().map(decay).collect::<Vec<_>>()), 4)
            }
            _ if part.elem != Elem::F32 && self.info.ty.is_some_and(|ty| ty.is(&types::F32)) => {
                (f32s(&reals()), 4)
            }
            _ => {
                let elem_bytes = part.elem.ty().map_or(4, |ty| ty.row_bytes(1).unwrap_or(4));
                (bytes, elem_bytes)
            }
        };
        let row_bytes = if part.shape.len() == 1 { elem_bytes } else { cols * elem_bytes };
        let tiles = |rows: &[u8], step: usize| {
            let mut out = Vec::with_capacity(rows.len());
            let tiles = self.tiles.expect("the rule's change is one");
            rows.chunks_exact(step.max(1)).for_each(|rows| tiles.extend(&mut out, rows));
            Bytes::from(out)
        };
        Ok(match self.change {
            Change::PermuteQ | Change::PermuteK => permuted(&bytes, self.n_heads, row_bytes),
            Change::TileRows | Change::TileDecay => tiles(&bytes, bytes.len()),
            Change::TileCols => tiles(&bytes, row_bytes),
            Change::Transpose => transposed(&bytes, cols, elem_bytes),
            Change::KeysOfHeads => {
                let heads = self.kept(&bytes, row_bytes);
                heads.flat_map(|head| transposed(head, cols, elem_bytes)).collect::<Vec<u8>>().into()
            }
            Change::QueriesOfGroups | Change::KeysOfGroups => {
                permuted(&self.kept(&bytes, row_bytes).collect::<Vec<_>>().concat(), self.n_heads, row_bytes)
            }
            Change::ValuesOfHeads
            | Change::ValuesOfGroups
            | Change::FirstThird
            | Change::SecondThird
            | Change::LastThird => self.kept(&bytes, row_bytes).collect::<Vec<_>>().concat().into(),
            Change::Ungroup => {
                let (queries, rows) = (self.kept.0.end, self.kept.1);
                let keys = queries + (rows - queries) / 2;
                let mut out = Vec::with_capacity(bytes.len());
                for part in [0..queries, queries..keys, keys..rows] {
                    let groups = bytes.chunks_exact((rows * row_bytes).max(1));
                    groups.for_each(|group| {
                        out.extend_from_slice(&group[part.start * row_bytes..part.end * row_bytes]);
                    });
                }
                out.into()
            }
            Change::ChannelsFirst => {
                let patches = bytes.chunks_exact(row_bytes.max(1));
                patches.flat_map(|patch| transposed(patch, CHANNELS, elem_bytes)).collect::<Vec<u8>>().into()
            }
            Change::CutVocab => bytes.slice(..self.info.dims[0] * cols * elem_bytes),
            // Up to the rows of the file's tensor.
            Change::PadVocab => {
                let mut rows = bytes.to_vec();
                rows.resize(self.info.dims[0] * row_bytes, 0);
                rows.into()
            }
            Change::None
            | Change::AddOne
            | Change::Decay
            | Change::Stack
            | Change::StackStreams
            | Change::FirstHalf
            | Change::SecondHalf
            | Change::Either
            | Change::EitherFirstHalf
            | Change::EitherSecondHalf
            | Change::FirstFrame
            | Change::SecondFrame => bytes,
        })
    }
}

impl OutputTensor {
    /// The rows that are kept of each group.
    fn kept<'b>(&'b self, bytes: &'b [u8], row_bytes: usize) -> impl Iterator<Item = &'b [u8]> {
        let (Range { start, end }, rows) = self.kept.clone();
        let groups = bytes.chunks_exact((rows * row_bytes).max(1));
        groups.map(move |group| &group[start * row_bytes..end * row_bytes])
    }
}
