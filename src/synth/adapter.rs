//! The keys and tensors of random LoRA adapters.

use sterna_gguf::Metadata;

use super::{Fill, Spec, SynthError, Tensor, names, type_named};

/// Matrices that get pairs, by the last part of their names.
const MATRICES: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

pub(super) fn metadata(spec: &Spec, rank: usize) -> Metadata {
    let model = names::metadata(spec);
    let architecture = model.str("general.architecture").ok().flatten().unwrap_or_default();
    let mut metadata = Metadata::default();
    metadata.set("general.type", "adapter");
    metadata.set("general.architecture", architecture);
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", rank as f32);
    metadata
}

/// A pair for each matrix: `[rank, cols]` and `[rows, rank]`.
pub(super) fn tensors(spec: &Spec, rank: usize) -> Result<Vec<Tensor>, SynthError> {
    let ty = type_named("type", "f16")?;
    let is_adapted = |tensor: &Tensor| {
        let stem = tensor.name.strip_prefix("blk.").and_then(|name| name.strip_suffix(".weight"));
        let stem = stem.and_then(|name| name.split_once('.')).map(|(_, stem)| stem);
        tensor.dims.len() == 2 && stem.is_some_and(|stem| MATRICES.contains(&stem))
    };
    let pair = |tensor: Tensor| {
        let [rows, cols] = [tensor.dims[0], tensor.dims[1]];
        let half = |name: &str, dims: [usize; 2], size: f32| Tensor {
            name: format!("{}.{name}", tensor.name),
            dims: dims.into(),
            ty,
            fill: Fill::Dense(size / (dims[1] as f32).sqrt()),
        };
        // Products with the first half are as large as its input.
        [half("lora_a", [rank, cols], 1.0), half("lora_b", [rows, rank], 0.1)]
    };
    Ok(names::tensors(spec).into_iter().filter(is_adapted).flat_map(pair).collect())
}
