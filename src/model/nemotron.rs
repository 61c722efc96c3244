//! Nemotron-4 and Minitron: Llama's form with LayerNorm, the square of ReLU without a gate in the
//! feed-forward network, and RoPE over the halves of a part of each head. Files have the norms' weights with
//! 1 added.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::{Act, RopeStyle};

/// Nemotron-4.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["nemotron"],
    build: |m| {
        let (rope, act) = (RopeStyle::Halves, Act::Relu2);
        let variant = Variant { rope, act, gated: false, ..Variant::PLAIN };
        decoder(m, &Variant { norm: |m, stem, dim| m.layer_norm(stem, dim), ..variant })
    },
    per_layer: true,
};
