//! GLM-4 9B of 2024 and GLM-Edge: Llama's form with RoPE over a part of each head, and gate and up projection
//! in one tensor.

use super::Architecture;
use super::llama::{Variant, decoder};

/// GLM-4 9B of 2024.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["chatglm"],
    build: |m| decoder(m, &Variant { fused_gate: true, ..Variant::PLAIN }),
    per_layer: true,
};
