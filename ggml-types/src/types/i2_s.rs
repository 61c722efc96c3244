//! I2_S: ternary weights of microsoft/BitNet; 2 bits each, value = (code - 1) x scale.
//!
//! A 32-byte block holds 128 weights: weight `j` is in byte `j % 32`, at shift `6 - 2 (j / 32)`. Rows follow
//! each other; the last one is followed by the tensor's one f32 scale and 28 bytes of padding. Files have
//! this layout on every platform. Code 3 is never written and decodes to 0; a tensor that contains it is not
//! valid.

use crate::block::{absmax, check_tensor, check_values, n_blocks, ternary_code};
use crate::{Dialect, QuantError, QuantType, Ternary, ids};

/// Weights and bytes of a block.
const BLOCK_ELEMS: usize = 128;
const BLOCK_BYTES: usize = 32;
/// Scale and padding after the rows.
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

    fn file_type(&self) -> Option<u32> {
        // In the forks of microsoft/BitNet; upstream uses this number for another type.
        Some(40)
    }

    fn block_elems(&self) -> usize {
        BLOCK_ELEMS
    }

    fn ternary(&self) -> Option<Ternary> {
        Some(Ternary::PerTensor)
    }

    fn tensor_scale(&self, bytes: &[u8], rows: usize, cols: usize) -> Result<f32, QuantError> {
        let want = self.byte_len(rows, cols)?;
        let tail = bytes.get(want - TAIL_BYTES..want).and_then(<[u8]>::first_chunk);
        let scale = tail.ok_or(QuantError::Truncated { ty: self.name(), want, got: bytes.len() })?;
        Ok(f32::from_le_bytes(*scale))
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
        let scale = self.tensor_scale(bytes, rows, out.len())?;
        let blocks = bytes[row * row_bytes..][..row_bytes].chunks_exact(BLOCK_BYTES);
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

    fn is_valid(&self, rows: &[u8]) -> bool {
        // Checks for codes with both bits set. There is no early exit, so that the compiler can vectorise it.
        rows.iter().fold(0, |both, byte| both | byte & byte >> 1) & 0b0101_0101 == 0
    }

    fn encode(&self, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
        check_values(self.name(), values, rows, cols)?;
        let mut bytes = vec![0; self.byte_len(rows, cols)?];
        let scale = absmax(values);
        let (codes, tail) = bytes.split_at_mut(rows * self.row_bytes(cols)?);
        tail[..4].copy_from_slice(&scale.to_le_bytes());
        for (values, block) in values.chunks_exact(BLOCK_ELEMS).zip(codes.chunks_exact_mut(BLOCK_BYTES)) {
            for (elem, value) in values.iter().enumerate() {
                block[elem % BLOCK_BYTES] |= ternary_code(value / scale) << shift(elem);
            }
        }
        Ok(bytes)
    }

    /// `absmax` is the tensor's: ternary input is exact, any other is at most half a scale away.
    fn error_bound(&self, absmax: f32) -> f32 {
        0.5001 * absmax
    }
}

/// Shift of an element's code in its byte.
fn shift(elem: usize) -> usize {
    6 - elem / BLOCK_BYTES * 2
}

#[cfg(test)]
mod tests {
    use super::I2S;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Two rows of one block. Byte 0 of row 0 holds elements 0, 32, 64, 96 from the top: 2, 1, 0, 3.
        let mut bytes = [0b0101_0101; 96];
        bytes[0] = 0b1001_0011;
        bytes[63] = 0b0101_0100;
        bytes[64..].fill(0xee);
        bytes[64..68].copy_from_slice(&0.75f32.to_le_bytes());
        let mut rows = [[f32::NAN; 128]; 2];
        for (row, out) in rows.iter_mut().enumerate() {
            I2S.decode_row(&bytes, 2, row, out).unwrap();
        }
        let mut want = [[0.0; 128]; 2];
        (want[0][0], want[0][64], want[1][127]) = (0.75, -0.75, -0.75);
        assert_eq!(rows, want);
        assert_eq!(I2S.byte_len(2, 128), Ok(96));
        // A 2560 x 2560 tensor of a published model.
        assert_eq!(I2S.byte_len(2560, 2560), Ok(1_638_432));
    }

    #[test]
    fn code_3_is_not_valid() {
        let mut bytes: Vec<u8> = (0..=255).filter(|byte| byte & byte >> 1 & 0x55 == 0).collect();
        assert_eq!(bytes.len(), 81);
        assert!(I2S.is_valid(&bytes));
        for at in [0, 40, 80] {
            for shift in [0, 2, 4, 6] {
                let good = bytes[at];
                bytes[at] |= 3 << shift;
                assert!(!I2S.is_valid(&bytes), "{shift} in byte {at}");
                bytes[at] = good;
            }
        }
    }

    #[test]
    fn ternary_values_come_back_exactly() {
        let values: Vec<f32> = (0..384).map(|at| [0.0, -0.37, 0.37][at * at % 7 % 3]).collect();
        let bytes = I2S.encode(&values, 3, 128).unwrap();
        let mut out = [0.0; 128];
        I2S.decode_row(&bytes, 3, 2, &mut out).unwrap();
        assert_eq!(out, values[256..]);
    }
}
