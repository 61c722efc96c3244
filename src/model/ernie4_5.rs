//! ERNIE 4.5 with and without experts: Llama's form; checkpoints rotate neighbouring elements as files do.
//! The first layers have no experts, and later ones only at intervals. A bias affects the choice of experts.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::Routing;

/// ERNIE 4.5.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["ernie4_5", "ernie4_5-moe"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let sparse = Sparse::read(m, &Routing::SOFTMAX)?;
    decoder(m, &Variant { sparse, ..Variant::PLAIN })
}
