//! IQ2_XXS: 8 weights are one of 256 points, with signs; value = group scale x block scale x integer.

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ2_XXS, even, signed, u32_at};
use crate::{Dialect, ids};

/// Offset of the groups, and bytes of a group.
const GROUPS: usize = 2;
const GROUP_BYTES: usize = 8;

/// 66 bytes: f16 scale; per group of 32 weights, 4 indices, then a word with four times 7 signs from the low
/// bits up and the group's scale in the top 4: (scale + 1/2) / 4.
#[derive(Debug)]
pub struct Iq2Xxs;

impl Block for Iq2Xxs {
    const NAME: &'static str = "iq2_xxs";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ2_XXS);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq2Xxs {
    const BLOCK_BYTES: usize = 66;

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let group = &block[GROUPS + GROUP_BYTES * group..][..GROUP_BYTES];
        let signs = u32_at(group, 4);
        let points = std::array::from_fn(|i| signed(IQ2_XXS[usize::from(group[i])], even(signs >> (7 * i))));
        (points, [((signs >> 28) as f32 + 0.5) / 4.0; 2])
    }
}

#[cfg(test)]
mod tests {
    use super::Iq2Xxs;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2. Group 1: scale 1 is 3/8; point 0 is eight times 8, its first and (for an even number
        // of minuses) last weight negative; point 1 begins with 43.
        let mut bytes = [0; 66];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        bytes[10..18].copy_from_slice(&[0, 1, 0, 0, 1, 0, 0, 0x10]);
        let mut out = [f32::NAN; 256];
        Iq2Xxs.decode_row(&bytes, 1, 0, &mut out).unwrap();
        // Elsewhere the scale is 1/8 and every weight an 8 of point 0.
        let mut want = [2.0; 256];
        want[32..64].fill(6.0);
        (want[32], want[39], want[40]) = (-6.0, -6.0, 32.25);
        assert_eq!(out, want);
    }
}
