//! The HTTP server: models to clients that know OpenAI's API, llama-server's, Anthropic's or ollama's.
//!
//! One thread owns the engine's batch (`worker.rs`); a few others speak HTTP. A family of endpoints is a file
//! of `api/`, which turns requests into jobs (`job.rs`) and what becomes of these into answers; it knows no
//! other family. `constraints.rs` and `deltas.rs` are where the form of answers comes in. Nothing here knows
//! a flag or a device. Start at [`Server`], then `api/mod.rs`.

mod answer;
mod api;
mod app;
mod board;
mod constraints;
mod deltas;
mod error;
mod family;
mod fields;
mod http;
mod job;
mod messages;
mod metrics;
mod model;
mod options;
mod page;
mod prompts;
mod sampling;
mod server;
mod worker;

pub use model::Loaded;
pub use options::ServeOptions;
pub use server::{ServeError, Server, Stopper};
