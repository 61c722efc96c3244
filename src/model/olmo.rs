//! OLMo 1: Llama's form with LayerNorms without weights; in the models of April 2024, queries, keys and
//! values have bounds.

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};

/// OLMo 1.
pub static ARCHITECTURE: Architecture = Architecture { names: &["olmo"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const BOUND: &str = "attention.clamp_kqv";
    let qkv_bound = m.value(BOUND).is_some().then(|| m.factor(BOUND, 1.0)).transpose()?;
    decoder(m, &Variant { norm: |m, _, dim| Ok(m.bare_layer_norm(dim)), qkv_bound, ..Variant::PLAIN })
}
