//! LFM2 and LFM2.5, dense and with experts: layers with a short convolution, which is gated before and after,
//! and some with attention.
//!
//! Layers without KV heads have the convolution. The final norm is stored under the name of the embedding's.

use super::mixer::{Attention, Pending, gated_ffn};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{Buf, Conv, Gating, ProjAdd, ProjIn, RopeStyle, Routing, StateDecl};

/// LFM2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["lfm2", "lfm2moe"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const TAPS: &str = "shortconv.l_cache";
    let h = m.hyper().clone();
    let taps = m.number(TAPS)?;
    if !(2..=StateDecl::MAX_TAPS).contains(&taps) {
        return Err(m.wrong(TAPS, format!("2 to {}", StateDecl::MAX_TAPS), taps));
    }
    // Files without windows may have a window of 0.
    let window = m.number_or("attention.sliding_window", 0)?;
    let window = u32::try_from(window).ok().filter(|window| *window > 0);

    let mixture = m.mixture()?;
    let sparse = Sparse::read(m, &Routing { gating: Gating::Sigmoid, ..Routing::SOFTMAX })?;

    let x = m.embed(1.0)?;
    let attends = |layer: usize| h.layer(layer).n_kv_heads > 0;
    let rope = (0..h.n_layers).any(attends).then(|| m.rope(RopeStyle::Halves)).transpose()?;
    let attention = Attention { rope, window, head_norms: true, ..Attention::PLAIN };
    for layer in 0..h.n_layers {
        let (label, out) = match attends(layer) {
            true => attention.push(m, layer, x)?,
            false => short_conv(m, layer, x, taps)?,
        };
        m.push(label, out);
        let norm = m.rms_norm(&format!("blk.{layer}.ffn_norm"), h.dim)?;
        if let Some(mixture) = mixture.filter(|_| sparse.is_at(layer)) {
            sparse.push(m, mixture, layer, (x, norm, None), 1.0)?;
            continue;
        }
        let hidden = m.buf_of_width("h", h.ffn_dim);
        let (label, out) = gated_ffn(m, ["ffn", ""], layer, [x, hidden], norm, 1.0)?;
        m.push(label, out);
    }
    let norm = m.rms_norm("token_embd_norm", h.dim)?;
    m.end(x, norm, 1.0, None)
}

fn short_conv(m: &mut Builder<'_>, layer: usize, x: Buf, taps: usize) -> Result<Pending, ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let dim = m.hyper().dim;
    let [before, after, u, out] = ["b", "c", "u", "o"].map(|name| m.buf_of_width(name, dim));
    let norm = m.rms_norm(&blk("attn_norm"), dim)?;
    let [b, c, v] = m.divided(&blk("shortconv.in_proj"), [dim; 3], dim)?;
    let products = vec![(b, before), (c, after), (v, u)];
    m.push(format!("{layer}.conv_in"), ProjIn { x, norm, products });
    let state = m.state(StateDecl::of_conv(dim, taps));
    let w = m.flattened(&blk("shortconv.conv.weight"), dim, taps)?;
    let (before, after) = (Some(before), Some(after));
    m.push(format!("{layer}.conv"), Conv { u, before, after, state, w, bias: None, silu: false, out });
    let w = m.projection(&blk("shortconv.out_proj"), dim, dim)?;
    Ok((format!("{layer}.conv_out"), ProjAdd::plain(out, w, x)))
}
