//! GPT-NeoX, Pythia, Dolly 2 and RedPajama: LayerNorm, biases everywhere, a feed-forward network without a
//! gate, usually next to attention with a norm of its own, and RoPE over the halves of a part of each head.

use super::llama::{Parallel, Variant, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_gguf::Value;
use sterna_program::{Act, RopeStyle};

/// GPT-NeoX.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gptneox"], build, per_layer: true };

/// True if the feed-forward network is next to attention.
const PARALLEL: &str = "use_parallel_residual";

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let parallel = match m.value(PARALLEL) {
        None | Some(Value::Bool(true)) => Some(Parallel::OwnNorm),
        Some(Value::Bool(false)) => None,
        Some(other) => return Err(m.wrong(PARALLEL, "true or false", other.describe())),
    };
    // With erf, as in Pythia; files do not specify it.
    let (rope, act) = (RopeStyle::Halves, Act::Gelu);
    let variant = Variant { rope, act, parallel, gated: false, qkv_bias: true, ..Variant::PLAIN };
    decoder(m, &Variant { norm: |m, stem, dim| m.layer_norm(stem, dim), ..variant })
}
