//! Muse Glimmer: Llama's form with an RMS norm of the embedding, norms before and after each part, those
//! after with an epsilon of their own, norms over query and key heads, and a gate on the output of attention.
//! Three of four layers have a sliding window; only these have RoPE.

use super::llama::{Variant, WindowRope, Windowed, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_program::{GateAct, QkNorm};

/// Muse Glimmer.
pub static ARCHITECTURE: Architecture = Architecture { names: &["muse-glimmer"], build, per_layer: true };

/// Epsilon of the norms after attention and the feed-forward network. Files have no key for it.
const POST_EPS: f32 = 1e-8;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let form = Variant {
        qk_norm: Some(QkNorm::Heads),
        windows: Some(Windowed { period: 4, rope: WindowRope::Only, global_first: false }),
        attn_gate: Some(GateAct::Sigmoid),
        normed_embedding: true,
        post_norms: true,
        post_eps: Some(POST_EPS),
        logits: m.factor("logit_scale", 1.0)?,
        soft_cap: m.soft_cap("final_logit_softcapping")?,
        ..Variant::PLAIN
    };
    decoder(m, &form)
}
