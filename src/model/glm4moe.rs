//! GLM-4.5, 4.6 and 4.7, and Solar Open: Llama's form with RoPE over the halves of a part of each head,
//! biases on queries, keys and values, and after the first layers a mixture of experts with a shared expert.
//! Norms over query and key heads are optional.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{Gating, RopeStyle, Routing};

/// GLM-4.5 and its successors with experts.
pub static ARCHITECTURE: Architecture = Architecture { names: &["glm4moe"], build, per_layer: false };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    // In files of multimodal models; for text, the positions of all sections are equal.
    m.overrules("rope.dimension_sections");
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    let (sparse, head_norms) = (Sparse::read(m, &routing)?, m.has("blk.0.attn_q_norm.weight"));
    let rope = RopeStyle::Halves;
    decoder(m, &Variant { rope, head_norms, ffn_norm: "post_attention_norm", sparse, ..Variant::PLAIN })
}
