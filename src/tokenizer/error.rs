//! Why a vocabulary cannot be used.

use sterna_gguf::GgufError;

/// Error with what was expected, what was found, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A kind of tokenizer that is not here.
    #[error(
        "tokenizer.ggml.model is `{found}`; this build reads `gpt2` (byte-level BPE), `llama` \
         (SentencePiece BPE) and `bert` (WordPiece)"
    )]
    UnknownModel {
        /// Value of `tokenizer.ggml.model`.
        found: String,
    },
    /// A pre-tokenizer that is not here.
    #[error("unknown pre-tokenizer `{found}`; choose one with TokenizerOptions::pre: {known}")]
    UnknownPre {
        /// Value of `tokenizer.ggml.pre`, or of [`TokenizerOptions::pre`](super::TokenizerOptions::pre).
        found: String,
        /// Every name there is.
        known: String,
    },
    /// An array that must have one entry a token has another length.
    #[error("metadata key `{key}`: want {want} entries, one a token, found {got}")]
    Length {
        /// The key.
        key: &'static str,
        /// Number of tokens.
        want: usize,
        /// Number of entries.
        got: usize,
    },
    /// A vocabulary whose size no token id can express, or that is empty.
    #[error("metadata key `tokenizer.ggml.tokens`: want 1 to {} tokens, found {got}", u32::MAX - 1)]
    Size {
        /// Number of tokens.
        got: usize,
    },
}
