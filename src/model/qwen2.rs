//! Qwen2 and Qwen2.5, and models distilled into them, with and without experts: Llama's form with biases on
//! queries, keys and values, and RoPE over the halves of a head. The weights of a row's experts do not sum
//! to 1, and a shared expert has a share per row. Qwen2-VL and Qwen2.5-VL are the same model with M-RoPE.

use super::llama::{Variant, decoder};
use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{RopeStyle, Routing};

/// Qwen2.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["qwen2", "qwen2moe"], build, per_layer: true };

/// Qwen2-VL and Qwen2.5-VL.
pub static VL: Architecture = Architecture { names: &["qwen2vl"], build: vl, per_layer: true };

fn vl(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let axes = m.axes(false)?;
    decoder(m, &Variant { rope: RopeStyle::Halves, axes: &axes, qkv_bias: true, ..Variant::PLAIN })
}

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let sparse = Sparse::read(m, &Routing { normalise: false, ..Routing::SOFTMAX })?;
    decoder(m, &Variant { rope: RopeStyle::Halves, qkv_bias: true, sparse, ..Variant::PLAIN })
}
