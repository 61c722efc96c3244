//! GLM-4.5, 4.6 and 4.7, and Solar Open: Llama's form with RoPE over the halves of a part of each head,
//! biases on queries, keys and values, and after the first layers a mixture of experts with a shared expert.
//! Norms over query and key heads are optional.

use super::llama::{Variant, decoder, layer};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{Gating, NormKind, QkNorm, RopeStyle, Routing};

/// GLM-4.5 and its successors with experts.
pub static ARCHITECTURE: Architecture = Architecture { names: &["glm4moe"], build, per_layer: false };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let form = form(m)?;
    decoder(m, &form)
}

fn form(m: &mut Builder<'_>) -> Result<Variant<'static>, ModelError> {
    // In files of multimodal models; for text, the positions of all sections are equal.
    m.overrules("rope.dimension_sections");
    let routing = Routing { gating: Gating::Sigmoid, normalise: false, ..Routing::SOFTMAX };
    let sparse = Sparse::read(m, &routing)?;
    let has_norms = |m: &Builder<'_>, layer: usize| m.has(&format!("blk.{layer}.attn_q_norm.weight"));
    // A file with only the MTP block has no first layer.
    let qk_norm = (has_norms(m, 0) || has_norms(m, m.hyper().n_layers - 1)).then_some(QkNorm::Heads);
    let rope = RopeStyle::Halves;
    Ok(Variant { rope, qk_norm, ffn_norm: "post_attention_norm", sparse, ..Variant::PLAIN })
}

/// Builds the program of the MTP block, a layer with experts.
pub(super) fn block(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (form, at) = (form(m)?, m.trunk()?);
    super::mtp::block(m, at, NormKind::Rms, |m, x| {
        let rope = m.rope(form.rope)?;
        layer(m, &form, at, x, (Some(rope), None))
    })
}
