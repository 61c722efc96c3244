//! Code shared by all types whose rows are blocks of a fixed size, optionally with a scale before them.

use std::fmt;

use crate::{Dialect, QuantError, QuantType, Ternary};

/// A type whose rows are consecutive blocks. Implementing it gives a [`QuantType`].
pub(crate) trait Block: fmt::Debug + Sync {
    const NAME: &'static str;
    const IDS: &'static [(Dialect, u32)];
    /// See [`QuantType::file_type`].
    const FILE_TYPE: Option<u32> = None;
    /// Elements and bytes of one block.
    const ELEMS: usize;
    const BYTES: usize;
    /// Bytes of a row before its blocks, for data that they share.
    const HEAD_BYTES: usize = 0;
    /// True if values are -scale, 0 and scale.
    const TERNARY: bool = false;
    /// True if there is an encoder.
    const ENCODES: bool = true;
    /// True if every build has the encoder: output heads are converted to such a type when a model is loaded.
    const FOR_HEADS: bool = false;
    /// Weighting of errors if columns have an importance; `None` if the encoding has no choice.
    const WEIGHING: Option<Weighing> = None;

    /// `block` is `BYTES` long, `out` is `ELEMS` long.
    fn decode(block: &[u8], out: &mut [f32]);

    /// Applies the shared data of a row's blocks to the decoded row; `head` is `HEAD_BYTES` long.
    fn apply_head(_head: &[u8], _out: &mut [f32]) {}

    /// Writes the shared data of a row's blocks to `head`, which is zero, and returns the unit: the blocks
    /// are encoded as multiples of it.
    fn encode_head(_values: &[f32], _head: &mut [u8]) -> f32 {
        1.0
    }

    /// `values` and `weights`, the factors of squared errors, are `ELEMS` long; `block` is `BYTES` long and
    /// zero.
    fn encode(_values: &[f32], _weights: &[f32], _block: &mut [u8]) {
        unreachable!("{} has no encoder", Self::NAME)
    }

    /// See [`QuantType::error_bound`].
    fn error_bound(_absmax: f32) -> f32 {
        f32::INFINITY
    }
}

/// Weight of an element's squared error, in addition to the importance of its column: upstream's choices,
/// which favour large weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Weighing {
    /// The importance only.
    Plain,
    /// Times the root of the square plus the row's mean square.
    Row,
    /// Times the root of the square plus this many times the block's mean square.
    Block(f32),
}

/// Equal weights for the elements of a block, as long as the largest block.
pub(crate) const ONES: [f32; 256] = [1.0; 256];

impl Weighing {
    fn weigh(self, values: &[f32], importance: &[f32], of_row: f32, out: &mut [f32]) {
        let square = match self {
            Self::Plain => None,
            Self::Row => Some(of_row),
            Self::Block(times) => Some(times * mean_square(values)),
        };
        for ((out, value), importance) in out.iter_mut().zip(values).zip(importance) {
            *out = importance * square.map_or(1.0, |square| (square + value * value).sqrt());
        }
        // Sums of products must not overflow. Every element needs a small weight, even if its column has
        // none: an element without a weight could become anything.
        let largest = absmax(out);
        if largest > 0.0 && largest.is_finite() {
            out.iter_mut().for_each(|weight| *weight = (*weight / largest).max(1e-6));
        } else {
            out.fill(1.0);
        }
    }
}

fn mean_square(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum::<f32>() / values.len().max(1) as f32
}

/// The same id in both dialects.
macro_rules! same_id {
    ($id:expr) => {
        &[($crate::Dialect::Ggml, $id), ($crate::Dialect::BitNet, $id)]
    };
}
pub(crate) use same_id;

/// An id of upstream above those that both dialects share.
macro_rules! upstream_id {
    ($id:expr) => {
        &[($crate::Dialect::Ggml, $id)]
    };
}
pub(crate) use upstream_id;

