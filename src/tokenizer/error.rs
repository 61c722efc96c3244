//! Errors of loading a vocabulary.

use sterna_gguf::GgufError;

/// Each message says what was expected, what was found, and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// The tokenizer model is not supported.
    #[error(
        "tokenizer.ggml.model is `{found}`; this build reads `gpt2` (byte-level BPE), `llama` \
         (SentencePiece BPE), `gemma4` (BPE of characters) and `bert` (WordPiece)"
    )]
    UnknownModel {
        /// Value of `tokenizer.ggml.model`.
        found: String,
    },
    /// The pre-tokenizer is not supported.
    #[error("unknown pre-tokenizer `{found}`: want one of {known}{}", CHOOSE_PRE.concat())]
    UnknownPre {
        /// Value of `tokenizer.ggml.pre`, or of [`TokenizerOptions::pre`](super::TokenizerOptions::pre).
        found: String,
        /// All supported names.
        known: String,
    },
    /// An array does not have one entry per token.
    #[error("metadata key `{key}`: want {want} entries, one per token, found {got}")]
    Length {
        /// The key.
        key: &'static str,
        /// Number of tokens.
        want: usize,
        /// Number of entries.
        got: usize,
    },
    /// The vocabulary is empty, or larger than token ids can express.
    #[error("metadata key `tokenizer.ggml.tokens`: want 1 to {} tokens, found {got}", u32::MAX - 1)]
    Size {
        /// Number of tokens.
        got: usize,
    },
}

/// The end of [`TokenizerError::UnknownPre`].
const CHOOSE_PRE: [&str; 3] = ["; choose with ", "TokenizerOptions::pre", ""];

impl TokenizerError {
    /// The end of the message that names an option which avoids the error: the text before the option, the
    /// option by its path, and the text after it.
    pub fn way_out(&self) -> Option<[&'static str; 3]> {
        matches!(self, Self::UnknownPre { .. }).then_some(CHOOSE_PRE)
    }
}
