//! Gemma 1 and CodeGemma: Llama's form with a scaled embedding, GELU as the activation function of the gate,
//! and RoPE over the halves of a head. Files have the norms' weights with 1 added.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::{Act, RopeStyle};

/// Gemma 1.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["gemma"],
    build: |m| {
        let embedding = (m.hyper().dim as f32).sqrt();
        let (rope, act) = (RopeStyle::Halves, Act::GeluTanh);
        decoder(m, &Variant { rope, act, embedding, ..Variant::PLAIN })
    },
    per_layer: true,
};
