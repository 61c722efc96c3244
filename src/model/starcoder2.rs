//! StarCoder2: Llama's form with LayerNorm, biases everywhere, GELU without a gate in the feed-forward
//! network, and RoPE over the halves of a head.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::{Act, RopeStyle};

/// StarCoder2.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["starcoder2"],
    build: |m| {
        let (rope, act) = (RopeStyle::Halves, Act::GeluTanh);
        let variant = Variant { rope, act, gated: false, qkv_bias: true, ..Variant::PLAIN };
        decoder(m, &Variant { norm: |m, stem, dim| m.layer_norm(stem, dim), ..variant })
    },
    per_layer: true,
};
