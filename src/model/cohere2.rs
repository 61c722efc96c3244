//! Command R and Command R7B: Llama's form with LayerNorm, attention and feed-forward network on the same
//! norm, and a factor on the logits. In Command R7B and Command A (`cohere2`) three of four layers have a
//! sliding window, and only these have RoPE.

use super::llama::{Parallel, Variant, WindowRope, Windowed, decoder};
use super::{Architecture, Builder, ModelError};

/// Command R7B, Command R.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["cohere2", "command-r"], build, per_layer: true };

/// Distance between layers without a window, if a file does not specify it.
const PERIOD: usize = 4;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let slides = m.hyper().architecture == "cohere2";
    let windows = slides.then_some(Windowed { period: PERIOD, rope: WindowRope::Only, global_first: false });
    let logits = m.factor("logit_scale", 1.0)?;
    let norm = |m: &mut Builder<'_>, stem: &str, dim| m.layer_norm_without_bias(stem, dim);
    let parallel = Some(Parallel::SameNorm);
    decoder(m, &Variant { windows, logits, norm, parallel, ..Variant::PLAIN })
}
