//! A tensor on the host: name, type, shape, and the bytes as stored in the file.

use bytes::Bytes;

use crate::QuantType;

/// A tensor in host memory. The bytes are shared, so a clone is cheap and keeps the mapped file alive.
#[derive(Clone, Debug)]
pub struct HostTensor {
    /// GGUF name, `blk.3.attn_q.weight`.
    pub name: String,
    /// Type of the bytes.
    pub ty: &'static dyn QuantType,
    /// All outer dimensions multiplied; 1 for a vector.
    pub rows: usize,
    /// The contiguous dimension.
    pub cols: usize,
    /// Exactly `ty.byte_len(rows, cols)` bytes.
    pub bytes: Bytes,
}
