//! Phi-1, Phi-1.5 and Phi-2: LayerNorm, biases everywhere, attention and a feed-forward network without a
//! gate on the same norm, and RoPE over the halves of a part of each head.

use super::Architecture;
use super::llama::{Parallel, Variant, decoder};
use sterna_program::{Act, RopeStyle};

/// Phi-2.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["phi2"],
    build: |m| {
        let (rope, act, parallel) = (RopeStyle::Halves, Act::GeluTanh, Some(Parallel::SameNorm));
        let variant = Variant { rope, act, parallel, gated: false, qkv_bias: true, ..Variant::PLAIN };
        decoder(m, &Variant { norm: |m, stem, dim| m.layer_norm(stem, dim), ..variant })
    },
    per_layer: true,
};
