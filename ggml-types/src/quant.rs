//! The trait that every weight type implements.

use std::fmt;

/// The project whose numbering a type id follows. Ids above 35 mean different types in the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// ggml as upstream llama.cpp numbers it.
    Ggml,
    /// The forks that microsoft/BitNet ships (I2_S = 36, TL1 = 38, TL2 = 39 or 42).
    BitNet,
}

/// Part of a tensor that shares one scale in a ternary type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ternary {
    /// Each block has its own scale.
    PerBlock,
    /// Each row has its own scale, stored before its blocks.
    PerRow,
    /// The whole tensor has one scale, stored after its rows.
    PerTensor,
}

/// A tensor type: the size and the meaning of its bytes.
///
/// A row's columns are contiguous and rows follow each other without padding. Data that a type stores once
/// per tensor (I2_S: its scale) comes after the last row, and data that it stores once per row (IQ2_BN: its
/// scale) before that row's blocks. So rows have no particular alignment.
pub trait QuantType: fmt::Debug + Sync {
    /// Lower-case name, as on the command line and in file names: `i2_s`.
    fn name(&self) -> &'static str;

    /// All ids of this type in files. Empty for a type that exists only in memory.
    fn ids(&self) -> &'static [(Dialect, u32)];

    /// llama.cpp's number for a model with most weights of this type (`general.file_type`), if it has one.
    fn file_type(&self) -> Option<u32> {
        None
    }

    /// Elements of one block. The columns of a row are a multiple of it.
    fn block_elems(&self) -> usize;

    /// Rows that are stored together: the rows of a tensor are a multiple of it. 1 if each row is stored on
    /// its own.
    fn rows_together(&self) -> usize {
        1
    }

    /// Sharing of scales in a type whose values are -scale, 0 and scale; `None` for any other type.
    fn ternary(&self) -> Option<Ternary> {
        None
    }

    /// The scale of a whole tensor, whose bytes are `bytes`; 1 for a type that stores none after its rows.
    ///
    /// # Errors
    /// [`QuantError::Truncated`] if `bytes` is shorter than the tensor, and the errors of
    /// [`row_bytes`](Self::row_bytes).
    fn tensor_scale(&self, bytes: &[u8], rows: usize, cols: usize) -> Result<f32, QuantError> {
        let _ = (bytes, rows, cols);
        Ok(1.0)
    }

    /// Bytes of one row of `cols` elements, excluding data that the tensor stores after its rows.
    ///
    /// # Errors
    /// [`QuantError::Shape`] if `cols` is not a multiple of the block; [`QuantError::Overflow`].
    fn row_bytes(&self, cols: usize) -> Result<usize, QuantError>;

    /// Bytes of a whole tensor of `rows` x `cols`.
    ///
    /// # Errors
    /// As [`row_bytes`](Self::row_bytes); [`QuantError::Shape`] if `rows` is not a multiple of
    /// [`rows_together`](Self::rows_together).
    fn byte_len(&self, rows: usize, cols: usize) -> Result<usize, QuantError>;

    /// Decodes one row of a tensor: `bytes` is the whole tensor, `out` is `[cols]`. This is the
    /// definition of the type; every faster path is compared with it.
    ///
    /// # Errors
    /// [`QuantError::Truncated`] if `bytes` is shorter than the tensor, and [`QuantError::Shape`] if
    /// `row >= rows` or `out.len()` is not a valid row.
    fn decode_row(&self, bytes: &[u8], rows: usize, row: usize, out: &mut [f32]) -> Result<(), QuantError>;

    /// True if all codes in `rows`, the bytes of whole rows, are valid. Invalid codes are never written by a
    /// quantiser, and a kernel need not define their product. Loaders check this first.
    fn is_valid(&self, rows: &[u8]) -> bool {
        let _ = rows;
        true
    }

    /// True if [`encode`](Self::encode) is available; `false` for a read-only type.
    fn encodes(&self) -> bool {
        true
    }

    /// Encodes `[rows, cols]` values (row after row) into a whole tensor.
    ///
    /// # Errors
    /// [`QuantError::Shape`] if `values` is not `rows x cols` or the type cannot hold such rows;
    /// [`QuantError::ReadOnly`] for a read-only type.
    fn encode(&self, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError>;

    /// True if [`encode_weighted`](Self::encode_weighted) uses the importance of columns.
    fn weighs(&self) -> bool {
        false
    }

    /// Encodes one row with errors weighted by `importance`, the mean square of each column's inputs. It is
    /// as long as `values`, finite, and not negative. A type whose encoding leaves no choice ignores it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`QuantError::Shape`] if the lengths differ.
    fn encode_weighted(&self, values: &[f32], importance: &[f32]) -> Result<Vec<u8>, QuantError> {
        let _ = importance;
        self.encode(values, 1, values.len())
    }

    /// Bound on |decode(encode(v)) - v| for a block whose largest magnitude is `absmax`, for any finite
    /// input. A test checks it for the whole registry.
    fn error_bound(&self, absmax: f32) -> f32;
}

impl dyn QuantType + '_ {
    /// True if both are the same type.
    pub fn is(&self, other: &dyn QuantType) -> bool {
        self.name() == other.name()
    }
}

/// Error for bytes or values that do not fit a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// The bytes end before the tensor does.
    #[error("{ty}: want {want} bytes, found {got}")]
    Truncated {
        /// Name of the type.
        ty: &'static str,
        /// Bytes of the tensor.
        want: usize,
        /// Bytes found.
        got: usize,
    },
    /// A shape that this type cannot hold.
    #[error("{ty}: {detail}")]
    Shape {
        /// Name of the type.
        ty: &'static str,
        /// Expected and found.
        detail: String,
    },
    /// Values for a read-only type.
    #[error(
        "{ty}: this type can be read but not encoded: quantise to q2_k or q3_k, or use llama.cpp's \
         llama-quantize"
    )]
    ReadOnly {
        /// Name of the type.
        ty: &'static str,
    },
    /// The byte count does not fit the address space.
    #[error("{ty}: {rows} x {cols} elements overflow the address space")]
    Overflow {
        /// Name of the type.
        ty: &'static str,
        /// All outer dimensions multiplied.
        rows: usize,
        /// The contiguous dimension.
        cols: usize,
    },
}
