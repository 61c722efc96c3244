//! Measures a model: how well it predicts a text, and how far a KV cache or another build moves it.
//!
//! It runs models through [`engine`](sterna_engine) and knows the backend as a trait; it must never know a
//! flag, a file format of reports, or a terminal. [`Chunks`] is the text that is measured on. Start at
//! [`perplexity`], then [`cache`], which compares two KV caches.
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

/// Rows whose logits are held at a time: [`EngineOptions::outputs`](sterna_engine::EngineOptions::outputs) of
/// engines that are measured.
pub const OUTPUTS: usize = 64;

/// The options of an engine that takes one text of up to `n` tokens at once, with an exact cache and the head
/// of the file. Of the given ones count threads and the rounding of activations.
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