impl<B: Block> QuantType for B {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn ids(&self) -> &'static [(Dialect, u32)] {
        B::IDS
    }

    fn file_type(&self) -> Option<u32> {
        B::FILE_TYPE
    }

    fn block_elems(&self) -> usize {
        B::ELEMS
    }

    fn ternary(&self) -> Option<Ternary> {
        B::TERNARY.then_some(if B::HEAD_BYTES > 0 { Ternary::PerRow } else { Ternary::PerBlock })
    }

    fn row_bytes(&self, cols: usize) -> Result<usize, QuantError> {
        let n_blocks = n_blocks(B::NAME, cols, B::ELEMS)?;
        let blocks_bytes = n_blocks.checked_mul(B::BYTES);
        let row_bytes = blocks_bytes.and_then(|bytes| bytes.checked_add(B::HEAD_BYTES));
        row_bytes.ok_or(QuantError::Overflow { ty: B::NAME, rows: 1, cols })
    }

    fn byte_len(&self, rows: usize, cols: usize) -> Result<usize, QuantError> {
        let row_bytes = self.row_bytes(cols)?;
        row_bytes.checked_mul(rows).ok_or(QuantError::Overflow { ty: B::NAME, rows, cols })
    }

    fn decode_row(&self, bytes: &[u8], rows: usize, row: usize, out: &mut [f32]) -> Result<(), QuantError> {
        check_tensor(self, bytes, rows, row, out.len())?;
        let row_bytes = self.row_bytes(out.len())?;
        let (head, blocks) = bytes[row * row_bytes..][..row_bytes].split_at(B::HEAD_BYTES);
        for (block, out) in blocks.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(B::ELEMS)) {
            B::decode(block, out);
        }
        B::apply_head(head, out);
        Ok(())
    }

    fn encodes(&self) -> bool {
        encodes::<B>()
    }

    fn encode(&self, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
        check_values(B::NAME, values, rows, cols)?;
        let mut bytes = vec![0; self.byte_len(rows, cols)?];
        if !encodes::<B>() {
            return Err(QuantError::ReadOnly { ty: B::NAME });
        }
        if B::HEAD_BYTES > 0 {
            let row_bytes = self.row_bytes(cols)?;
            for (values, row) in values.chunks_exact(cols.max(1)).zip(bytes.chunks_exact_mut(row_bytes)) {
                encode_row::<B>(values, row);
            }
            return Ok(bytes);
        }
        for (values, block) in values.chunks_exact(B::ELEMS).zip(bytes.chunks_exact_mut(B::BYTES)) {
            B::encode(values, &ONES[..B::ELEMS], block);
        }
        Ok(bytes)
    }

    fn weighs(&self) -> bool {
        B::WEIGHING.is_some()
    }

    fn encode_weighted(&self, values: &[f32], importance: &[f32]) -> Result<Vec<u8>, QuantError> {
        let Some(weighing) = B::WEIGHING.filter(|_| encodes::<B>()) else {
            return self.encode(values, 1, values.len());
        };
        check_values(B::NAME, importance, 1, values.len())?;
        let mut bytes = vec![0; self.byte_len(1, values.len())?];
        let of_row = mean_square(values);
        let mut weights = vec![0.0; B::ELEMS];
        let blocks = values.chunks_exact(B::ELEMS).zip(importance.chunks_exact(B::ELEMS));
        for ((values, importance), block) in blocks.zip(bytes.chunks_exact_mut(B::BYTES)) {
            weighing.weigh(values, importance, of_row, &mut weights);
            B::encode(values, &weights, block);
        }
        Ok(bytes)
    }

    fn error_bound(&self, absmax: f32) -> f32 {
        B::error_bound(absmax)
    }
}

const fn encodes<B: Block>() -> bool {
    B::ENCODES && (B::FOR_HEADS || cfg!(feature = "encode"))
}

/// Encodes a row of blocks that share data.
fn encode_row<B: Block>(values: &[f32], row: &mut [u8]) {
    let (head, blocks) = row.split_at_mut(B::HEAD_BYTES);
    let unit = B::encode_head(values, head);
    let mut multiples = vec![0.0; B::ELEMS];
    for (values, block) in values.chunks_exact(B::ELEMS).zip(blocks.chunks_exact_mut(B::BYTES)) {
        multiples.iter_mut().zip(values).for_each(|(multiple, value)| *multiple = value / unit);
        B::encode(&multiples, &ONES[..B::ELEMS], block);
    }
}

/// Blocks of a row.
pub(crate) fn n_blocks(ty: &'static str, cols: usize, block_elems: usize) -> Result<usize, QuantError> {
    if cols.is_multiple_of(block_elems) {
        return Ok(cols / block_elems);
    }
    Err(QuantError::Shape { ty, detail: format!("want columns in blocks of {block_elems}, found {cols}") })
}

/// Checks that `bytes` holds the tensor, and that the tensor has the row.
pub(crate) fn check_tensor(
    ty: &dyn QuantType,
    bytes: &[u8],
    rows: usize,
    row: usize,
    cols: usize,
) -> Result<(), QuantError> {
    let want = ty.byte_len(rows, cols)?;
    if row >= rows {
        return Err(QuantError::Shape {
            ty: ty.name(),
            detail: format!("want a row below {rows}, found {row}"),
        });
    }
    if bytes.len() < want {
        return Err(QuantError::Truncated { ty: ty.name(), want, got: bytes.len() });
    }
    Ok(())
}

/// Checks that `values` is `[rows, cols]`.
pub(crate) fn check_values(
    ty: &'static str,
    values: &[f32],
    rows: usize,
    cols: usize,
) -> Result<(), QuantError> {
    if rows.checked_mul(cols) == Some(values.len()) {
        return Ok(());
    }
    Err(QuantError::Shape { ty, detail: format!("want {rows} x {cols} values, found {}", values.len()) })
}

/// Error of rounding to f16: half a step for numbers up to `value`; infinite beyond f16's range.
pub(crate) fn f16_rounding(value: f32) -> f32 {
    // 65520 is the first number that rounds to infinity; 2^-25 is half a subnormal step.
    if value >= 65520.0 { f32::INFINITY } else { (value * 2f32.powi(-11)).max(2f32.powi(-25)) }
}

/// A fitted scale as an f16. If f16 can hold the `plain` scale of the values, a fitted one slightly beyond
/// its range becomes the largest f16.
pub(crate) fn fitted_f16(scale: f32, plain: f32) -> half::f16 {
    let limit = if f16_rounding(plain).is_finite() { half::f16::MAX.to_f32() } else { f32::INFINITY };
    half::f16::from_f32(scale.clamp(-limit, limit))
}

/// An f16 at the start of `bytes`.
pub(crate) fn read_f16(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The largest magnitude; 0 for no values.
pub(crate) fn absmax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, value| max.max(value.abs()))
}

/// The code 0, 1 or 2 of the ternary value nearest to `ratio`, halves away from zero; 1 for NaN.
pub(crate) fn ternary_code(ratio: f32) -> u8 {
    (ratio.round().clamp(-1.0, 1.0) as i8 + 1).cast_unsigned()
}

/// The reciprocal, 0 for 0.
pub(crate) fn reciprocal(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}
