//! ERNIE 4.5 without experts: Llama's form; checkpoints rotate neighbouring elements as files do.

use super::Architecture;
use super::llama::{Variant, decoder};

/// ERNIE 4.5.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["ernie4_5"], build: |m| decoder(m, &Variant::PLAIN), per_layer: true };
