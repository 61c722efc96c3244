//! GLM-4.5, 4.6 and 4.7, and Solar Open: Llama's form with RoPE over the halves of a part of each head,
//! biases on queries, keys and values, and after the first layers a mixture of experts with a shared expert.
//! Norms over query and key heads are optional.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{Gating, QkNorm, RopeStyle, Routing};

/// GLM-4.5 and its successors with experts.
pub static ARCHITECTURE: Architecture = Architecture { names: &["glm4moe"], build, per_layer: false };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    // In files of multimodal models; for text, the positions of all sections are equal.
    m.overrules("rope.dimension_sections");
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    let sparse = Sparse::read(m, &routing)?;
    let qk_norm = m.has("blk.0.attn_q_norm.weight").then_some(QkNorm::Heads);
    let rope = RopeStyle::Halves;
    decoder(m, &Variant { rope, qk_norm, ffn_norm: "post_attention_norm", sparse, ..Variant::PLAIN })
}
