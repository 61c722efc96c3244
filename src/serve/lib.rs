//! The HTTP server: models to clients that know OpenAI's API, llama-server's, Anthropic's or ollama's.
//!
//! One thread per loaded model owns its engine's batch (`worker.rs`); a few others speak HTTP. `models.rs`
//! says which models are loaded. A family of endpoints is a file or a folder of `api/`, which turns requests
//! into jobs (`job.rs`) and their updates into answers; it knows no other family. The families share what
//! they turn requests into: a conversation (`messages.rs`), its tools (`tool_config.rs`), the form of its
//! answer (`constraints.rs`), texts to embed or rank (`pooled.rs`); and what they make answers of:
//! `answer.rs`, `deltas.rs`, `blocks.rs`. Fields of requests are rows (`fields.rs`), each of a kind
//! (`kinds.rs`). Requests and answers are types that describe themselves to `api/openapi.rs`, and whole
//! answers are folds of their streams. Other services run on the same jobs as a [`Companion`]: the crate in
//! `grpc/` serves routers of several servers. [`InProcess`] takes requests without a listener. Nothing here
//! knows a flag or a device. Start at [`Server`], then `api/mod.rs`.
#![forbid(unsafe_code)]

mod answer;
mod api;
mod app;
mod blocks;
pub mod companion;
mod constraints;
mod deltas;
mod details;
mod engine_thread;
mod error;
mod family;
mod fields;
mod handover;
mod http;
mod in_process;
mod instance;
mod job;
mod kinds;
mod local;
mod messages;
mod metrics;
mod model;
mod models;
mod options;
mod page;
mod pooled;
mod prompts;
mod sampling;
mod server;
mod slots;
mod status;
mod tool_config;
mod watchdog;
mod worker;

pub use companion::{Companion, Endpoint};
pub use error::ServeError;
pub use in_process::{Answer, InProcess, Refusal};
pub use local::LocalPage;
pub use model::{LoadError, Loaded, ModelSource, Opened};
pub use options::{ServeOptions, TlsFiles};
pub use server::{Server, Stopper};
