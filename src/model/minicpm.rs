//! MiniCPM and BitCPM: Llama's form with scaled embedding, layer outputs and logits, so that models of any
//! width and depth can be trained with the same hyperparameters.

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};

/// MiniCPM.
pub static ARCHITECTURE: Architecture = Architecture { names: &["minicpm"], build, per_layer: true };

/// Width of the model whose logits are not scaled: default of the logit scale.
const BASE_DIM: f32 = 256.0;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (dim, n_layers) = (m.hyper().dim as f32, m.hyper().n_layers as f32);
    let embedding = m.factor("embedding_scale", 12.0)?;
    let residual = m.factor("residual_scale", 1.4 / n_layers.sqrt())?;
    let logits = 1.0 / m.factor("logit_scale", dim / BASE_DIM)?;
    decoder(m, &Variant { embedding, residual, logits, ..Variant::PLAIN })
}
