//! Names of the tensors and metadata of Gemma 3's vision tower, as in published mmproj files.

use ggml_types::{QuantType, types};

use super::preset::{Spec, Tower};
use super::{Fill, Tensor};
use sterna_gguf::{Array, Metadata};

pub(super) fn metadata(spec: &Spec, tower: Tower) -> Metadata {
    let mut out = Metadata::default();
    out.set("general.architecture", "clip");
    out.set("general.type", "mmproj");
    out.set("general.name", spec.name.as_str());
    out.set("clip.has_vision_encoder", true);
    out.set("clip.projector_type", "gemma3");
    out.set("clip.use_gelu", true);
    for (key, value) in [
        ("image_size", tower.image),
        ("patch_size", tower.patch),
        ("embedding_length", spec.dim),
        ("feed_forward_length", spec.ffn_dim),
        ("block_count", spec.n_layers),
        ("attention.head_count", spec.n_heads),
        ("projection_dim", tower.text_dim),
    ] {
        out.set(format!("clip.vision.{key}"), value as u32);
    }
    out.set("clip.vision.attention.layer_norm_epsilon", spec.norm_eps);
    for key in ["image_mean", "image_std"] {
        out.set(format!("clip.vision.{key}"), Array::from_f32s([0.5; 3]));
    }
    out
}

pub(super) fn tensors(spec: &Spec, tower: Tower) -> Vec<Tensor> {
    let (dim, ffn_dim, side) = (spec.dim, spec.ffn_dim, tower.image / tower.patch);
    let mut out = Vec::new();
    let mut push = |name: String, dims: &[usize], ty: &'static dyn QuantType, fill| {
        out.push(Tensor { name, dims: dims.to_vec(), ty, fill });
    };
    let of_sum = |n: usize| Fill::Dense(1.0 / (n as f32).sqrt());
    let kernel = [dim, 3, tower.patch, tower.patch];
    push("v.patch_embd.weight".into(), &kernel, &types::F32, of_sum(3 * tower.patch * tower.patch));
    push("v.patch_embd.bias".into(), &[dim], &types::F32, of_sum(dim));
    push("v.position_embd.weight".into(), &[side * side, dim], &types::F32, Fill::Dense(1.0));
    for layer in 0..spec.n_layers {
        let blk = |name: &str| format!("v.blk.{layer}.{name}");
        for norm in ["ln1", "ln2"] {
            push(blk(&format!("{norm}.weight")), &[dim], &types::F32, Fill::NearOne);
            push(blk(&format!("{norm}.bias")), &[dim], &types::F32, of_sum(dim));
        }
        for (name, rows, cols) in [
            ("attn_q", dim, dim),
            ("attn_k", dim, dim),
            ("attn_v", dim, dim),
            ("attn_out", dim, dim),
            ("ffn_up", ffn_dim, dim),
            ("ffn_down", dim, ffn_dim),
        ] {
            push(blk(&format!("{name}.weight")), &[rows, cols], spec.ty, of_sum(cols));
            push(blk(&format!("{name}.bias")), &[rows], &types::F32, of_sum(rows));
        }
    }
    push("v.post_ln.weight".into(), &[dim], &types::F32, Fill::NearOne);
    push("v.post_ln.bias".into(), &[dim], &types::F32, of_sum(dim));
    push("mm.soft_emb_norm.weight".into(), &[dim], &types::F32, Fill::NearOne);
    push("mm.input_projection.weight".into(), &[dim, tower.text_dim], spec.head_ty, of_sum(dim));
    out
}
