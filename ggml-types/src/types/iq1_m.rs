//! IQ1_M: like IQ1_S, with a sign of the eighth per 8 weights and a scale per 16.

use crate::block::{Block, same_id};
use crate::codebooks::{self, BLOCK, Coded, IQ1_S, eighths, u16_at};
use crate::{Dialect, ids};

/// Offsets of the high bits and of the scales.
const HIGH: usize = 32;
const SCALES: usize = 48;

/// 56 bytes: the low 8 bits of 32 indices; 16 bytes with the high 3 bits of two indices, each with the sign
/// of its eighth above them; four words of four 3-bit scales (1 + 2 scale), whose top bits are the f16 scale.
#[derive(Debug)]
pub struct Iq1M;

impl Block for Iq1M {
    const NAME: &'static str = "iq1_m";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ1_M);
    const ELEMS: usize = BLOCK;
    const BYTES: usize = Self::BLOCK_BYTES;
    const ENCODES: bool = false;

    fn decode(block: &[u8], out: &mut [f32]) {
        codebooks::decode::<Self>(block, out);
    }
}

impl Coded for Iq1M {
    const BLOCK_BYTES: usize = 56;

    fn scale(block: &[u8]) -> u16 {
        (0..4).map(|i| u16_at(block, SCALES + 2 * i) >> 12 << (4 * i)).sum()
    }

    #[inline]
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]) {
        let points = std::array::from_fn(|i| {
            let high = block[HIGH + 2 * group + i / 2] >> (4 * (i % 2)) & 15;
            let index = usize::from(block[4 * group + i]) | usize::from(high & 7) << 8;
            eighths(IQ1_S[index], high & 8 != 0)
        });
        let scales = u16_at(block, SCALES + group / 2 * 2) >> (group % 2 * 6);
        (points, std::array::from_fn(|half| (1.0 + 2.0 * f32::from(scales >> (3 * half) & 7)) / 8.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Iq1M;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 2; point 0 is eight times -1. The last 16 weights of group 1 have scale 3, which is 7;
        // its last 8 are an eighth less, of index 1792.
        let mut bytes = [0; 56];
        bytes[55] = 0x40;
        bytes[35] = 0xf0;
        (bytes[48], bytes[49]) = (0x00, 0x06);
        let mut out = [f32::NAN; 256];
        Iq1M.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [-1.75; 256];
        want[48..56].fill(-12.25);
        want[56..64].copy_from_slice(
            &[1.0, -1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0].map(|integer| 14.0 * (integer - 0.125)),
        );
        assert_eq!(out, want);
    }
}
