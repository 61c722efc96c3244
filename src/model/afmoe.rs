//! Arcee's Trinity: Llama's form with norms before and after each part, norms over query and key heads, and a
//! gate on the output of attention. Three of four layers have a sliding window; only these have RoPE. After
//! the first layers there is a mixture of experts with a shared expert.

use super::llama::{Variant, WindowRope, Windowed, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{GateAct, Gating, QkNorm, RopeStyle, Routing};

/// Trinity.
pub static ARCHITECTURE: Architecture = Architecture { names: &["afmoe"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    let sparse = Sparse::read(m, &routing)?;
    let form = Variant {
        rope: RopeStyle::Halves,
        qk_norm: Some(QkNorm::Heads),
        windows: Some(Windowed { period: 4, rope: WindowRope::Only, global_first: false }),
        attn_gate: Some(GateAct::Sigmoid),
        post_norms: true,
        embedding: (m.hyper().dim as f32).sqrt(),
        sparse,
        ..Variant::PLAIN
    };
    decoder(m, &form)
}
