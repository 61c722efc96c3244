//! IQ1_S: 8 weights are one of 2048 points with integers -1, 0 and 1, all moved by an eighth; value = group
//! scale x block scale x (integer +- 1/8).

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ1_S, eighths, u16_at};
use crate::{Dialect, ids};

/// Offsets of the indices and of the words.
const LOW: usize = 2;
const HIGH: usize = 34;

/// 50 bytes: f16 scale; the low 8 bits of 32 indices; a word per 32 weights with the high 3 bits of four
/// indices, 3 bits of scale (1 + 2 scale), and the sign of the eighth in the top bit.
#[derive(Debug)]
pub struct Iq1S;

impl Block for Iq1S {
    const NAME: &'static str = "iq1_s";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ1_S);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq1S {
    const BLOCK_BYTES: usize = 50;

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let high = u16_at(block, HIGH + 2 * group);
        let points = std::array::from_fn(|i| {
            let index = usize::from(block[LOW + 4 * group + i]) | usize::from(high >> (3 * i) & 7) << 8;
            eighths(IQ1_S[index], high & 0x8000 != 0)
        });
        (points, [(1.0 + 2.0 * f32::from(high >> 12 & 7)) / 8.0; 2])
    }
}

#[cfg(test)]
mod tests {
    use super::Iq1S;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2; point 0 is eight times -1. Group 1: an eighth less, scale 3 is 7, and the last
        // index is 1792.
        let mut bytes = [0; 50];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        (bytes[36], bytes[37]) = (0x00, 0xbe);
        let mut out = [f32::NAN; 256];
        Iq1S.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [-1.75; 256];
        want[32..64].fill(-15.75);
        want[56..64].copy_from_slice(
            &[1.0, -1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0].map(|integer| 14.0 * (integer - 0.125)),
        );
        assert_eq!(out, want);
    }
}
