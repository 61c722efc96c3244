//! Pixtral, Mistral Small 3.1 and later, Ministral 3: pictures up to a longest side, 2-D RoPE without learned
//! positions, RMS norms and gated networks, and a network over patches, or over joined ones after a matrix. A
//! learned row ends each row of tokens but the last.

use super::tower::{File, Merge, Projector, RowNorm, Sizing, Vision};
use crate::{Builder, ModelError};
use sterna_program::{Act, Axis, Buf, FfnIn, NormKind, ProjAdd, Rope, RopeStyle, RowsOf};

/// Pixtral.
pub static PROJECTOR: Projector = Projector { names: &["pixtral"], read };

/// Largest side of a block of patches; larger ones are treated as a damaged file.
const MOST_SIDE: usize = 8;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, text_dim, head_dim) = (file.hyper.dim, file.text_dim, file.hyper.head_dim);
    let side = file.number("spatial_merge_size", 1, 1..=MOST_SIDE)?;
    let step = side * file.patch;
    // A square of the longest side has the most tokens.
    let most_of_side = file.limits.max.map_or(usize::MAX, |most| most.max(1).isqrt());
    let longest = file.image.min(most_of_side.saturating_mul(step));
    let tokens = longest.div_ceil(step).pow(2);
    let (mut row_end, mut post_norm) = (None, None);
    let tower = file.half(tokens * side * side, "v.", |m| {
        let inputs = file.patch_elems();
        let [patches, x] =
            [("patches", inputs), ("x", dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let weight = m.elements("v.patch_embd.weight", dim * inputs)?;
        let w = m.layer_of("v.patch_embd", weight, dim, inputs)?;
        let post = Some(m.rms_norm("v.pre_ln", dim)?);
        m.push("patches", ProjAdd { post, ..ProjAdd::plain(patches, w, x) });
        if !head_dim.is_multiple_of(4) {
            return Err(m.wrong("vision.attention.head_count", "heads of a multiple of 4", head_dim));
        }
        let rope = m.declared_rope(two_axes(head_dim));
        file.gated_blocks(m, x, rope)?;
        row_end = Some(m.elements("v.token_embd.img_break", text_dim)?);
        Ok(())
    })?;
    let joined = side * side * dim;
    let merger = file.half(tokens, "mm.", |m| {
        let [x, hidden, out] = [("x", joined), ("h", text_dim), ("out", text_dim)]
            .map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        const NORM: &str = "mm.input_norm.weight";
        if m.has(NORM) {
            let (weight, eps) = (m.elements(NORM, dim)?, file.hyper.norm_eps);
            post_norm = Some(RowNorm { kind: NormKind::Rms, weight, bias: None, eps });
        }
        let x = if m.has("mm.patch_merger.weight") || side > 1 { merged(m, x, side, dim)? } else { x };
        let up = m.projection("mm.1", text_dim, dim)?;
        m.push("merge_in", FfnIn::plain(x, None, up, Act::Gelu, hidden));
        let w = m.projection("mm.2", text_dim, text_dim)?;
        m.push("merge_out", ProjAdd::plain(hidden, w, out));
        Ok(())
    })?;
    let sizing = Sizing::Longest { step: step as u32, longest: longest as u32 };
    Ok(Vision {
        post_norm,
        row_end,
        ..file.vision([tower, merger], sizing, Merge::Join { side }, ["", "[IMG_END]"])
    })
}

/// The product of joined patches with `mm.patch_merger`, whose inputs are ordered by columns of the patches,
/// and not by patches.
fn merged(m: &mut Builder<'_>, x: Buf, side: usize, dim: usize) -> Result<Buf, ModelError> {
    let (n, joined) = (side * side, side * side * dim);
    let merged = m.buf("merged", RowsOf::Step, dim);
    let stored = m.elements("mm.patch_merger.weight", dim * joined)?;
    let order = (0..n).flat_map(|patch| (0..dim).map(move |col| col * n + patch));
    let order: Vec<usize> = order.collect();
    let w = stored.chunks_exact(joined).flat_map(|row| order.iter().map(|at| row[*at])).collect();
    let w = m.layer_of("mm.patch_merger", w, dim, joined)?;
    m.push("merge_patches", ProjAdd::plain(x, w, merged));
    Ok(merged)
}

/// The first half of the pairs is rotated by the row with the even ones of the head's frequencies, the second
/// half by the column with the odd ones.
fn two_axes(head_dim: usize) -> Rope {
    let quarter = head_dim / 4;
    let freq = |pair: usize| {
        let at = if pair < quarter { 2 * pair } else { 2 * (pair - quarter) + 1 };
        10000_f64.powf(-2.0 * at as f64 / head_dim as f64)
    };
    let axis = |pair: usize| if pair < quarter { Axis::Row } else { Axis::Column };
    let axes = Some((0..2 * quarter).map(axis).collect());
    let inv_freq = (0..2 * quarter).map(freq).collect();
    Rope { style: RopeStyle::Adjacent, inv_freq, magnitude: 1.0, axes, ahead: 0 }
}
