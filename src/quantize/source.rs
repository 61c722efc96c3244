//! Sources of the tensors of a model.

use std::fmt::Debug;

use bytes::Bytes;
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

    /// The bytes of a tensor of integers, which is not a weight.
    ///
    /// # Errors
    /// [`QuantizeError::Gguf`].
    ///
    /// # Panics
    /// If it is another tensor.
    fn integers(&self, at: usize) -> Result<Bytes, QuantizeError> {
        panic!("{}: not a tensor of integers", self.tensors()[at].name)
    }
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

    fn integers(&self, at: usize) -> Result<Bytes, QuantizeError> {
        let info = &self.tensors()[at];
        let n_bytes = integer_bytes(info).unwrap_or(info.n_bytes);
        Ok(self.raw_piece(info, 0..n_bytes.min(info.n_bytes))?)
    }
}

/// Size of a tensor of integers in bytes; `None` for weights.
pub(super) fn integer_bytes(info: &TensorInfo) -> Option<u64> {
    // I8 to I64, as the format numbers them.
    let each = match info.type_id {
        24 => 1,
        25 => 2,
        26 => 4,
        27 => 8,
        _ => return None,
    };
    Some(info.n_elems() as u64 * each).filter(|_| info.ty.is_none())
}
