//! MiniMax M2: Llama's form with norms over whole rows of queries and keys, RoPE over the halves of a part of
//! each head, and experts in every layer, chosen by a sigmoid with a bias.

use super::Architecture;
use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use sterna_program::{Gating, QkNorm, RopeStyle, Routing};

/// MiniMax M2.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["minimax-m2"],
    build: |m| {
        let routing = Routing { gating: Gating::Sigmoid, ..Routing::SOFTMAX };
        let sparse = Sparse::read(m, &routing)?;
        let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Rows));
        decoder(m, &Variant { rope, qk_norm, sparse, ..Variant::PLAIN })
    },
    per_layer: true,
};
