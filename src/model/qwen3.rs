//! Qwen3 with and without experts, Bonsai and Ternary-Bonsai: Llama's form with norms over each query and key
//! head, and RoPE over the halves of a head. Qwen3-VL is the same model with images: M-RoPE, and further rows
//! of images that are added after the first layers (deepstack).

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_program::{QkNorm, RopeStyle};

/// Qwen3.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["qwen3", "qwen3moe"], build: |m| decoder(m, &QWEN3), per_layer: true };

/// Qwen3-VL.
pub static VL: Architecture = Architecture { names: &["qwen3vl", "qwen3vlmoe"], build: vl, per_layer: true };

const QWEN3: Variant<'static> =
    Variant { rope: RopeStyle::Halves, qk_norm: Some(QkNorm::Heads), ..Variant::PLAIN };

fn vl(m: &mut Builder<'_>) -> Result<(), ModelError> {
    const DEEPSTACK: &str = "n_deepstack_layers";
    let (axes, n_deepstack) = (m.axes(true)?, m.number_or(DEEPSTACK, 0)?);
    decoder(m, &Variant { axes: &axes, ..QWEN3 })?;
    m.deepstack(DEEPSTACK, n_deepstack)
}
