//! Measures a model: how well it predicts a text, and how much a KV cache or another build changes its
//! output.
//!
//! It runs models through [`engine`](sterna_engine) and knows the backend as a trait; it must never know a
//! flag, a file format of reports, or a terminal. [`Chunks`] is the evaluated text. Start at [`perplexity`],
//! then [`cache`], which compares two KV caches.
#![forbid(unsafe_code)]

pub mod cache;
mod chunks;
pub mod importance;
pub mod log_probs;
pub mod needle;
pub mod perplexity;
pub mod probe;
pub mod score;

pub use chunks::{Chunks, as_fed};

use ggml_types::kv;
use sterna_engine::{EngineOptions, HeadType};

/// Number of rows per step with logits: [`EngineOptions::outputs`](sterna_engine::EngineOptions::outputs) of
/// evaluated engines.
pub const OUTPUTS: usize = 64;

/// Options of an engine that runs one text of up to `n` tokens in one step, with an exact cache and the
/// file's head. Of the given options, only threads and the quantisation of activations are used.
fn one_text(options: &EngineOptions, n: usize) -> EngineOptions {
    EngineOptions {
        n_ctx: Some(n),
        batch: n,
        outputs: 1,
        n_seqs: 1,
        head_type: HeadType::Keep,
        ..options.with_cache([kv::F32, kv::F32])
    }
}
