//! InternLM2 and 2.5: Llama's form under another name.

use super::Architecture;
use super::llama::{Variant, decoder};

/// InternLM2.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["internlm2"], build: |m| decoder(m, &Variant::PLAIN), per_layer: true };
