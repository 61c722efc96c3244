//! Gemma 2: Gemma 3's form without norms of queries and keys, with a soft cap of attention scores and one
//! RoPE for all layers. Even layers have a sliding window.

use super::gemma3::{Variant, decoder};
use super::{Architecture, Builder, ModelError};

/// Gemma 2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gemma2"], build, per_layer: false };

/// Window of the published models, for files that do not specify one.
const WINDOW: u32 = 4096;

/// Distance between layers without a window.
const PERIOD: usize = 2;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let windows = Some(m.windows_or(PERIOD, WINDOW)?);
    let soft_cap = m.soft_cap("attn_logit_softcapping")?;
    decoder(m, &Variant { windows, wide: 46, head_norms: false, soft_cap, local_base: None })
}
