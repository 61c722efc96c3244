//! Laguna: Llama's form with norms over query and key heads, and the output of attention times the softplus
//! of a gate, which has an output per head or per element. Layers with a sliding window may have more heads
//! and a RoPE of their own; the first of four layers has no window. After the first layers there is a mixture
//! of experts with a shared expert.

use super::llama::{Variant, WindowRope, Windowed, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{GateAct, Gating, QkNorm, RopeStyle, Routing};

/// Laguna.
pub static ARCHITECTURE: Architecture = Architecture { names: &["laguna"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    let sparse = Sparse::read(m, &routing)?;
    let form = Variant {
        rope: RopeStyle::Halves,
        qk_norm: Some(QkNorm::Heads),
        windows: Some(Windowed { period: 4, rope: WindowRope::Unscaled, global_first: true }),
        attn_gate: Some(GateAct::Softplus),
        sparse,
        ..Variant::PLAIN
    };
    decoder(m, &form)
}
