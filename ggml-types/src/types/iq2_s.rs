//! IQ2_S: 8 weights are one of 1024 points, with signs; value = group scale x block scale x integer.

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ2_S, nibble, signed};
use crate::{Dialect, ids};

/// Offset of each part.
const LOW: usize = 2;
const SIGNS: usize = 34;
const HIGH: usize = 66;
const SCALES: usize = 74;

/// 82 bytes: f16 scale; the low 8 bits of 32 indices; 32 bytes of signs; a byte per 32 weights with the high
/// two bits of four indices; then two 4-bit scales per 32 weights: (scale + 1/2) / 4.
#[derive(Debug)]
pub struct Iq2S;

impl Block for Iq2S {
    const NAME: &'static str = "iq2_s";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ2_S);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq2S {
    const BLOCK_BYTES: usize = 82;

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let points = std::array::from_fn(|i| {
            let high = usize::from(block[HIGH + group] >> (2 * i) & 3);
            let index = usize::from(block[LOW + 4 * group + i]) | high << 8;
            signed(IQ2_S[index], block[SIGNS + 4 * group + i])
        });
        (points, std::array::from_fn(|half| (nibble(block, SCALES + group, half) + 0.5) / 4.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Iq2S;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2. The last 8 weights of group 7 are point 1 + 768; the scale of the last 16 is 3.
        let mut bytes = [0; 82];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        (bytes[33], bytes[65], bytes[73], bytes[81]) = (1, 0b1000_0001, 0b1100_0000, 0x30);
        let mut out = [f32::NAN; 256];
        Iq2S.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [2.0; 256];
        want[240..].fill(14.0);
        want[248..]
            .copy_from_slice(&[-25.0, 8.0, 25.0, 25.0, 8.0, 8.0, 43.0, -25.0].map(|integer| 1.75 * integer));
        assert_eq!(out, want);
    }
}
