//! The HTTP server, for clients of the APIs of OpenAI, llama-server, Anthropic and ollama.
//!
//! One thread per loaded model owns its engine's batch (`worker.rs`); a few other threads serve HTTP, and
//! read the texts of requests (`lanes.rs`). `shares.rs` divides the queue between clients, `http/places.rs`
//! the connections.
//! `models.rs` decides which models are loaded. Each endpoint family is a file or a folder of `api/`. It
//! converts requests to jobs (`job.rs`) and their updates to answers, and does not depend on other families.
//! Families share how requests are read: conversations (`messages.rs`), tools (`tool_config.rs`), constraints
//! on the answer (`constraints.rs`), texts to embed or rank (`pooled.rs`); and how answers are built:
//! `answer.rs`, `deltas.rs`, `blocks.rs`. The fields of requests are declared as rows (`fields.rs`), each of
//! a kind (`kinds.rs`). Requests and answers are types that describe themselves to `api/openapi.rs`, and
//! whole answers are folds of their streams. Other services run on the same jobs as a [`Companion`]; the
//! crate in `grpc/` is one, for routers that serve several servers. [`InProcess`] takes requests without a
//! listener. This crate never depends on command-line flags or devices; its messages for clients name flags
//! of `sterna serve`. Start at [`Server`], then `api/mod.rs`.
#![forbid(unsafe_code)]

mod adapter_folder;
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
mod fetch_image;
mod fields;
mod handover;
mod http;
mod images;
mod in_process;
mod instance;
mod job;
mod kinds;
mod lanes;
mod local;
mod messages;
mod metrics;
mod model;
mod models;
mod options;
mod page;
mod pooled;
mod prompts;
mod results;
mod sampling;
mod server;
mod shares;
mod slots;
mod status;
mod tool_config;
mod watchdog;
mod worker;

pub use adapter_folder::AdapterFolder;
pub use companion::{Companion, Endpoint};
pub use error::ServeError;
pub use fetch_image::FetchImage;
pub use in_process::{Answer, Canceller, InProcess, Listening, Piece};
pub use local::LocalPage;
pub use model::{LoadError, Loaded, ModelSource, Opened};
pub use options::{ServeOptions, TlsFiles};
pub use server::{Server, Stopper};
pub use slots::SlotLimits;
