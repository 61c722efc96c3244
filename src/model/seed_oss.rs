//! Seed-OSS: Llama's form with biases on queries, keys and values, and RoPE over the halves of a head. Files
//! call the norm before the feed-forward network `post_attention_norm`.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::RopeStyle;

/// Seed-OSS.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["seed_oss"],
    build: |m| {
        let (rope, ffn_norm) = (RopeStyle::Halves, "post_attention_norm");
        decoder(m, &Variant { rope, qkv_bias: true, ffn_norm, ..Variant::PLAIN })
    },
    per_layer: true,
};
