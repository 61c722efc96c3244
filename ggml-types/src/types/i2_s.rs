//! I2_S: ternary weights of microsoft/BitNet; 2 bits each, value = (code - 1) x scale.
//!
//! A 32-byte block holds 128 weights: weight `j` is in byte `j % 32`, at shift `6 - 2 (j / 32)`. Rows
//! follow each other; behind the last one come the tensor's one f32 scale and 28 bytes of padding.
//! Files have this layout on every platform. Code 3 is never written and decodes to 0.

use crate::block::{absmax, check_tensor, check_values, n_blocks, reciprocal};
use crate::{Dialect, QuantError, QuantType, ids};

/// Weights and bytes of a block.
const BLOCK_ELEMS: usize = 128;
const BLOCK_BYTES: usize = 32;
/// Scale and padding behind the rows.
const TAIL_BYTES: usize = 32;

/// `rows x cols / 4 + 32` bytes.
#[derive(Debug)]
pub struct I2S;

impl QuantType for I2S {
    fn name(&self) -> &'static str {
        "i2_s"
    }

    fn ids(&self) -> &'static [(Dialect, u32)] {
        &[(Dialect::BitNet, ids::BITNET_TYPE_I2_S)]
    }

    fn block_elems(&self) -> usize {
        BLOCK_ELEMS
    }

    fn row_bytes(&self, cols: usize) -> Result<usize, QuantError> {
        // Smaller than `cols`, so the product cannot overflow.
        Ok(n_blocks(self.name(), cols, BLOCK_ELEMS)? * BLOCK_BYTES)
    }

    fn byte_len(&self, rows: usize, cols: usize) -> Result<usize, QuantError> {
        let codes = self.row_bytes(cols)?.checked_mul(rows);
        codes.and_then(|codes| codes.checked_add(TAIL_BYTES)).ok_or(QuantError::Overflow {
            ty: self.name(),
            rows,
            cols,
        })
    }

    fn decode_row(&self, bytes: &[u8], rows: usize, row: usize, out: &mut [f32]) -> Result<(), QuantError> {
        check_tensor(self, bytes, rows, row, out.len())?;
        let row_bytes = self.row_bytes(out.len())?;
        let (codes, tail) = bytes.split_at(rows * row_bytes);
        let scale = f32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
        let blocks = codes[row * row_bytes..][..row_bytes].chunks_exact(BLOCK_BYTES);
        for (block, out) in blocks.zip(out.chunks_exact_mut(BLOCK_ELEMS)) {
            for (elem, out) in out.iter_mut().enumerate() {
                *out = match block[elem % BLOCK_BYTES] >> shift(elem) & 3 {
                    0 => -scale,
                    2 => scale,
                    _ => 0.0,
                };
            }
        }
        Ok(())
    }

    fn encode(&self, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
        check_values(self.name(), values, rows, cols)?;
        let mut bytes = vec![0; self.byte_len(rows, cols)?];
        let scale = absmax(values);
        let inverse = reciprocal(scale);
        let (codes, tail) = bytes.split_at_mut(rows * self.row_bytes(cols)?);
        tail[..4].copy_from_slice(&scale.to_le_bytes());
        for (values, block) in values.chunks_exact(BLOCK_ELEMS).zip(codes.chunks_exact_mut(BLOCK_BYTES)) {
            for (elem, value) in values.iter().enumerate() {
                let code = ((value * inverse).round() as i8 + 1) as u8;
                block[elem % BLOCK_BYTES] |= code << shift(elem);
            }
        }
        Ok(bytes)
    }

    /// `absmax` is the tensor's: ternary input is exact, any other is at most half a scale away.
    fn error_bound(&self, absmax: f32) -> f32 {
        0.5001 * absmax
    }
}

/// How far up its byte an element's code stands.
fn shift(elem: usize) -> usize {
    6 - elem / BLOCK_BYTES * 2
}
