//! Granite 4 H: layers with Mamba-2 or attention, each followed by a feed-forward network, or by experts and
//! a network that every row uses. Factors as in `granite`.

use super::build::{Mixture, times};
use super::granite::Factors;
use super::mixer::{Attention, MambaLayers, gated_ffn};
use super::{Architecture, Builder, ModelError};
use sterna_program::{Act, Experts, RopeStyle};

/// Granite 4 H.
pub static ARCHITECTURE: Architecture = Architecture { names: &["granitehybrid"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const SHARED: &str = "expert_shared_feed_forward_length";
    let Factors { embedding, residual, scale, logits, rotates } = Factors::read(m)?;
    let mixture = m.mixture()?;
    let h = m.hyper().clone();
    let attends = |layer: usize| h.layer(layer).n_kv_heads > 0;
    let mamba = match (0..h.n_layers).all(attends) {
        true => None,
        false => Some(MambaLayers::read(m, residual)?),
    };
    // Files without experts have this key, too.
    m.overrules(SHARED);
    let ffn_dim = if mixture.is_some() { m.number_or(SHARED, 0)? } else { h.ffn_dim };
    // Name of the network that every row uses.
    let names = if mixture.is_some() { ["shared", "_shexp"] } else { ["ffn", ""] };

    let x = m.embed(embedding)?;
    let rope = (rotates && (0..h.n_layers).any(attends)).then(|| m.rope(RopeStyle::Adjacent)).transpose()?;
    let attention = Attention { rope, scale: Some(scale), residual, ..Attention::PLAIN };
    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let (label, out) = match &mamba {
            Some(mamba) if !attends(layer) => mamba.push(m, layer, x)?,
            _ => attention.push(m, layer, x)?,
        };
        m.push(label, out);
        let norm = m.rms_norm(&blk("ffn_norm"), h.dim)?;
        let hidden = (ffn_dim > 0).then(|| m.buf_of_width("h", ffn_dim));
        let of_all = hidden.map(|hidden| gated_ffn(m, names, layer, [x, hidden], norm.clone(), residual));
        let of_all = of_all.transpose()?;
        if let Some(Mixture { n_experts, n_used, ffn_dim }) = mixture {
            let router = m.exact(&blk("ffn_gate_inp"), n_experts, h.dim)?;
            let mut experts = m.experts(&format!("blk.{layer}"), n_experts, ffn_dim, h.dim)?;
            for expert in &mut experts {
                expert.down = times(residual, expert.down.clone())?;
            }
            m.push(format!("{layer}.experts"), Experts::of(x, norm, router, experts, n_used, Act::Silu));
        }
        if let Some((label, out)) = of_all {
            m.push(label, out);
        }
    }
    let norm = m.rms_norm("output_norm", h.dim)?;
    m.end(x, norm, logits, None)
}
