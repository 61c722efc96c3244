//! Granite 3 and 4 without Mamba layers, dense and with experts: Llama's form with factors on the embedding,
//! the attention scores, the outputs of each layer and the logits. There may be a shared expert.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_gguf::Value;
use sterna_program::Routing;

/// Granite.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["granite", "granitemoe"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const LOGITS: &str = "logit_scale";
    if m.value(LOGITS).is_none() {
        return Err(m.wrong(LOGITS, "a number from 1e-6 to 1e6", "none"));
    }
    let logits = 1.0 / m.factor(LOGITS, 1.0)?;
    let embedding = m.factor("embedding_scale", 1.0)?;
    let residual = m.factor("residual_scale", 1.0)?;
    let scale = Some(m.factor("attention.scale", 1.0 / (m.hyper().head_dim as f32).sqrt())?);
    // Models without RoPE have this key.
    let rotates = !matches!(m.value("rope.scaling.finetuned"), Some(Value::Bool(false)));
    let sparse = Sparse::read(m, &Routing::SOFTMAX)?;
    let rotates = &|_: usize| rotates;
    decoder(m, &Variant { rotates, scale, embedding, residual, logits, sparse, ..Variant::PLAIN })
}
