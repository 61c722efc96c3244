//! Chooses the type of each tensor of a model for a mix.

use ggml_types::{QuantType, types};

use super::mix::{MIXES, Mix, TensorPosition, fallback};
use super::{Override, QuantizeError, TensorSource};
use sterna_gguf::{Gguf, Metadata, TensorInfo, Value};

/// Role of a tensor, as far as its type depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Norms, biases, routers, position tables: small, and never quantised.
    Kept,
    TokenEmbd,
    Output,
    AttnV,
    AttnK,
    AttnOutput,
    FfnDown,
    Linear,
}

/// Parts of the names of matrices that are never quantised: small and sensitive, or added instead of
/// multiplied. Same as in llama.cpp.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
];

/// Architectures for which llama.cpp has other rules, which are not implemented.
const OTHER_RULES: [&str; 3] = ["falcon", "glm5-next", "bailingmoe3"];

/// Architectures and layers that llama.cpp uses to recognise Llama 2 70B and similar models, whose `attn_v`
/// is never below Q5_K.
const SEVENTIES: [(&str, usize); 5] =
    [("llama", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)];

impl Role {
    pub(super) fn of(info: &TensorInfo) -> Self {
        let name = info.name.as_str();
        let has = |part: &str| name.contains(part);
        match name {
            // Outer dimensions of 1 are ignored.
            _ if info.dims.iter().skip_while(|dim| **dim == 1).count() < 2 => Self::Kept,
            _ if !name.ends_with("weight") || KEPT.iter().any(|kept| has(kept)) => Self::Kept,
            "output.weight" => Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Self::TokenEmbd,
            _ if ["attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight"].into_iter().any(has) => Self::AttnV,
            _ if has("attn_k.weight") => Self::AttnK,
            _ if has("attn_output.weight") => Self::AttnOutput,
            _ if has("ffn_down") => Self::FfnDown,
            _ => Self::Linear,
        }
    }
}

/// Properties of a model that a mix uses in addition to names and shapes.
struct Shape {
    n_layers: usize,
    n_experts: usize,
    /// Query heads that share a KV head.
    group: usize,
    is_seventy: bool,
    /// True if the embedding is also the head.
    tied: bool,
    n_attn_v: usize,
}

impl Shape {
    fn of(source: &dyn TensorSource, mix: &'static Mix, pure: bool) -> Result<Self, QuantizeError> {
        let metadata = source.metadata();
        metadata.check_is_model()?;
        let architecture = metadata.require_str("general.architecture")?;
        if OTHER_RULES.contains(&architecture) && !pure {
            return Err(QuantizeError::Architecture { found: architecture.to_owned(), mix: mix.name });
        }
        let n_layers = metadata.require_u32(&format!("{architecture}.block_count"))? as usize;
        let experts = metadata.u32(&format!("{architecture}.expert_count"))?.unwrap_or(0) as usize;
        let heads = first(metadata, &format!("{architecture}.attention.head_count"))?;
        let kv_heads = first(metadata, &format!("{architecture}.attention.head_count_kv"))?;
        let (heads, kv_heads) = (heads.unwrap_or(0), kv_heads.or(heads).unwrap_or(0));
        // Llama 1 65B has 80 layers, and as many KV heads as query heads.
        let is_seventy =
            SEVENTIES.contains(&(architecture, n_layers)) && (architecture != "llama" || heads != kv_heads);
        Ok(Self {
            n_layers,
            n_experts: if experts > 1 { experts } else { 0 },
            group: heads.checked_div(kv_heads).unwrap_or(0),
            is_seventy,
            tied: !source.tensors().iter().any(|info| info.name == "output.weight"),
            n_attn_v: source.tensors().iter().filter(|info| Role::of(info) == Role::AttnV).count(),
        })
    }
}

/// Reads a number, or the first number of an array with one per layer.
fn first(metadata: &Metadata, key: &str) -> Result<Option<usize>, QuantizeError> {
    if let Some(Value::Array(array)) = metadata.get(key) {
        let first = array.values().next().and_then(|value| value.as_int());
        return Ok(first.and_then(|number| usize::try_from(number).ok()));
    }
    Ok(metadata.u32(key)?.map(|number| number as usize))
}

/// Types that the options request in addition to the mix.
#[derive(Clone, Copy)]
pub(super) struct Requested<'a> {
    pub token_embd: Option<&'static dyn QuantType>,
    pub output: Option<&'static dyn QuantType>,
    pub leave_output: bool,
    pub pure: bool,
    pub overrides: &'a [Override],
    pub has_imatrix: bool,
}

/// Returns the type of every tensor, in file order, before any fallback; `None` for tensors that are copied.
///
/// # Errors
/// [`QuantizeError::Gguf`] if required metadata is missing; [`QuantizeError::Architecture`];
/// [`QuantizeError::Layer`].
pub(super) fn types(
    source: &dyn TensorSource,
    mix: &'static Mix,
    asked: Requested<'_>,
) -> Result<Vec<Option<&'static dyn QuantType>>, QuantizeError> {
    let shape = Shape::of(source, mix, asked.pure)?;
    let mut order: Vec<usize> = (0..source.tensors().len()).collect();
    // Rules count layers in order of processing, so tensors are sorted by layer, regardless of the order in
    // the file.
    order.sort_by_key(|&at| {
        let name = source.tensors()[at].name.as_str();
        (layer_of(name).map_or(-1, |layer| layer as i128), name)
    });
    let mut chooser = Chooser { mix, shape, asked, n_attn_v: 0, n_ffn_down: 0 };
    let mut out = vec![None; order.len()];
    for at in order {
        out[at] = chooser.choose(&source.tensors()[at])?;
    }
    Ok(out)
}

