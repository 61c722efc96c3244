//! IQ3_XXS: 4 weights are one of 256 points, with signs for 8 weights; value = group scale x block scale x
//! integer.

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ3_XXS, even, pair, signed, u32_at};
use crate::{Dialect, ids};

/// Offsets of the indices and of the words.
const INDICES: usize = 2;
const SIGNS: usize = 66;

/// 98 bytes: f16 scale; 64 indices; a word per 32 weights with four times 7 signs from the low bits up and
/// the group's scale in the top 4: (scale + 1/2) / 2.
#[derive(Debug)]
pub struct Iq3Xxs;

impl Block for Iq3Xxs {
    const NAME: &'static str = "iq3_xxs";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ3_XXS);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq3Xxs {
    const BLOCK_BYTES: usize = 98;

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let signs = u32_at(block, SIGNS + 4 * group);
        let point = |at: usize| IQ3_XXS[usize::from(block[INDICES + 8 * group + at])];
        let points =
            std::array::from_fn(|i| signed(pair(point(2 * i), point(2 * i + 1)), even(signs >> (7 * i))));
        (points, [((signs >> 28) as f32 + 0.5) / 2.0; 2])
    }
}

#[cfg(test)]
mod tests {
    use super::Iq3Xxs;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2. Group 1: scale 1 is 3/4; point 0 is four times 4, its first and (for an even number
        // of minuses) eighth weight negative; point 1 begins with 20.
        let mut bytes = [0; 98];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        bytes[12] = 1;
        bytes[70..74].copy_from_slice(&[1, 0, 0, 0x10]);
        let mut out = [f32::NAN; 256];
        Iq3Xxs.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [2.0; 256];
        want[32..64].fill(6.0);
        (want[32], want[39], want[40]) = (-6.0, -6.0, 30.0);
        assert_eq!(out, want);
    }
}
