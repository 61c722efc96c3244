//! LFM2 and LFM2.5: layers with a short convolution, which is gated before and after, and some with attention.
//!
//! Layers without KV heads have the convolution. The final norm is stored under the name of the embedding's.

use super::{Architecture, Builder, LayerHyper, ModelError};
use sterna_program::{
    Act, Attend, AttnIn, Conv, FfnIn, ProjAdd, ProjIn, RopeId, RopeStyle, RowsOf, StateDecl,
};

/// LFM2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["lfm2"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const TAPS: &str = "shortconv.l_cache";
    let h = m.hyper().clone();
    let dim = h.dim;
    let taps = m.number(TAPS)?;
    if !(2..=StateDecl::MAX_TAPS).contains(&taps) {
        return Err(m.wrong(TAPS, format!("2 to {}", StateDecl::MAX_TAPS), taps));
    }
    // Files without windows may have a window of 0.
    let window = m.number_or("attention.sliding_window", 0)?;
    let window = u32::try_from(window).ok().filter(|window| *window > 0);

    let x = m.embed(1.0)?;
    let attends = (0..h.n_layers).any(|layer| h.layer(layer).n_kv_heads > 0);
    let rope = attends.then(|| m.rope(RopeStyle::Halves)).transpose()?;
    let hidden = m.buf("h", RowsOf::Step, h.ffn_dim);
    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        match h.layer(layer).n_kv_heads {
            0 => short_conv(m, layer, taps)?,
            _ => attention(m, layer, rope, window)?,
        }
        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let [gate, up] = ["ffn_gate", "ffn_up"].map(|name| m.projection(&blk(name), h.ffn_dim, dim));
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate?, up?, Act::Silu, hidden));
        let w = m.projection(&blk("ffn_down"), dim, h.ffn_dim)?;
        m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
    }
    let norm = m.rms_norm("token_embd_norm", dim)?;
    m.end(x, norm, 1.0, None)
}

fn short_conv(m: &mut Builder<'_>, layer: usize, taps: usize) -> Result<(), ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let dim = m.hyper().dim;
    let [x, before, after, u, out] = ["x", "b", "c", "u", "o"].map(|name| m.buf_of_width(name, dim));
    let norm = m.rms_norm(&blk("attn_norm"), dim)?;
    let [b, c, v] = m.divided(&blk("shortconv.in_proj"), [dim; 3], dim)?;
    m.push(format!("{layer}.conv_in"), ProjIn { x, norm, products: vec![(b, before), (c, after), (v, u)] });
    let state = m.state(StateDecl::of_conv(dim, taps));
    let w = m.flattened(&blk("shortconv.conv.weight"), dim, taps)?;
    let (before, after) = (Some(before), Some(after));
    m.push(format!("{layer}.conv"), Conv { u, before, after, state, w, bias: None, silu: false, out });
    let w = m.projection(&blk("shortconv.out_proj"), dim, dim)?;
    m.push(format!("{layer}.conv_out"), ProjAdd::plain(out, w, x));
    Ok(())
}

fn attention(
    m: &mut Builder<'_>,
    layer: usize,
    rope: Option<RopeId>,
    window: Option<u32>,
) -> Result<(), ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let (dim, head_dim) = (m.hyper().dim, m.hyper().head_dim);
    let LayerHyper { n_heads, n_kv_heads, .. } = m.hyper().layer(layer);
    let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
    let x = m.buf_of_width("x", dim);
    let [q, y] = ["q", "y"].map(|name| m.buf_of_width(name, q_dim));
    let kv = m.kv_of(n_kv_heads);
    let norm = m.rms_norm(&blk("attn_norm"), dim)?;
    let qkv = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
    let q_norm = Some(m.rms_norm(&blk("attn_q_norm"), head_dim)?);
    let k_norm = Some(m.rms_norm(&blk("attn_k_norm"), head_dim)?);
    m.push(format!("{layer}.attn_in"), AttnIn { q_norm, k_norm, rope, ..AttnIn::of(x, norm, qkv, kv, q) });
    let scale = 1.0 / (head_dim as f32).sqrt();
    m.push(format!("{layer}.attend"), Attend { window, ..Attend::causal(q, kv, scale, y) });
    let w = m.projection(&blk("attn_output"), dim, q_dim)?;
    m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));
    Ok(())
}
