//! Everything that can go wrong when a model is loaded and run, as one type.

use std::io;

use sterna_backend::BackendError;
use sterna_gguf::GgufError;
use sterna_model::ModelError;
use sterna_tokenizer::TokenizerError;
use sterna_tokenizer::chat::ChatError;

use super::{BrokenLogits, ConstraintError, Fault, SamplerError};

/// Error of the engine. Each message says what was expected, what was found, and
/// where; an option is named by its path, as in `EngineOptions::n_ctx`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is no GGUF file, or a broken one.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file holds no model that can be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The conversation cannot be put into a template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The backend cannot run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A sampling option is outside its range.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The constraint of a sequence fails, or leaves no token.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The model's logits are no numbers.
    #[error(transparent)]
    BrokenLogits(#[from] BrokenLogits),
    /// A saved session cannot be taken up, or not be saved.
    #[error(transparent)]
    State(#[from] StateError),
    /// The model makes vectors of texts and picks no tokens.
    #[error(
        "a model of architecture `{architecture}` makes vectors of texts (embeddings) and no text; see \
         `sterna embed`"
    )]
    NoHead {
        /// Its architecture.
        architecture: String,
    },
    /// An engine option is outside its range.
    #[error("{option}: want {want}, got {got}")]
    Option {
        /// Its path: `EngineOptions::n_ctx`.
        option: &'static str,
        /// The range.
        want: String,
        /// The value.
        got: String,
    },
    /// The model does not fit this machine.
    #[error(
        "the model needs {} ({} weights, {} KV cache of {n_ctx} positions, {} buffers), {} free; \
         a smaller EngineOptions::n_ctx takes less",
        binary_units(weights_bytes + kv_bytes + bufs_bytes),
        binary_units(*weights_bytes),
        binary_units(*kv_bytes),
        binary_units(*bufs_bytes),
        binary_units(*free_bytes)
    )]
    DoesNotFit {
        /// All weights.
        weights_bytes: u64,
        /// All KV caches.
        kv_bytes: u64,
        /// Activation buffers.
        bufs_bytes: u64,
        /// Bytes that the backend has left.
        free_bytes: u64,
        /// Positions of each session.
        n_ctx: usize,
    },
    /// More tokens than a session's context holds.
    #[error(
        "the context is full: {used} of {n_ctx} positions are used and {more} more are needed; \
         EngineOptions::n_ctx sets it"
    )]
    ContextFull {
        /// Positions of the session.
        n_ctx: usize,
        /// Positions that hold a token.
        used: usize,
        /// Tokens that were to be added.
        more: usize,
    },
    /// All sequence slots are taken.
    #[error("all {n_seqs} sessions of this engine are in use")]
    NoSession {
        /// Slots of the engine.
        n_seqs: usize,
    },
    /// Sessions are refused while a batch has the engine.
    #[error("a batch is using this engine: it runs one batch, or sessions, at a time")]
    InBatch,
    /// A batch wants the engine for itself.
    #[error("{live} sessions of this engine are in use; a batch needs the engine for itself")]
    Sessions {
        /// Sessions that live.
        live: usize,
    },
    /// The pool has no page for a session's step.
    #[error("the KV cache is full: a sequence needs {need} pages of 64 positions, and {free} pages are free")]
    OutOfPages {
        /// Pages that the sequence would hold.
        need: usize,
        /// Pages without a holder.
        free: usize,
    },
    /// A prompt that the pool could not hold if it had it for itself.
    #[error("{tokens} tokens need {need} pages of 64 positions, and the whole KV cache has {pages}")]
    NeverFits {
        /// Tokens of the prompt.
        tokens: usize,
        /// Pages that they take.
        need: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// A token id that the model does not have.
    #[error("token {token} is not in the vocabulary of {n_vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Rows of the embedding table.
        n_vocab: usize,
    },
    /// A draft model of another vocabulary.
    #[error("a draft model needs the vocabulary of its model: it has {what}")]
    DraftVocabulary {
        /// The first difference.
        what: String,
    },
    /// Nothing to feed: a prompt of no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Constraint(err) => Self::Constraint(err),
            Fault::BrokenLogits(err) => Self::BrokenLogits(err),
        }
    }
}

/// A word that an option does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want one of {}, got {got}", .want.join(", "))]
pub struct UnknownWord {
    /// The words that it takes.
    pub want: &'static [&'static str],
    /// The word.
    pub got: String,
}

/// Reason why a session could not be saved or taken up.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("not a saved session: it does not begin with `{STATE_TITLE}`")]
    Unknown,
    /// It was saved by an engine that is different.
    #[error("the session was saved with {what} {saved}, and this engine has {here}")]
    Other {
        /// The property that differs.
        what: &'static str,
        /// Its value in the file.
        saved: String,
        /// Its value in the engine.
        here: String,
    },
    /// It ends early, or its parts contradict each other.
    #[error("the saved session is damaged: {0}")]
    Damaged(&'static str),
}

/// The first line of a saved session.
pub(super) const STATE_TITLE: &str = concat!("sterna ", env!("CARGO_PKG_VERSION"), " session");

/// Bytes for people, in binary units.
pub fn binary_units(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / 1048576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1073741824.0),
    }
}
