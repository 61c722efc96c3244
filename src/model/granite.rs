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

/// The factors of a file.
pub(super) struct Factors {
    /// On the embedding.
    pub embedding: f32,
    /// On the outputs of each layer.
    pub residual: f32,
    /// On the attention scores.
    pub scale: f32,
    /// On the logits.
    pub logits: f32,
    /// True if queries and keys are rotated.
    pub rotates: bool,
}

impl Factors {
    pub(super) fn read(m: &Builder<'_>) -> Result<Self, ModelError> {
        const LOGITS: &str = "logit_scale";
        if m.value(LOGITS).is_none() {
            return Err(m.wrong(LOGITS, "a number from 1e-6 to 1e6", "none"));
        }
        Ok(Self {
            logits: 1.0 / m.factor(LOGITS, 1.0)?,
            embedding: m.factor("embedding_scale", 1.0)?,
            residual: m.factor("residual_scale", 1.0)?,
            scale: m.factor("attention.scale", 1.0 / (m.hyper().head_dim as f32).sqrt())?,
            // Models without RoPE have this key.
            rotates: !matches!(m.value("rope.scaling.finetuned"), Some(Value::Bool(false))),
        })
    }
}

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let Factors { embedding, residual, scale, logits, rotates } = Factors::read(m)?;
    let sparse = Sparse::read(m, &Routing::SOFTMAX)?;
    let (rotates, scale) = (&|_: usize| rotates, Some(scale));
    decoder(m, &Variant { rotates, scale, embedding, residual, logits, sparse, ..Variant::PLAIN })
}
