//! IQ2_XS: 8 weights are one of 512 points, with signs; value = group scale x block scale x integer.

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ2_XS, even, nibble, signed, u16_at};
use crate::{Dialect, ids};

/// Offsets of the indices and of the scales.
const INDICES: usize = 2;
const SCALES: usize = 66;

/// 74 bytes: f16 scale; 9 bits of index and 7 signs per 8 weights; then two 4-bit scales per 32 weights, for
/// the first 16 and the last 16: (scale + 1/2) / 4.
#[derive(Debug)]
pub struct Iq2Xs;

impl Block for Iq2Xs {
    const NAME: &'static str = "iq2_xs";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ2_XS);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq2Xs {
    const BLOCK_BYTES: usize = 74;

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let points = std::array::from_fn(|i| {
            let index = u16_at(block, INDICES + 8 * group + 2 * i);
            signed(IQ2_XS[usize::from(index & 511)], even(u32::from(index >> 9)))
        });
        (points, std::array::from_fn(|half| (nibble(block, SCALES + group, half) + 0.5) / 4.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Iq2Xs;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2. The last weights of group 1: scale 3 is 7/8; point 1 begins with 43, which is
        // negative, and so is the last weight, because the number of minuses is even.
        let mut bytes = [0; 74];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        bytes[14..18].copy_from_slice(&[1, 0x02, 0, 0]);
        bytes[67] = 0x30;
        let mut out = [f32::NAN; 256];
        Iq2Xs.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [2.0; 256];
        want[48..64].fill(14.0);
        (want[48], want[55]) = (-75.25, -14.0);
        assert_eq!(out, want);
    }
}
