//! dots.llm1, and Ling and Ring 2.0: Llama's form with norms over each query and key head, RoPE over the
//! halves of a head or of a part of it, and after the first layers a mixture of experts with a shared expert.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{Gating, QkNorm, RopeStyle, Routing};

/// dots.llm1, and Ling and Ring 2.0.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["dots1", "bailingmoe2"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    let sparse = Sparse::read(m, &routing)?;
    let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Heads));
    decoder(m, &Variant { rope, qk_norm, sparse, ..Variant::PLAIN })
}
