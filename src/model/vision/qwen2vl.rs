//! Qwen2-VL: pictures of any size, 2-D RoPE without learned positions, LayerNorm, quick GELU, and a network
//! over four joined patches.

use super::qwen3vl::{SIDE, frames, merger, sizing, two_axes};
use super::tower::{File, Merge, Projector, Vision};
use crate::ModelError;

/// Qwen2-VL.
pub static PROJECTOR: Projector = Projector { names: &["qwen2vl_merger"], read };

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let head_dim = file.hyper.head_dim;
    let (sizing, most) = sizing(file);
    let mut post_norm = None;
    if let Some(act) = file.act {
        return Err(ModelError::Metadata {
            key: "clip.use_gelu".to_owned(),
            want: "neither this nor clip.use_silu: quick GELU".to_owned(),
            got: format!("{act:?}"),
        });
    }
    let tower = file.half(most * SIDE * SIDE, "v.", |m| {
        if !head_dim.is_multiple_of(4) {
            return Err(m.wrong("vision.attention.head_count", "heads of a multiple of 4", head_dim));
        }
        // The first converter of llama.cpp wrote a placeholder.
        m.leave_out(|name| name == "v.position_embd.weight");
        let x = frames(file, m)?;
        let rope = m.declared_rope(two_axes(head_dim));
        file.quick_blocks(m, x, rope)?;
        post_norm = Some(file.post_norm(m)?);
        Ok(())
    })?;
    let halves = [tower, merger(file, most)?];
    let around = ["<|vision_start|>", "<|vision_end|>"];
    Ok(Vision { post_norm, axes: true, ..file.vision(halves, sizing, Merge::Join { side: SIDE }, around) })
}
