//! IQ2_BN of ik_llama.cpp: ternary weights, 2 bits each, one f32 scale per row; value = (code - 1) x scale.

use crate::block::{Block, absmax, same_id, ternary_code};
use crate::{Dialect, ids};

/// Bytes of the scale before a row's blocks.
pub(super) const HEAD: usize = 4;

/// A row is its scale, then 16 bytes per 64 weights: byte `b` has the codes of weights `b`, `16 + b`,
/// `32 + b` and `48 + b` from the low bits up. Code 3 is never written; it means 2 x scale.
#[derive(Debug)]
pub struct Iq2Bn;

impl Block for Iq2Bn {
    const NAME: &'static str = "iq2_bn";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::IK_TYPE_IQ2_BN);
    const FILE_TYPE: Option<u32> = Some(137);
    const ELEMS: usize = 64;
    const BYTES: usize = 16;
    const HEAD_BYTES: usize = HEAD;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        for (elem, out) in out.iter_mut().enumerate() {
            *out = f32::from(block[elem % 16] >> (elem / 16 * 2) & 3) - 1.0;
        }
    }

    fn apply_head(head: &[u8], out: &mut [f32]) {
        let scale = f32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        out.iter_mut().for_each(|out| *out *= scale);
    }

    fn encode_head(values: &[f32], head: &mut [u8]) -> f32 {
        let scale = absmax(values);
        head.copy_from_slice(&scale.to_le_bytes());
        scale
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        for (elem, value) in values.iter().enumerate() {
            block[elem % 16] |= ternary_code(*value) << (elem / 16 * 2);
        }
    }

    /// `absmax` is the row's: ternary input is exact, any other is at most half a scale away.
    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax
    }
}

#[cfg(test)]
mod tests {
    use super::Iq2Bn;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Two rows of two blocks, scales 0.75 and 2. Byte 0 of the first has elements 0, 16, 32 and 48 from
        // the bottom: 2, 0, 1, 2; the last byte of the second row elements 79, 95, 111 and 127: 1, 1, 1, 0.
        let mut bytes = [0b0101_0101; 72];
        bytes[..4].copy_from_slice(&0.75f32.to_le_bytes());
        bytes[36..40].copy_from_slice(&2f32.to_le_bytes());
        (bytes[4], bytes[71]) = (0b1001_0010, 0b0001_0101);
        let mut rows = [[f32::NAN; 128]; 2];
        for (row, out) in rows.iter_mut().enumerate() {
            Iq2Bn.decode_row(&bytes, 2, row, out).unwrap();
        }
        let mut want = [[0.0; 128]; 2];
        (want[0][0], want[0][16], want[0][48], want[1][127]) = (0.75, -0.75, 0.75, -2.0);
        assert_eq!(rows, want);
        assert_eq!(Iq2Bn.byte_len(2560, 6912), Ok(2560 * (4 + 6912 / 4)));
    }
}
