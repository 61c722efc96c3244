//! Hunyuan with and without experts, and Hy-MT: Llama's form with norms of query and key heads after RoPE,
//! which rotates the halves of a head. With experts, there is a shared one.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{QkNorm, RopeStyle, Routing};

/// Hunyuan.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["hunyuan-dense", "hunyuan-moe"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let sparse = Sparse::read(m, &Routing::SOFTMAX)?;
    let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Rotated));
    decoder(m, &Variant { rope, qk_norm, sparse, ..Variant::PLAIN })
}
