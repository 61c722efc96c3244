//! Gemma 4: pictures at their proportions within a budget of tokens, two tables of positions, 2-D RoPE, norms
//! before and after each projection, clamped linear layers, and the mean of blocks of patches.

use std::ops::Range;

use super::tower::{Affine, File, Merge, Positions, Projector, Sizing, Vision};
use crate::Builder;
use crate::ModelError;
use crate::gemma4::CAUSAL_IMAGES;
use sterna_program::{
    Act, Attend, AttnIn, Axis, Clamp, FfnIn, Linear, ProjAdd, ProjIn, Rope, RopeStyle, RowsOf, Weight,
};

/// Gemma 4.
pub static PROJECTOR: Projector = Projector { names: &["gemma4v"], read };

/// Side of a block of patches, if a file does not specify it.
const SIDE: usize = 3;

/// Largest side of a block; larger ones are treated as a damaged file.
const MOST_SIDE: usize = 16;

/// Default budget of tokens of an image.
const TOKENS: usize = 280;

/// Largest budget.
const MOST_TOKENS: usize = 1120;

fn read(file: &File<'_>) -> Result<Vision, ModelError> {
    let (dim, text_dim) = (file.hyper.dim, file.text_dim);
    let tokens = file.limits.max.unwrap_or(TOKENS).clamp(1, MOST_TOKENS);
    let side = file.number("projector.scale_factor", SIDE, 1..=MOST_SIDE)?;
    let (mut positions, mut affine) = (None, None);
    let tower = file.half(tokens * side * side, "v.", |m| {
        let weight = m.elements("v.patch_embd.weight", dim * file.patch_elems())?;
        let x = file.patches(m, weight)?;
        blocks(file, m, x)?;
        const TABLE: &str = "v.position_embd.weight";
        let n = m.rows_of(TABLE).unwrap_or(0) / 2;
        let table = m.elements(TABLE, 2 * n * dim)?;
        let (columns, rows) = table.split_at(n * dim);
        positions = Some(Positions::Axes { columns: columns.to_vec(), rows: rows.to_vec(), n });
        let root = (dim as f32).sqrt();
        affine = Some(match m.has("v.std_scale") {
            true => {
                let scale = m.elements("v.std_scale", dim)?;
                let bias = m.elements("v.std_bias", dim)?;
                let offset = bias.iter().zip(&scale).map(|(bias, scale)| -bias * scale).collect();
                Affine { factor: scale.iter().map(|scale| scale * root).collect(), offset }
            }
            false => Affine { factor: vec![root; dim], offset: vec![0.0; dim] },
        });
        Ok(())
    })?;
    let merger = file.half(tokens, "mm.", |m| {
        let [x, out] = [("x", dim), ("out", text_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
        let norm = m.bare_rms_norm(dim);
        let w = m.projection("mm.input_projection", text_dim, dim)?;
        m.push("project", ProjIn { x, norm, products: vec![(w, out)] });
        Ok(())
    })?;
    let sizing = Sizing::Budget { step: (side * file.patch) as u32, tokens: tokens as u64 };
    Ok(Vision {
        is_centred: true,
        positions: positions.expect("read with the tower"),
        affine,
        whole_images: !CAUSAL_IMAGES.contains(&text_dim),
        ..file.vision([tower, merger], sizing, Merge::Mean { side }, ["<|image>", "<image|>"])
    })
}

fn blocks(file: &File<'_>, m: &mut Builder<'_>, x: sterna_program::Buf) -> Result<(), ModelError> {
    let (n_layers, dim, ffn_dim) = (file.hyper.n_layers, file.hyper.dim, file.hyper.ffn_dim);
    let (n_heads, head_dim) = (file.hyper.n_heads, file.hyper.head_dim);
    if !head_dim.is_multiple_of(4) {
        return Err(m.wrong("vision.attention.head_count", "heads of a multiple of 4", head_dim));
    }
    // llama.cpp's files do not name it.
    let act = file.act.unwrap_or(Act::GeluTanh);
    let [q, y, hidden] =
        [("q", dim), ("y", dim), ("h", ffn_dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
    let kv = m.kv_of_heads(n_heads, head_dim);
    let rope = Some(m.declared_rope(two_axes(head_dim)));
    let order: Vec<Range<usize>> =
        (0..n_heads).flat_map(|head| quarters(head * head_dim, head_dim)).collect();
    for layer in 0..n_layers {
        let blk = |name: &str| format!("v.blk.{layer}.{name}");
        let norm = m.rms_norm(&blk("ln1"), dim)?;
        let wq = reordered(m, &blk("attn_q"), dim, &order)?;
        let wk = reordered(m, &blk("attn_k"), dim, &order)?;
        let wv = clamped(m, &blk("attn_v"), dim, dim)?;
        let mut head_norm = |name: &str| -> Result<_, ModelError> {
            let weight: Weight =
                m.gathered_f32(&blk(&format!("{name}.weight")), head_dim, &quarters(0, head_dim))?;
            Ok(Some(sterna_program::Norm { weight, ..m.bare_rms_norm(head_dim) }))
        };
        let (q_norm, k_norm) = (head_norm("attn_q_norm")?, head_norm("attn_k_norm")?);
        let v_norm = Some(m.bare_rms_norm(head_dim));
        let attn_in = AttnIn::of(x, norm, [wq, wk, wv], kv, q);
        m.push(format!("{layer}.attn_in"), AttnIn { q_norm, k_norm, v_norm, rope, ..attn_in });
        m.push(format!("{layer}.attend"), Attend { ahead: Attend::ALL, ..Attend::causal(q, kv, 1.0, y) });
        let w = clamped(m, &blk("attn_out"), dim, dim)?;
        let post = Some(m.rms_norm(&blk("attn_post_norm"), dim)?);
        m.push(format!("{layer}.attn_out"), ProjAdd { post, ..ProjAdd::plain(y, w, x) });

        let norm = m.rms_norm(&blk("ln2"), dim)?;
        let gate = clamped(m, &blk("ffn_gate"), ffn_dim, dim)?;
        let up = clamped(m, &blk("ffn_up"), ffn_dim, dim)?;
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, act, hidden));
        let w = clamped(m, &blk("ffn_down"), dim, ffn_dim)?;
        let post = Some(m.rms_norm(&blk("ffn_post_norm"), dim)?);
        let out_scale = blk("out_scale.weight");
        let scale = if m.has(&out_scale) { m.scalar(&out_scale)? } else { 1.0 };
        m.push(format!("{layer}.ffn_out"), ProjAdd { post, scale, ..ProjAdd::plain(hidden, w, x) });
    }
    Ok(())
}

/// A linear layer that clamps its input and output, if the file has such bounds.
fn clamped(m: &mut Builder<'_>, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
    let linear = m.projection(stem, outputs, inputs)?;
    Ok(Linear { clamp: clamp(m, stem)?, ..linear })
}

/// The same with its outputs in another order.
fn reordered(
    m: &mut Builder<'_>,
    stem: &str,
    dim: usize,
    order: &[Range<usize>],
) -> Result<Linear, ModelError> {
    let linear = m.gathered(stem, [dim, dim], "by pairs", order)?;
    Ok(Linear { clamp: clamp(m, stem)?, ..linear })
}

fn clamp(m: &mut Builder<'_>, stem: &str) -> Result<Option<Clamp>, ModelError> {
    let names = ["input_min", "input_max", "output_min", "output_max"].map(|name| format!("{stem}.{name}"));
    if !names.iter().any(|name| m.has(name)) {
        return Ok(None);
    }
    // Bounds may be infinite, and a file may have only some of them.
    let mut bounds = [f32::NEG_INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY];
    for (bound, name) in bounds.iter_mut().zip(&names) {
        if m.has(name) {
            *bound = m.elements(name, 1)?[0];
        }
    }
    let [input, output] = [[bounds[0], bounds[1]], [bounds[2], bounds[3]]];
    if !(input[0] <= input[1] && output[0] <= output[1]) {
        let got = format!("{input:?} and {output:?}");
        return Err(ModelError::Tensor { tensor: stem.to_owned(), want: "bounds in order".into(), got });
    }
    Ok(Some(Clamp { input, output }))
}

/// The quarters of a head, the middle ones exchanged: the file rotates each half of a head by itself, in
/// pairs of a quarter, and here a pair is an element of the first half and one of the second.
fn quarters(start: usize, head_dim: usize) -> Vec<Range<usize>> {
    let quarter = head_dim / 4;
    [0, 2, 1, 3].into_iter().map(|at| start + at * quarter..start + (at + 1) * quarter).collect()
}

/// The first half of the pairs is rotated by the column, the second one by the row.
fn two_axes(head_dim: usize) -> Rope {
    let quarter = head_dim / 4;
    let freq = |pair: usize| 100_f64.powf(-2.0 * (pair % quarter) as f64 / (head_dim / 2) as f64);
    let axis = |pair: usize| if pair < quarter { Axis::Column } else { Axis::Row };
    let axes = Some((0..2 * quarter).map(axis).collect());
    let inv_freq = (0..2 * quarter).map(freq).collect();
    Rope { style: RopeStyle::Halves, inv_freq, magnitude: 1.0, axes, ahead: 0 }
}
