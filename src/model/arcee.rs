//! Arcee AFM: Llama's form with squared ReLU and no gate in the feed-forward network.

use super::Architecture;
use super::llama::{Variant, decoder};
use sterna_program::Act;

/// Arcee.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["arcee"],
    build: |m| decoder(m, &Variant { act: Act::Relu2, gated: false, ..Variant::PLAIN }),
    per_layer: true,
};
