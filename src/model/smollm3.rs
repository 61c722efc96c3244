//! SmolLM3: Llama's form, in which every fourth layer has no RoPE. Files do not specify this.

use super::Architecture;
use super::llama::{Variant, decoder};

/// SmolLM3.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["smollm3"],
    build: |m| {
        decoder(m, &Variant { rotates: &|layer| !(layer + 1).is_multiple_of(PERIOD), ..Variant::PLAIN })
    },
    per_layer: true,
};

/// Distance between layers without RoPE.
const PERIOD: usize = 4;
