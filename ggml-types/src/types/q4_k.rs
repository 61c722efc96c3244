//! Q4_K: 256 4-bit integers in 8 groups; value = q x group scale - group minimum.

use crate::block::{Block, Weighing, same_id};
use crate::k_groups::{self, GROUP};
use crate::{Dialect, ids};

/// Offset of the codes.
const CODES: usize = 16;
/// The largest code.
const LEVELS: u8 = 15;

/// 144 bytes: an f16 scale of the scales and one of the minimums, 12 bytes of eight 6-bit scales and
/// minimums, then 32 bytes per pair of groups, the even one in the low halves.
#[derive(Debug)]
pub struct Q4K;

impl Block for Q4K {
    const NAME: &'static str = "q4_k";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q4_K);
    const FILE_TYPE: Option<u32> = Some(14);
    const ELEMS: usize = 256;
    const BYTES: usize = 144;
    const WEIGHING: Option<Weighing> = Some(Weighing::Block(2.0));

    fn decode(block: &[u8], out: &mut [f32]) {
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scale, min) = k_groups::scale_and_min(block, group);
            let codes = &block[CODES + group / 2 * GROUP..][..GROUP];
            for (out, byte) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(byte >> (group % 2 * 4) & 15) - min;
            }
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        for (elem, code) in k_groups::encode(values, weights, LEVELS, block).into_iter().enumerate() {
            let group = elem / GROUP;
            block[CODES + group / 2 * GROUP + elem % GROUP] |= code << (group % 2 * 4);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        k_groups::error_bound(absmax, LEVELS)
    }
}

#[cfg(test)]
mod tests {
    use super::Q4K;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scales in 0.5, minimums in 2. Group 1: scale 3, minimum 1; group 6: scale 0x21, minimum 0x12.
        let mut bytes = [0; 144];
        (bytes[1], bytes[3]) = (0x38, 0x40);
        (bytes[4 + 1], bytes[8 + 1]) = (3, 1);
        (bytes[4 + 2], bytes[8 + 2], bytes[12 + 2]) = (0b1000_0000, 0b0100_0000, 0x21);
        // Element 5 of group 1 is a high half, element 31 of group 6 a low one.
        (bytes[16 + 5], bytes[16 + 3 * 32 + 31]) = (0xf0, 0x02);
        let mut out = [f32::NAN; 256];
        Q4K.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 256];
        want[32..64].fill(-2.0);
        want[192..224].fill(-36.0);
        (want[37], want[223]) = (1.5 * 15.0 - 2.0, 16.5 * 2.0 - 36.0);
        assert_eq!(out, want);
    }
}
