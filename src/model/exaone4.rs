//! EXAONE 4: Llama's form with norms after the projections instead of before them, norms of query and key
//! heads, and RoPE over the halves of a head. In the 32B model three of four layers have a sliding window,
//! and only these have RoPE.

use super::llama::{Variant, WindowRope, Windowed, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_program::{QkNorm, RopeStyle};

/// EXAONE 4.
pub static ARCHITECTURE: Architecture = Architecture { names: &["exaone4"], build, per_layer: true };

/// Distance between layers without a window.
const PERIOD: usize = 4;

/// Layers of the 32B model: files of other models without a pattern have no windows.
const LAYERS_OF_32B: usize = 64;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let slides = m.value("attention.sliding_window_pattern").is_some() || m.hyper().n_layers == LAYERS_OF_32B;
    if !slides {
        m.overrules("attention.sliding_window");
    }
    let windows = slides.then_some(Windowed { period: PERIOD, rope: WindowRope::Only, global_first: false });
    let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Heads));
    let variant = Variant { rope, qk_norm, windows, pre_norms: false, post_norms: true, ..Variant::PLAIN };
    decoder(m, &variant)
}
