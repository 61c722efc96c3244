//! IQ3_S: 4 weights are one of 512 points, each weight with a sign; value = group scale x block scale x
//! integer.

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ3_S, nibble, pair, signed};
use crate::{Dialect, ids};

/// Offset of each part.
const LOW: usize = 2;
const HIGH: usize = 66;
const SIGNS: usize = 74;
const SCALES: usize = 106;

/// 110 bytes: f16 scale; the low 8 bits of 64 indices; a byte per 32 weights with the ninth bits of 8
/// indices; 32 bytes of signs; then a 4-bit scale per 32 weights: 1 + 2 scale.
#[derive(Debug)]
pub struct Iq3S;

impl Block for Iq3S {
    const NAME: &'static str = "iq3_s";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ3_S);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq3S {
    const BLOCK_BYTES: usize = 110;

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let point = |at: usize| {
            let high = usize::from(block[HIGH + group] >> at & 1);
            IQ3_S[usize::from(block[LOW + 8 * group + at]) | high << 8]
        };
        let points = std::array::from_fn(|i| {
            signed(pair(point(2 * i), point(2 * i + 1)), block[SIGNS + 4 * group + i])
        });
        (points, [1.0 + 2.0 * nibble(block, SCALES + group / 2, group % 2); 2])
    }
}

#[cfg(test)]
mod tests {
    use super::Iq3S;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2. Group 1: scale 3 is 7; its first weight is negative, and its last four are point
        // 256.
        let mut bytes = [0; 110];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        (bytes[67], bytes[78], bytes[106]) = (0x80, 1, 0x30);
        let mut out = [f32::NAN; 256];
        Iq3S.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [2.0; 256];
        want[32..64].fill(14.0);
        want[32] = -14.0;
        want[60..64].copy_from_slice(&[7.0, 5.0, 9.0, 5.0].map(|integer| 14.0 * integer));
        assert_eq!(out, want);
    }
}
