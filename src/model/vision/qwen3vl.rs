//! Qwen3-VL, Qwen3.5 and later: pictures of any size, 2-D RoPE next to interpolated learned positions, and a
//! network over four joined patches. In Qwen3-VL, further networks read the rows after some blocks
//! (deepstack).

use std::sync::Arc;

use super::tower::{Deepstack, File, Half, Merge, Projector, Sizing, Vision};
use crate::{Builder, ModelError};
use sterna_gguf::Value;
use sterna_program::{Act, Axis, Buf, FfnIn, ProjAdd, Rope, RopeStyle, RowsOf};

/// Qwen3-VL and Qwen3.5.
pub static PROJECTOR: Projector = Projector { names: &["qwen3vl_merger"], read };

/// Side of a block of patches.
pub(super) const SIDE: usize = 2;

/// Default limits on the tokens of an image.
const TOKENS: [usize; 2] = [8, 4096];

/// Largest number of tokens that may be asked for.
const MOST_TOKENS: usize = 16384;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, text_dim, head_dim) = (file.hyper.dim, file.text_dim, file.hyper.head_dim);
    let joined = SIDE * SIDE * dim;
    let (sizing, most) = sizing(file);
    let (mut post_norm, mut positions, mut ends) = (None, None, Vec::new());
    let tower = file.half(most * SIDE * SIDE, "v.", |m| {
        const MERGE: &str = "vision.spatial_merge_size";
        let side = m.number_or(MERGE, SIDE)?;
        if side != SIDE {
            return Err(m.wrong(MERGE, SIDE.to_string(), side));
        }
        let layers = deepstack_layers(m)?;
        if !head_dim.is_multiple_of(4) {
            return Err(m.wrong("vision.attention.head_count", "heads of a multiple of 4", head_dim));
        }
        let x = frames(file, m)?;
        let rope = m.declared_rope(two_axes(head_dim));
        file.blocks(m, x, Some(rope))?;
        let end = |layer| (layer, m.end_of(layer).expect("deepstack_layers has checked it"));
        ends.extend(layers.into_iter().map(end));
        post_norm = Some(file.post_norm(m)?);
        positions = Some(file.positions(m)?);
        Ok(())
    })?;
    let mut deepstack = Vec::with_capacity(ends.len());
    for (layer, end) in ends {
        let stem = format!("v.deepstack.{layer}");
        let merger = file.half(most, &format!("{stem}."), |m| {
            let [x, hidden, out] = bufs(m, joined, text_dim);
            let norm = m.layer_norm(&format!("{stem}.norm"), joined)?;
            let up = m.projection(&format!("{stem}.fc1"), joined, joined)?;
            m.push("merge_in", FfnIn::plain(x, norm, up, Act::Gelu, hidden));
            let w = m.projection(&format!("{stem}.fc2"), text_dim, joined)?;
            m.push("merge_out", ProjAdd::plain(hidden, w, out));
            Ok(())
        })?;
        deepstack.push(Deepstack { end, merger });
    }
    let merger = merger(file, most)?;
    Ok(Vision {
        deepstack,
        positions: positions.expect("read with the tower"),
        post_norm,
        axes: true,
        ..file.vision(
            [tower, merger],
            sizing,
            Merge::Join { side: SIDE },
            ["<|vision_start|>", "<|vision_end|>"],
        )
    })
}

/// The size of pictures within the limits, and the most tokens.
pub(super) fn sizing(file: &File<'_>) -> (Sizing, usize) {
    let [least, most] = [file.limits.min.unwrap_or(TOKENS[0]), file.limits.max.unwrap_or(TOKENS[1])];
    let most = most.clamp(1, MOST_TOKENS);
    let least = least.clamp(1, most);
    let step = SIDE * file.patch;
    let pixels = |tokens: usize| (tokens * step * step) as u64;
    let sizing = Sizing::Multiples { step: step as u32, min_pixels: pixels(least), max_pixels: pixels(most) };
    (sizing, most)
}

/// The product of patches with the kernels of both frames: a still image is two equal frames.
pub(super) fn frames(file: &File<'_>, m: &mut Builder<'_>) -> Result<Buf, ModelError> {
    let n = file.hyper.dim * file.patch_elems();
    let mut weight = m.elements("v.patch_embd.weight", n)?;
    let second = m.elements("v.patch_embd.weight.1", n)?;
    weight.iter_mut().zip(second).for_each(|(w, second)| *w += second);
    file.patches(m, weight)
}

/// The network over four joined patches.
pub(super) fn merger(file: &File<'_>, most: usize) -> Result<Half, ModelError> {
    let (joined, text_dim) = (SIDE * SIDE * file.hyper.dim, file.text_dim);
    file.half(most, "mm.", |m| {
        let [x, hidden, out] = bufs(m, joined, text_dim);
        let up = m.projection("mm.0", joined, joined)?;
        m.push("merge_in", FfnIn::plain(x, None, up, Act::Gelu, hidden));
        let w = m.projection("mm.2", text_dim, joined)?;
        m.push("merge_out", ProjAdd::plain(hidden, w, out));
        Ok(())
    })
}

/// The buffers of a merger.
fn bufs(m: &mut Builder<'_>, joined: usize, text_dim: usize) -> [Buf; 3] {
    [("x", joined), ("h", joined), ("out", text_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols))
}

/// The blocks after which further rows of an image are computed.
fn deepstack_layers(m: &Builder<'_>) -> Result<Vec<usize>, ModelError> {
    const DEEPSTACK: &str = "vision.is_deepstack_layers";
    let Some(value) = m.value(DEEPSTACK) else { return Ok(Vec::new()) };
    let n_layers = m.hyper().n_layers;
    let layers: Option<Vec<bool>> = match value {
        Value::Array(array) if array.len() == n_layers => array
            .values()
            .map(|layer| if let Value::Bool(is_one) = layer { Some(is_one) } else { None })
            .collect(),
        _ => None,
    };
    match layers {
        Some(layers) => Ok((0..n_layers).filter(|layer| layers[*layer]).collect()),
        None => Err(m.wrong(DEEPSTACK, format!("an array of {n_layers} booleans"), "another type")),
    }
}

/// The first half of the pairs is rotated by the row, the second one by the column, both with the frequencies
/// of half a head.
pub(super) fn two_axes(head_dim: usize) -> Rope {
    let quarter = head_dim / 4;
    let freq = |pair: usize| 10000_f64.powf(-2.0 * (pair % quarter) as f64 / (head_dim / 2) as f64);
    let axis = |pair: usize| if pair < quarter { Axis::Row } else { Axis::Column };
    let axes: Arc<[Axis]> = (0..2 * quarter).map(axis).collect();
    let inv_freq = (0..2 * quarter).map(freq).collect();
    Rope { style: RopeStyle::Halves, inv_freq, magnitude: 1.0, axes: Some(axes), ahead: 0 }
}
