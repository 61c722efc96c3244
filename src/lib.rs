//! Sterna runs ternary language models (BitNet b1.58 and its derivatives) and ordinary ones (Llama, Qwen,
//! Gemma and others) from GGUF files.
//!
//! ```no_run
//! use sterna::engine::{Engine, EngineOptions, GenerateOptions};
//! use sterna::tokenizer::Special;
//!
//! let engine = Engine::open("model.gguf", &EngineOptions::default())?;
//! let prompt = engine.tokenizer()?.encode("Once upon a time", Special::Parse, true);
//! for piece in engine.session()?.generate(&prompt, &GenerateOptions::default())? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), sterna::Error>(())
//! ```
//!
//! - [`engine`] is the starting point: an [`Engine`](engine::Engine) is a loaded model, a
//!   [`Session`](engine::Session) one sequence of tokens, a [`Generation`](engine::Generation) an iterator of
//!   text; [`SamplerOptions`](engine::SamplerOptions) set the sampling.
//! - `grammar` (feature `grammar`) constrains text to JSON schemas, regular expressions and grammars.
//! - [`tools`] parses and constrains tool calls in a model's output.
//! - [`gguf`] reads and writes model files, [`tokenizer`] reads their vocabularies; [`quantize`] and
//!   [`synth`] create models, [`demo`] is a built-in one, and [`eval`] measures models. `convert` (feature
//!   `convert`) converts Hugging Face checkpoints to GGUF.
//! - [`card`] exports a model's configuration files for routers.
//! - `serve` (feature `serve`) is the server, `grpc` (feature `grpc`) adds vLLM's gRPC API.
//! - `hub` (feature `hub`) downloads models from the Hugging Face hub.
//! - [`model`] converts a file to a [`program`], which a [`backend`] runs; [`selftest`] compares a backend
//!   with the CPU.
#![deny(unsafe_code)]

pub mod card;
#[cfg(feature = "cli")]
pub mod cli;
pub mod demo;

pub use sterna_backend as backend;
#[cfg(feature = "convert")]
pub use sterna_convert as convert;
pub use sterna_engine as engine;
pub use sterna_engine::Error;
pub use sterna_eval as eval;
pub use sterna_gguf as gguf;
#[cfg(feature = "grammar")]
pub use sterna_grammar as grammar;
#[cfg(feature = "grpc")]
pub use sterna_grpc as grpc;
#[cfg(feature = "hub")]
pub use sterna_hub as hub;
#[cfg(feature = "cli")]
pub use sterna_image as image;
pub use sterna_model as model;
pub use sterna_program as program;
pub use sterna_quantize as quantize;
pub use sterna_selftest as selftest;
#[cfg(feature = "serve")]
pub use sterna_serve as serve;
pub use sterna_synth as synth;
pub use sterna_tokenizer as tokenizer;
pub use sterna_tools as tools;
