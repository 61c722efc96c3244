//! Phi-3, 3.5 and 4: Llama's form with RoPE over halves, gate and up projection in one tensor, and two tables
//! of RoPE factors in models with long contexts.

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_program::RopeStyle;

/// Phi-3.
pub static ARCHITECTURE: Architecture = Architecture { names: &["phi3"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let window = m.number_or("attention.sliding_window", 0)?;
    if (1..m.hyper().n_ctx_train).contains(&window) {
        m.note(format!("the sliding window of {window} positions is ignored, as in llama.cpp"));
    }
    decoder(m, &Variant { rope: RopeStyle::Halves, fused_gate: true, long_rope: true, ..Variant::PLAIN })
}
