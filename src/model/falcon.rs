//! Falcon 7B, 11B, 40B and 180B: LayerNorm, attention next to a feed-forward network without a gate, and RoPE
//! over the halves of a head. Both have the same norm, or attention has a second one (40B and 180B).

use super::Architecture;
use super::llama::{Parallel, Variant, decoder};
use sterna_program::{Act, RopeStyle};

/// Falcon.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["falcon"],
    build: |m| {
        let (rope, act) = (RopeStyle::Halves, Act::Gelu);
        let variant = Variant { rope, act, gated: false, ..Variant::PLAIN };
        let variant = Variant { norm: |m, stem, dim| m.layer_norm(stem, dim), ..variant };
        let (parallel, attn_norm, ffn_norm) = match m.has("blk.0.attn_norm_2.weight") {
            true => (Parallel::OwnNorm, "attn_norm_2", "attn_norm"),
            false => (Parallel::SameNorm, "attn_norm", "ffn_norm"),
        };
        decoder(m, &Variant { parallel: Some(parallel), attn_norm, ffn_norm, ..variant })
    },
    per_layer: true,
};
