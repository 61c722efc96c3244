//! Ministral 3 and Devstral 2: Llama's form with YaRN of another magnitude, and a factor on queries that
//! grows with the position.

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_program::QueryScale;

/// Ministral 3.
pub static ARCHITECTURE: Architecture = Architecture { names: &["mistral3"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
    if m.value(LOG_MULTIPLIER).is_some() {
        // YaRN's own factor on queries and keys is 1 + 0.1 ln(factor).
        let by = f64::from(m.factor(LOG_MULTIPLIER, 1.0)?);
        m.scale_yarn(|factor| 1.0 / (1.0 + 0.1 * by * factor.ln()));
    }
    const TEMPERATURE: &str = "attention.temperature_scale";
    let original = m.number_or("rope.scaling.original_context_length", m.hyper().n_ctx_train)?;
    let period = u32::try_from(original).unwrap_or(u32::MAX).max(1);
    let scales = m.value(TEMPERATURE).is_some_and(|value| value.as_f32() != Some(0.0));
    let factor = scales.then(|| m.factor(TEMPERATURE, 0.1)).transpose()?;
    let q_scale = factor.map(|factor| QueryScale { factor, period });
    decoder(m, &Variant { q_scale, ..Variant::PLAIN })
}
