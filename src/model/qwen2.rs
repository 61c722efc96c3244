//! Qwen2 and Qwen2.5, and models distilled into them: Llama's form with biases on queries, keys and values,
//! and RoPE over the halves of a head.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::RopeStyle;

/// Qwen2.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["qwen2"],
    build: |m| decoder(m, &Variant { rope: RopeStyle::Halves, qkv_bias: true, ..Variant::PLAIN }),
    per_layer: true,
};
