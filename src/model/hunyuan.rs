//! Hunyuan without experts, and Hy-MT: Llama's form with norms of query and key heads after RoPE, which
//! rotates the halves of a head.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::{QkNorm, RopeStyle};

/// Hunyuan.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["hunyuan-dense"],
    build: |m| {
        let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Rotated));
        decoder(m, &Variant { rope, qk_norm, ..Variant::PLAIN })
    },
    per_layer: true,
};
