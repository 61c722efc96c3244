//! Errors of loading and running a model, as one type.

use std::io;

use sterna_backend::BackendError;
use sterna_gguf::GgufError;
use sterna_model::ModelError;
use sterna_tokenizer::TokenizerError;
use sterna_tokenizer::chat::ChatError;

use super::constraint::ConstraintError;
use super::fault::{BrokenLogits, Fault};
use super::sampler::SamplerError;
use super::vision::picture::{ImageError, SET_BATCH, SET_MMPROJ};

/// Error of the engine. Each message states what was expected, what was found, and where; options are named
/// by path, such as `EngineOptions::n_ctx`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a GGUF file, or is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file contains no model that can be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A LoRA adapter is damaged, not supported, or not one of this model.
    #[error("adapter {name}: {error}")]
    Adapter {
        /// Its name for users.
        name: String,
        /// The fault.
        error: ModelError,
    },
    /// A file that drafts for the model is damaged, or was made for another model.
    #[error("the file that drafts for the model: {error}")]
    Draft {
        /// The fault.
        error: ModelError,
    },
    /// A control vector is damaged, or not one of this model.
    #[error("control vector {name}: {error}")]
    ControlVector {
        /// Its name for users.
        name: String,
        /// The fault.
        error: ModelError,
    },
    /// The vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot render the conversation.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The backend cannot run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A sampling option is outside its range.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The constraint of a sequence fails, or allows no token.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The model's logits are NaN or infinite.
    #[error(transparent)]
    BrokenLogits(#[from] BrokenLogits),
    /// A session cannot be saved or restored.
    #[error(transparent)]
    State(#[from] StateError),
    /// An image cannot be part of a prompt.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The model only makes embeddings and generates no text.
    #[error(
        "a model of architecture `{architecture}` only makes embeddings and generates no text; see \
         `sterna embed`"
    )]
    NoHead {
        /// Its architecture.
        architecture: String,
    },
    /// An engine option is outside its range.
    #[error("{option}: want {want}, got {got}")]
    Option {
        /// Its path, such as `EngineOptions::n_ctx`.
        option: &'static str,
        /// The range.
        want: String,
        /// The value.
        got: String,
    },
    /// The model does not fit this machine.
    #[error(
        "the model needs {} ({} weights, {} KV cache of {n_ctx} positions, {} buffers), {} free{}",
        binary_units(weights_bytes + kv_bytes + bufs_bytes),
        binary_units(*weights_bytes),
        binary_units(*kv_bytes),
        binary_units(*bufs_bytes),
        binary_units(*free_bytes),
        SHORTER.concat()
    )]
    DoesNotFit {
        /// All weights.
        weights_bytes: u64,
        /// All KV caches.
        kv_bytes: u64,
        /// Activation buffers.
        bufs_bytes: u64,
        /// Free memory of the backend, in bytes.
        free_bytes: u64,
        /// Positions per session.
        n_ctx: usize,
    },
    /// More tokens than the context of a session has positions.
    #[error("{}{}", no_room(*n_ctx, *used, *more), SET_CONTEXT.concat())]
    ContextFull {
        /// Positions of the session.
        n_ctx: usize,
        /// Used positions.
        used: usize,
        /// Tokens to be added.
        more: usize,
    },
    /// All sequence slots are taken.
    #[error("all {n_seqs} sessions of this engine are in use")]
    NoSession {
        /// Slots of the engine.
        n_seqs: usize,
    },
    /// A session was requested while a batch uses the engine.
    #[error("a batch is using this engine: it runs one batch, or sessions, at a time")]
    InBatch,
    /// A batch was requested while sessions use the engine.
    #[error("{live} sessions of this engine are in use; a batch needs the engine for itself")]
    Sessions {
        /// Number of live sessions.
        live: usize,
    },
    /// The pool has no free page for a session's step.
    #[error("the KV cache is full: a sequence needs {need} pages of 64 positions, and {free} pages are free")]
    OutOfPages {
        /// Pages that the sequence needs.
        need: usize,
        /// Free pages.
        free: usize,
    },
    /// The prompt needs more pages than the pool has.
    #[error("{tokens} tokens need {need} pages of 64 positions, and the whole KV cache has {pages}")]
    NeverFits {
        /// Number of prompt tokens.
        tokens: usize,
        /// Pages that it needs.
        need: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// The model does not have this token id.
    #[error("token {token} is not in the vocabulary of {n_vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Rows of the embedding table.
        n_vocab: usize,
    },
    /// The vocabulary of the draft model differs.
    #[error("a draft model needs the vocabulary of its model: {what}")]
    DraftVocabulary {
        /// The first difference.
        what: String,
    },
    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
}

/// The start of [`Error::ContextFull`].
fn no_room(n_ctx: usize, used: usize, more: usize) -> String {
    if used == 0 {
        return format!("the text is too long: it needs {more} positions, and the context has {n_ctx}");
    }
    let what = if used < n_ctx { "the text is too long" } else { "the context is full" };
    format!("{what}: {used} of {n_ctx} positions are used and {more} more are needed")
}

/// The end of [`Error::DoesNotFit`].
const SHORTER: [&str; 3] = ["; a smaller ", "EngineOptions::n_ctx", " takes less"];

/// The end of [`Error::ContextFull`].
const SET_CONTEXT: [&str; 3] = ["; ", "EngineOptions::n_ctx", " sets it"];

impl Error {
    /// True if another KV cache type may avoid the error: the backend has no kernels, or the model cannot use
    /// the type.
    pub fn is_of_cache_type(&self) -> bool {
        match self {
            Self::Backend(err) => matches!(err, BackendError::Missing { .. }),
            Self::Option { option, .. } => {
                matches!(*option, "EngineOptions::cache_type_k" | "EngineOptions::cache_type_v")
            }
            _ => false,
        }
    }

    /// The end of the message that names an option which avoids the error: the text before the option, the
    /// option by its path, and the text after it.
    pub fn way_out(&self) -> Option<[&'static str; 3]> {
        match self {
            Self::Gguf(err) => err.way_out(),
            Self::Tokenizer(err) => err.way_out(),
            Self::DoesNotFit { .. } => Some(SHORTER),
            Self::ContextFull { .. } => Some(SET_CONTEXT),
            Self::Image(ImageError::NoTower) => Some(SET_MMPROJ),
            Self::Image(ImageError::Batch { .. }) => Some(SET_BATCH),
            _ => None,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Constraint(err) => Self::Constraint(err),
            Fault::BrokenLogits(err) => Self::BrokenLogits(err),
        }
    }
}

/// An unknown value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want one of {}, got {got}", .want.join(", "))]
pub struct UnknownWord {
    /// The known values.
    pub want: &'static [&'static str],
    /// The given value.
    pub got: String,
}

/// Reason why a session could not be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a saved session.
    #[error("not a saved session: it does not begin with `{STATE_TITLE}`")]
    Unknown,
    /// The session was saved by a different engine.
    #[error("the session was saved with {what} {saved}, and this engine has {here}")]
    Other {
        /// The property that differs.
        what: &'static str,
        /// Its value in the file.
        saved: String,
        /// Its value in the engine.
        here: String,
    },
    /// The file is truncated or inconsistent.
    #[error("the saved session is damaged: {0}")]
    Damaged(&'static str),
}

/// The first line of a saved session.
pub(super) const STATE_TITLE: &str = concat!("sterna ", env!("CARGO_PKG_VERSION"), " session");

/// Formats a number of bytes in binary units.
pub fn binary_units(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / 1048576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1073741824.0),
    }
}
