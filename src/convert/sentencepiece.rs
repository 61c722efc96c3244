//! `tokenizer.model`: the parts of SentencePiece's protocol buffer that a GGUF file needs.

use std::path::Path;

use prost::Message;

use super::ConvertError;

/// The pieces of a BPE model.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    /// In the order of their ids.
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

/// One token.
#[derive(Clone, PartialEq, Message)]
pub struct Piece {
    /// Text, with U+2581 for a space.
    #[prost(string, optional, tag = "1")]
    pub piece: Option<String>,
    /// Higher scores merge first.
    #[prost(float, optional, tag = "2")]
    pub score: Option<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte: the same numbers as in GGUF.
    #[prost(int32, optional, tag = "3")]
    pub kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    /// 1 unigram, 2 BPE, 3 words, 4 characters.
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
}

impl Model {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a file that is not a SentencePiece model, has no pieces, or is not a BPE
    /// model.
    pub fn read(path: &Path) -> Result<Self, ConvertError> {
        let bytes = std::fs::read(path).map_err(|err| ConvertError::file(path, err))?;
        let model = Self::decode(&bytes[..])
            .map_err(|err| ConvertError::file(path, format!("is not a SentencePiece model: {err}")))?;
        if model.pieces.is_empty() {
            return Err(ConvertError::file(path, "is a SentencePiece model without pieces"));
        }
        match model.trainer.as_ref().and_then(|trainer| trainer.model_type).unwrap_or(1) {
            2 => Ok(model),
            1 => Err(ConvertError::file(path, "is a unigram model, want BPE")),
            other => Err(ConvertError::file(path, format!("is a model of kind {other}, want 2 (BPE)"))),
        }
    }

    /// True if a space is prepended to each text.
    pub fn adds_prefix(&self) -> bool {
        self.normalizer.as_ref().and_then(|normalizer| normalizer.add_dummy_prefix).unwrap_or(true)
    }
}
