//! Qwen2.5-VL: pictures of any size, 2-D RoPE without learned positions, RMS norms and gated networks with
//! biases, attention within windows in most blocks, and a network over four joined patches.

use super::qwen3vl::{SIDE, frames, merger, sizing, two_axes};
use super::tower::{File, Merge, Projector, RowNorm, Vision, Windows};
use crate::ModelError;
use sterna_program::NormKind;

/// Qwen2.5-VL.
pub static PROJECTOR: Projector = Projector { names: &["qwen2.5vl_merger"], read };

/// Side of a window in pixels, if a file does not specify it.
const WINDOW: usize = 112;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, head_dim) = (file.hyper.dim, file.hyper.head_dim);
    let (sizing, most) = sizing(file);
    let window = file.number("window_size", WINDOW, SIDE * file.patch..=1 << 13)?;
    let side = window / file.patch / SIDE * SIDE;
    let n_windows = most_windows(most, side / SIDE);
    let (mut post_norm, mut whole) = (None, Vec::new());
    let tower = file.half_of_windows(most * SIDE * SIDE, n_windows, side * side, "v.", |m| {
        const EVERY: &str = "vision.n_wa_pattern";
        let every = m.number(EVERY)?;
        if every == 0 {
            return Err(m.wrong(EVERY, "1 or more", every));
        }
        let x = frames(file, m)?;
        if !head_dim.is_multiple_of(4) {
            return Err(m.wrong("vision.attention.head_count", "heads of a multiple of 4", head_dim));
        }
        let rope = m.declared_rope(two_axes(head_dim));
        let blocks = file.gated_blocks(m, x, rope)?;
        whole = blocks.into_iter().skip(every - 1).step_by(every).collect();
        let (weight, eps) = (m.elements("v.post_ln.weight", dim)?, file.hyper.norm_eps);
        post_norm = Some(RowNorm { kind: NormKind::Rms, weight, bias: None, eps });
        Ok(())
    })?;
    Ok(Vision {
        windows: Some(Windows { side, whole }),
        post_norm,
        axes: true,
        ..file.vision(
            [tower, merger(file, most)?],
            sizing,
            Merge::Join { side: SIDE },
            ["<|vision_start|>", "<|vision_end|>"],
        )
    })
}

/// An upper bound on the number of windows of `side * side` tokens, for at most `tokens` of them. The sides
/// of a picture differ by at most 400 after rounding.
fn most_windows(tokens: usize, side: usize) -> usize {
    let both_sides = (tokens + 1).min(2 * (200 * tokens).isqrt() + 2);
    (tokens + (side - 1) * both_sides + (side - 1).pow(2)) / (side * side) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_picture_has_more_windows() {
        for tokens in [1, 8, 100, 4096, 16384] {
            let most = most_windows(tokens, 4);
            for rows in 1..=tokens.isqrt() {
                let columns = (tokens / rows).min(400 * rows);
                let windows = rows.div_ceil(4) * columns.div_ceil(4);
                assert!(windows <= most, "{rows} x {columns}: {windows} of {most}");
            }
        }
    }
}