/// The mixes that give every tensor of the file its actual type, with or without an importance matrix.
pub fn mixes_of(gguf: &Gguf) -> Vec<&'static Mix> {
    let made_by = |mix: &'static Mix, has_imatrix| {
        let (token_embd, output, leave_output, pure) = (None, None, false, false);
        let asked = Requested { token_embd, output, leave_output, pure, overrides: &[], has_imatrix };
        let Ok(types) = types(gguf, mix, asked) else { return false };
        let mut chosen =
            gguf.tensors().iter().zip(types).filter_map(|(info, ty)| Some((info, ty?))).peekable();
        let is_of_type = |(info, ty): (&TensorInfo, &'static dyn QuantType)| {
            info.ty.is_some_and(|found| found.is(fallback(ty, info.cols())))
        };
        chosen.peek().is_some() && chosen.all(is_of_type)
    };
    MIXES.iter().filter(|mix| made_by(mix, false) || made_by(mix, true)).collect()
}

/// The mix by whose rules every tensor has its type, named as in llama-quantize. If several match, the one in
/// `general.file_type`. File names and that number alone prove nothing.
pub fn mix_of(gguf: &Gguf) -> Option<&'static Mix> {
    let said = gguf.metadata().u32("general.file_type").ok().flatten();
    let mixes = mixes_of(gguf);
    mixes.iter().find(|mix| Some(mix.file_type) == said).or(mixes.first()).copied()
}

/// Processes a file's tensors layer by layer.
struct Chooser<'a> {
    mix: &'static Mix,
    shape: Shape,
    asked: Requested<'a>,
    /// Tensors with these roles so far.
    n_attn_v: usize,
    n_ffn_down: usize,
}

impl Chooser<'_> {
    fn choose(&mut self, info: &TensorInfo) -> Result<Option<&'static dyn QuantType>, QuantizeError> {
        let role = Role::of(info);
        let (mix, asked) = (self.mix, self.asked);
        if role == Role::Kept || (role == Role::Output && asked.leave_output) {
            return Ok(None);
        }
        let named = asked.overrides.iter().find(|rule| rule.pattern.is_match(&info.name)).map(|rule| rule.ty);
        let is_extra = info.name == "per_layer_token_embd.weight" && named.is_some();
        let said = match role {
            Role::TokenEmbd if !is_extra => asked.token_embd,
            Role::Output => asked.output,
            _ => None,
        };
        if let Some(ty) = said.or(named) {
            return Ok(Some(ty));
        }
        Ok(Some(if asked.pure { mix.body } else { self.by_rule(role, info)? }))
    }

    fn by_rule(&mut self, role: Role, info: &TensorInfo) -> Result<&'static dyn QuantType, QuantizeError> {
        let Self { mix, asked, .. } = *self;
        let Shape { n_layers, n_experts, group, .. } = self.shape;
        let place =
            |layer, n_layers| TensorPosition { layer, n_layers, group, has_imatrix: asked.has_imatrix };
        let is_head = role == Role::Output || (role == Role::TokenEmbd && self.shape.tied);
        if is_head {
            // llama.cpp checks whether rows are multiples of the body's block size, not of the head's.
            let holds = info.cols().is_multiple_of(mix.body.block_elems());
            let ty = if holds { mix.output } else { &types::Q8_0 };
            return Ok(asked.output.unwrap_or(ty));
        }
        if let Some((experts, others)) = mix.experts {
            return Ok(if info.dims.len() > 2 && info.dims[0] > 1 { experts } else { others });
        }
        Ok(match role {
            Role::TokenEmbd => mix.token_embd.ty(mix.body, place(0, n_layers)),
            Role::AttnV => {
                let mut ty = mix.attn_v.ty(mix.body, place(self.n_attn_v, self.shape.n_attn_v));
                let is_low = ty.is(&types::Q3K) || ty.is(&types::Q4K);
                if self.shape.is_seventy && is_low {
                    ty = &types::Q5K;
                }
                self.n_attn_v += 1;
                if n_experts == 8 { &types::Q8_0 } else { ty }
            }
            Role::AttnK if n_experts == 8 => &types::Q8_0,
            Role::AttnOutput if n_experts == 8 => mix.attn_output_of_eight.ty(mix.body, place(0, n_layers)),
            Role::AttnOutput => mix.attn_output.ty(mix.body, place(0, n_layers)),
            Role::FfnDown => {
                // The experts of one layer may be several tensors.
                let layer = if n_experts > 0 { self.layer(info)? } else { self.n_ffn_down };
                self.n_ffn_down += 1;
                mix.ffn_down.ty(mix.body, place(layer, n_layers))
            }
            _ => mix.body,
        })
    }

    fn layer(&self, info: &TensorInfo) -> Result<usize, QuantizeError> {
        let n_layers = self.shape.n_layers;
        let found = layer_of(&info.name).filter(|&layer| layer < n_layers);
        found.ok_or_else(|| QuantizeError::Layer { name: info.name.clone(), n_layers })
    }
}

/// The layer number of a name such as `blk.7.attn_q.weight`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}
