//! Mellum 2: Qwen3's form with experts, and sliding windows in three of four layers, whose RoPE has a base of
//! its own and no scaling.

use super::Architecture;
use super::llama::{Variant, WindowRope, Windowed, decoder};
use sterna_program::{QkNorm, RopeStyle};

/// Mellum 2.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["mellum"],
    build: |m| {
        let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Heads));
        let windows = Some(Windowed { period: 4, rope: WindowRope::Unscaled, global_first: false });
        decoder(m, &Variant { rope, qk_norm, windows, ..Variant::PLAIN })
    },
    per_layer: true,
};
