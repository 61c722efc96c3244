//! OLMoE: Llama's form with norms over whole rows of queries and keys, RoPE over the halves of a head, and
//! experts in every layer, whose weights of a row do not sum to 1.

use super::Architecture;
use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use sterna_program::{QkNorm, RopeStyle, Routing};

/// OLMoE.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["olmoe"],
    build: |m| {
        let routing = Routing { normalise: false, ..Routing::SOFTMAX };
        let sparse = Sparse { routing, ..Sparse::PLAIN };
        let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Rows));
        decoder(m, &Variant { rope, qk_norm, sparse, ..Variant::PLAIN })
    },
    per_layer: true,
};
