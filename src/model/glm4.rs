//! GLM-4 and GLM-Z1 of April 2025: Llama's form with norms after the projections as well as before them, RoPE
//! over a part of each head, and gate and up projection in one tensor.

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_program::RopeStyle;

/// GLM-4.
pub static ARCHITECTURE: Architecture = Architecture { names: &["glm4"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    // In files with sections (GLM-4.1V, GLM-OCR) the rows of queries and keys are permuted; for text, the
    // positions of all sections are equal.
    let permuted = m.value("rope.dimension_sections").is_some();
    let rope = if permuted { RopeStyle::Halves } else { RopeStyle::Adjacent };
    decoder(m, &Variant { rope, post_norms: true, fused_gate: true, ..Variant::PLAIN })
}
