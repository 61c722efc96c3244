//! Sources of the tensors of a model.

use std::fmt::Debug;

use ggml_types::HostTensor;

use super::QuantizeError;
use sterna_gguf::{Gguf, Metadata, TensorInfo};

/// A model whose tensors are computed on request, one at a time.
pub trait TensorSource: Debug {
    /// Keys and values.
    fn metadata(&self) -> &Metadata;

    /// Every tensor in order, with the type that [`tensor`](Self::tensor) returns; `part` and `bytes` are
    /// meaningless if there is no file.
    fn tensors(&self) -> &[TensorInfo];

    /// The whole tensor at this index of [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// [`QuantizeError::Gguf`] for a type without an implementation; [`QuantizeError::Source`].
    fn tensor(&self, at: usize) -> Result<HostTensor, QuantizeError>;
}

impl TensorSource for Gguf {
    fn metadata(&self) -> &Metadata {
        self.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors()
    }

    fn tensor(&self, at: usize) -> Result<HostTensor, QuantizeError> {
        Ok(self.host_tensor(&self.tensors()[at])?)
    }
}
