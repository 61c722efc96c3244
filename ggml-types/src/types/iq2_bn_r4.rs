//! IQ2_BN_R4 of ik_llama.cpp: IQ2_BN with four interleaved rows, for its kernels.

use super::Iq2Bn;
use super::iq2_bn::HEAD;
use crate::block::check_tensor;
use crate::{Dialect, QuantError, QuantType, Ternary, ids};

/// Rows that are stored together.
const ROWS: usize = 4;
/// Weights and bytes of one row's block.
const BLOCK_ELEMS: usize = 64;
const BLOCK_BYTES: usize = 16;

/// Four rows are their four scales, then 64 bytes per 64 columns: byte `16 l + 4 k + i` is row `k`, and has
/// the codes of columns `16 l + i`, and 4, 8 and 12 after it, from the low bits up.
#[derive(Debug)]
pub struct Iq2BnR4;

impl Iq2BnR4 {
    /// Extracts one row of four as a row of IQ2_BN. `four` are the bytes of all four, `out` those of one.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    pub fn row_of(four: &[u8], row: usize, out: &mut [u8]) {
        assert!(row < ROWS && four.len() == ROWS * out.len() && out.len() % BLOCK_BYTES == HEAD);
        let (heads, blocks) = four.split_at(ROWS * HEAD);
        let (head, out) = out.split_at_mut(HEAD);
        head.copy_from_slice(&heads[row * HEAD..][..HEAD]);
        for (four, out) in blocks.chunks_exact(ROWS * BLOCK_BYTES).zip(out.chunks_exact_mut(BLOCK_BYTES)) {
            for (at, out) in out.iter_mut().enumerate() {
                let code = |l: usize| four[16 * l + 4 * row + at % 4] >> (at / 4 * 2) & 3;
                *out = code(0) | code(1) << 2 | code(2) << 4 | code(3) << 6;
            }
        }
    }
}

impl QuantType for Iq2BnR4 {
    fn name(&self) -> &'static str {
        "iq2_bn_r4"
    }

    fn ids(&self) -> &'static [(Dialect, u32)] {
        &[(Dialect::Ggml, ids::IK_TYPE_IQ2_BN_R4), (Dialect::BitNet, ids::IK_TYPE_IQ2_BN_R4)]
    }

    fn file_type(&self) -> Option<u32> {
        Some(337)
    }

    fn block_elems(&self) -> usize {
        BLOCK_ELEMS
    }

    fn rows_together(&self) -> usize {
        ROWS
    }

    fn ternary(&self) -> Option<Ternary> {
        Some(Ternary::PerRow)
    }

    fn row_bytes(&self, cols: usize) -> Result<usize, QuantError> {
        Iq2Bn.row_bytes(cols).map_err(|error| self.own(error))
    }

    fn byte_len(&self, rows: usize, cols: usize) -> Result<usize, QuantError> {
        if !rows.is_multiple_of(ROWS) {
            let detail = format!("want rows in multiples of {ROWS}, found {rows}");
            return Err(QuantError::Shape { ty: self.name(), detail });
        }
        Iq2Bn.byte_len(rows, cols).map_err(|error| self.own(error))
    }

    fn decode_row(&self, bytes: &[u8], rows: usize, row: usize, out: &mut [f32]) -> Result<(), QuantError> {
        check_tensor(self, bytes, rows, row, out.len())?;
        let row_bytes = self.row_bytes(out.len())?;
        let mut alone = vec![0; row_bytes];
        Self::row_of(&bytes[row / ROWS * ROWS * row_bytes..][..ROWS * row_bytes], row % ROWS, &mut alone);
        Iq2Bn.decode_row(&alone, 1, 0, out)
    }

    fn encode(&self, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
        let mut bytes = vec![0; self.byte_len(rows, cols)?];
        let alone = Iq2Bn.encode(values, rows, cols).map_err(|error| self.own(error))?;
        let row_bytes = self.row_bytes(cols)?;
        let fours = bytes.chunks_exact_mut(ROWS * row_bytes);
        for (four, rows) in fours.zip(alone.chunks_exact(ROWS * row_bytes)) {
            for (row, alone) in rows.chunks_exact(row_bytes).enumerate() {
                four[row * HEAD..][..HEAD].copy_from_slice(&alone[..HEAD]);
                for (at, byte) in alone[HEAD..].iter().enumerate() {
                    let (block, at) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
                    for l in 0..4 {
                        let place = ROWS * (HEAD + BLOCK_BYTES * block) + 16 * l + 4 * row + at % 4;
                        four[place] |= (byte >> (2 * l) & 3) << (at / 4 * 2);
                    }
                }
            }
        }
        Ok(bytes)
    }

    fn error_bound(&self, absmax: f32) -> f32 {
        Iq2Bn.error_bound(absmax)
    }
}

impl Iq2BnR4 {
    /// Converts an error of the separate rows to one of this type.
    fn own(&self, error: QuantError) -> QuantError {
        let ty = self.name();
        match error {
            QuantError::Truncated { want, got, .. } => QuantError::Truncated { ty, want, got },
            QuantError::Shape { detail, .. } => QuantError::Shape { ty, detail },
            QuantError::Overflow { rows, cols, .. } => QuantError::Overflow { ty, rows, cols },
            QuantError::ReadOnly { .. } => QuantError::ReadOnly { ty },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Iq2BnR4;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scales 1, 2, 3, 4. Byte 16 + 4 + 1 of the codes is row 1, columns 17, 21, 25 and 29 from the
        // bottom: 2, 1, 1, 0; the last one is row 3, columns 51, 55, 59 and 63: 0, 1, 1, 2.
        let mut bytes = [0b0101_0101; 80];
        for row in 0..4 {
            bytes[4 * row..][..4].copy_from_slice(&(row as f32 + 1.0).to_le_bytes());
        }
        (bytes[16 + 21], bytes[79]) = (0b0001_0110, 0b1001_0100);
        let mut rows = [[f32::NAN; 64]; 4];
        for (row, out) in rows.iter_mut().enumerate() {
            Iq2BnR4.decode_row(&bytes, 4, row, out).unwrap();
        }
        let mut want = [[0.0; 64]; 4];
        (want[1][17], want[1][29], want[3][51], want[3][63]) = (2.0, -2.0, -4.0, 4.0);
        assert_eq!(rows, want);
        assert!(Iq2BnR4.byte_len(6, 64).unwrap_err().to_string().contains("multiples of 4, found 6"));
    }
}
