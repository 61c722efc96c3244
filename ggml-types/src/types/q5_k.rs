//! Q5_K: 256 5-bit integers in 8 groups; value = q x group scale - group minimum.

use crate::block::{Block, Weighing, same_id};
use crate::k_groups::{self, GROUP};
use crate::{Dialect, ids};

/// Offsets of the fifth bits and of the low bits.
const HIGH: usize = 16;
const LOW: usize = 48;
/// The largest code.
const LEVELS: u8 = 31;

/// 176 bytes: scales as in Q4_K, then 32 bytes whose bit `g` is the fifth bit of an element of group `g`,
/// then the low four bits as in Q4_K.
#[derive(Debug)]
pub struct Q5K;

impl Block for Q5K {
    const NAME: &'static str = "q5_k";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q5_K);
    const FILE_TYPE: Option<u32> = Some(16);
    const ELEMS: usize = 256;
    const BYTES: usize = 176;
    const WEIGHING: Option<Weighing> = Some(Weighing::Block(2.0));

    fn decode(block: &[u8], out: &mut [f32]) {
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scale, min) = k_groups::scale_and_min(block, group);
            let (low, high) = (&block[LOW + group / 2 * GROUP..][..GROUP], &block[HIGH..LOW]);
            for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
                let code = low >> (group % 2 * 4) & 15 | (high >> group & 1) << 4;
                *out = scale * f32::from(code) - min;
            }
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        for (elem, code) in k_groups::encode(values, weights, LEVELS, block).into_iter().enumerate() {
            let (group, at) = (elem / GROUP, elem % GROUP);
            block[LOW + group / 2 * GROUP + at] |= (code & 15) << (group % 2 * 4);
            block[HIGH + at] |= (code >> 4) << group;
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        k_groups::error_bound(absmax, LEVELS)
    }
}

#[cfg(test)]
mod tests {
    use super::Q5K;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scales in 1, minimums in 0.5. Group 0: scale 1, minimum 2; group 7: scale 16, minimum 0.
        let mut bytes = [0; 176];
        (bytes[1], bytes[3]) = (0x3c, 0x38);
        (bytes[4], bytes[8]) = (1, 2);
        bytes[4 + 3] = 0b0100_0000;
        // Element 0 of group 0 is 17, element 9 of group 7 is 30.
        (bytes[16], bytes[48]) = (0b0000_0001, 0x01);
        (bytes[16 + 9], bytes[48 + 3 * 32 + 9]) = (0b1000_0000, 0xe0);
        let mut out = [f32::NAN; 256];
        Q5K.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 256];
        want[..32].fill(-1.0);
        (want[0], want[233]) = (16.0, 16.0 * 30.0);
        assert_eq!(out, want);
    }
}
