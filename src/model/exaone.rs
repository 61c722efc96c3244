//! EXAONE 3, 3.5 and Deep: Llama's form with RoPE over the halves of a head.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::RopeStyle;

/// EXAONE 3.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["exaone"],
    build: |m| decoder(m, &Variant { rope: RopeStyle::Halves, ..Variant::PLAIN }),
    per_layer: true,
};
