//! StableLM 2 with 1.6 billion parameters, and StableLM 3B: Llama's form with LayerNorm, and RoPE over the
//! halves of a part of each head. Files of the 12B model, which has norms of heads and no norm before its
//! feed-forward network, are rejected by the missing norm.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::RopeStyle;

/// StableLM.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["stablelm"],
    build: |m| {
        // The tensors show whether there is one.
        m.overrules("use_parallel_residual");
        let norm = |m: &mut super::Builder<'_>, stem: &str, dim| m.layer_norm(stem, dim);
        decoder(m, &Variant { rope: RopeStyle::Halves, norm, ..Variant::PLAIN })
    },
    per_layer: true,
};
