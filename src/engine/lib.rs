//! Runs a model: many sequences in a batch or one in a session; prefill and decode, sampling, stop rules.
//!
//! The engine sees the model as a program and the device as a backend, and must never depend on an
//! architecture or a kernel. Start at [`Engine`], then [`Session`] and [`Generation`], then [`Batch`].
#![forbid(unsafe_code)]

mod act;
mod adapter;
mod adapters;
mod batch;
mod broken;
mod constraint;
mod control;
mod conversation;
mod decoder;
mod draft_block;
mod draft_model;
pub mod error;
mod fault;
pub mod fit;
mod generate;
mod handle;
mod head;
mod key_stats;
mod load;
mod logprobs;
mod mtp;
mod options;
mod pages;
mod pool;
pub mod recommended;
mod rerank;
mod runner;
mod sampler;
mod sequence;
mod session;
mod speculate;
pub mod speed;
mod state;
mod stats;
mod stop;
mod upload;
pub mod vision;

pub use act::{ACT_TYPES, ActType};
pub use adapter::Adapter;
pub use batch::{
    Batch, BatchOptions, BatchStats, PageEvent, PageListener, Pooled, PrefixStats, Request, SavedSize, SeqId,
    SequenceStatus,
};
pub use constraint::{Constraint, ConstraintError, Grammar, TokenMask};
pub use control::ControlVector;
pub use conversation::{Answer, Conversation};
pub use decoder::{Decoder, Event, PickedToken, StopReason};
pub use draft_model::DraftModel;
pub use error::{Error, StateError};
pub use fault::{BrokenLogits, BrokenStage, Fault};
pub use generate::Generation;
pub use handle::Engine;
pub use head::{HEAD_TYPES, HeadType};
pub use load::{EngineOptions, memory, plan, program};
pub use load::{FewLayers, fits, model};
pub use logprobs::LogProbs;
pub use mtp::{DraftHead, Mtp};
pub use options::GenerateOptions;
pub use pool::normalise;
pub use rerank::{Pairs, cut};
pub use sampler::{Sampler, SamplerError, SamplerOptions};
pub use session::Session;
pub use speculate::{Drafter, MtpDrafts, NgramLookup, Speculation};
pub use stats::{AcceptedAt, Stats};
pub use sterna_model::Pooling;
pub use sterna_program::AdapterScale;
pub use upload::{Progress, upload};
pub use vision::{ImageError, ImageRows, Mmproj, Picture, PlacedImage, Vision};

/// Positions of a page.
pub const PAGE: usize = sterna_program::PAGE;
