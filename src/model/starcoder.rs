//! StarCoder 1 and SantaCoder: GPT-2's form with one key head for all query heads.

use super::{Architecture, gpt2};

/// StarCoder 1.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["starcoder"], build: gpt2::build, per_layer: false };
