//! Qwen3 with and without experts, Bonsai and Ternary-Bonsai: Llama's form with norms over each query and key
//! head, and RoPE over the halves of a head.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::{QkNorm, RopeStyle};

/// Qwen3.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["qwen3", "qwen3moe"],
    build: |m| {
        decoder(m, &Variant { rope: RopeStyle::Halves, qk_norm: Some(QkNorm::Heads), ..Variant::PLAIN })
    },
    per_layer: true,
};
