//! Falcon-H1: each layer adds attention and Mamba-2 of the same norm, then a feed-forward network. Its
//! factors are folded into the weights of files.

use super::mixer::{Attention, MambaLayers, gated_ffn};
use super::{Architecture, Builder, ModelError};
use sterna_program::{Norm, NormKind, RopeStyle};

/// Falcon-H1.
pub static ARCHITECTURE: Architecture = Architecture { names: &["falcon-h1"], build, per_layer: false };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let mamba = MambaLayers::read(m, 1.0)?;
    let x = m.embed(1.0)?;
    let attention = Attention { rope: Some(m.rope(RopeStyle::Halves)?), ..Attention::PLAIN };
    let hidden = m.buf_of_width("h", h.ffn_dim);
    for layer in 0..h.n_layers {
        let parts = [attention.push(m, layer, x)?, mamba.push(m, layer, x)?];
        for (label, out) in parts {
            m.push(label, out);
        }
        // Files have this norm without the usual suffix.
        let name = format!("blk.{layer}.ffn_norm");
        let weight = match m.has(&name) {
            true => m.vector(&name, h.dim)?,
            false => m.vector(&format!("{name}.weight"), h.dim)?,
        };
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: h.norm_eps };
        let (label, out) = gated_ffn(m, ["ffn", ""], layer, [x, hidden], norm, 1.0)?;
        m.push(label, out);
    }
    let norm = m.rms_norm("output_norm", h.dim)?;
    m.end(x, norm, 1.0, None)
}
