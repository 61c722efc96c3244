//! OLMo 2 and OLMo 3: Llama's form with norms after the projections instead of before them, norms over whole
//! rows of queries and keys, and RoPE over the halves of a head. OLMo 3 has sliding windows, in all layers
//! but every fourth.

use super::Architecture;
use super::llama::{Variant, WindowRope, Windowed, decoder};
use sterna_program::{QkNorm, RopeStyle};

/// OLMo 2.
pub static ARCHITECTURE: Architecture = Architecture {
    names: &["olmo2"],
    build: |m| {
        let variant = Variant {
            rope: RopeStyle::Halves,
            qk_norm: Some(QkNorm::Rows),
            windows: Some(Windowed { period: 4, rope: WindowRope::Unscaled, global_first: false }),
            pre_norms: false,
            post_norms: true,
            ..Variant::PLAIN
        };
        decoder(m, &variant)
    },
    per_layer: true,
};
