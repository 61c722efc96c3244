//! Nemotron-H, Nemotron 3 Nano and Super: each layer is one part, Mamba-2, attention without RoPE, or a
//! feed-forward network without a gate, or a mixture of such networks with a shared one. Two lists give the
//! kinds: KV heads, and widths.

use super::mixer::{Attention, MambaLayers};
use super::sparse::Sparse;
use super::{Architecture, Builder, LayerHyper, ModelError};
use sterna_program::{Act, FfnIn, Gating, NormKind, ProjAdd, Routing};

/// Nemotron-H.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["nemotron_h", "nemotron_h_moe"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let n_layers = m.trunk()?;
    let mixture = m.mixture()?;
    let sparse = mixtures(m)?;
    let recurs = |layer: usize| matches!(h.layer(layer), LayerHyper { n_kv_heads: 0, ffn_dim: 0, .. });
    let mamba = if (0..n_layers).any(recurs) { Some(MambaLayers::read(m, 1.0)?) } else { None };
    // Converters write these, although no layer rotates.
    m.overrules("rope.scaling.finetuned");
    let x = m.embed(1.0)?;
    for layer in 0..n_layers {
        let LayerHyper { n_kv_heads, ffn_dim, .. } = h.layer(layer);
        let (label, out) = match &mamba {
            _ if n_kv_heads > 0 => Attention::PLAIN.push(m, layer, x)?,
            Some(mamba) if ffn_dim == 0 => mamba.push(m, layer, x)?,
            _ => {
                let norm = m.rms_norm(&format!("blk.{layer}.attn_norm"), h.dim)?;
                if let Some(mixture) = mixture {
                    sparse.push(m, mixture, layer, (x, norm, None), 1.0)?;
                    continue;
                }
                let hidden = m.buf_of_width("h", ffn_dim);
                let up = m.projection(&format!("blk.{layer}.ffn_up"), ffn_dim, h.dim)?;
                m.push(format!("{layer}.ffn_in"), FfnIn::plain(x, norm, up, Act::Relu2, hidden));
                let w = m.projection(&format!("blk.{layer}.ffn_down"), h.dim, ffn_dim)?;
                (format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x))
            }
        };
        m.push(label, out);
    }
    let norm = m.rms_norm("output_norm", h.dim)?;
    m.end(x, norm, 1.0, None)
}

fn mixtures(m: &mut Builder<'_>) -> Result<Sparse, ModelError> {
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    Ok(Sparse { act: Act::Relu2, gated: false, latent: true, ..Sparse::read(m, &routing)? })
}

/// Builds the program of the MTP block: attention, then a mixture.
pub(super) fn block(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (sparse, at) = (mixtures(m)?, m.trunk()?);
    let Some(mixture) = m.mixture()? else { return Ok(()) };
    super::mtp::block(m, at, NormKind::Layer, |m, x| {
        let (label, out) = Attention::PLAIN.push(m, at, x)?;
        m.push(label, out);
        let norm = m.rms_norm(&format!("blk.{at}.post_attention_norm"), m.hyper().dim)?;
        sparse.push(m, mixture, at, (x, norm, None), 1.0)
    })
}
