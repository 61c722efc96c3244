//! IQ4_XS: 256 4-bit indices of 16 unevenly spaced values in 8 groups; value = group scale x block scale x
//! value of the index.

use crate::block::{Block, Weighing, f16_rounding, read_f16, reciprocal, same_id};
use crate::scale_search::quantise;
use crate::uneven::{VALUES, best_scale, nearest};
use crate::{Dialect, ids};

/// Offsets of the scales' high and low bits, and of the indices.
const HIGH: usize = 2;
const LOW: usize = 4;
const CODES: usize = 8;
/// Elements of a group.
const GROUP: usize = 32;

/// 136 bytes: f16 scale; 2 bytes with the high two bits of eight 6-bit scales (minus 32), 4 bytes with their
/// low four; then 16 bytes per group, as in IQ4_NL.
#[derive(Debug)]
pub struct Iq4Xs;

impl Block for Iq4Xs {
    const NAME: &'static str = "iq4_xs";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ4_XS);
    const FILE_TYPE: Option<u32> = Some(30);
    const ELEMS: usize = 256;
    const BYTES: usize = 136;
    const WEIGHING: Option<Weighing> = Some(Weighing::Block(2.0));

    fn decode(block: &[u8], out: &mut [f32]) {
        let of_scales = read_f16(block);
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let low = block[LOW + group / 2] >> (group % 2 * 4) & 15;
            let high = block[HIGH + group / 4] >> (group % 4 * 2) & 3;
            let scale = of_scales * (f32::from(low | high << 4) - 32.0);
            for (at, out) in out.iter_mut().enumerate() {
                let code = block[CODES + 16 * group + at % 16] >> (at / 16 * 4) & 15;
                *out = scale * f32::from(VALUES[usize::from(code)]);
            }
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let mut scales = [0f32; 8];
        let groups = values.chunks_exact(GROUP).zip(weights.chunks_exact(GROUP));
        for (scale, (group, weights)) in scales.iter_mut().zip(groups) {
            *scale = best_scale(group, weights);
        }
        let extreme =
            scales.iter().fold(0f32, |max, &scale| if scale.abs() > max.abs() { scale } else { max });
        // The largest group scale becomes -32.
        let stored = half::f16::from_f32(-extreme / 32.0);
        block[..2].copy_from_slice(&stored.to_le_bytes());
        for (group, (values, scale)) in values.chunks_exact(GROUP).zip(scales).enumerate() {
            let group_scale = quantise(scale, -32.0 * reciprocal(extreme), 32);
            let code = (group_scale + 32) as u8;
            block[LOW + group / 2] |= (code & 15) << (group % 2 * 4);
            block[HIGH + group / 4] |= (code >> 4) << (group % 4 * 2);
            let inverse = reciprocal(stored.to_f32() * group_scale as f32);
            for (at, value) in values.iter().enumerate() {
                block[CODES + 16 * group + at % 16] |= nearest(value * inverse) << (at / 16 * 4);
            }
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // As in IQ4_NL. In addition a group scale is off by half a 32nd of the largest, times 127, and the
        // f16 rounding of the block scale is multiplied by 32 x 127.
        0.6 * absmax + 4064.0 * f16_rounding(absmax / 50.0 / 32.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Iq4Xs;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 0.5; scales of groups 1 and 7 are 33 and 22 minus 32, all others 0.
        let mut bytes = [0x88; 136];
        (bytes[0], bytes[1]) = (0x00, 0x38);
        (bytes[2], bytes[3]) = (0b1010_1010, 0b0110_1010);
        bytes[4..8].copy_from_slice(&[0x10, 0, 0, 0x60]);
        // The first element of group 1 is index 15, the last one of group 7 index 0.
        (bytes[8 + 16], bytes[135]) = (0x8f, 0x08);
        let mut out = [f32::NAN; 256];
        Iq4Xs.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 256];
        want[32..64].fill(0.5);
        want[224..].fill(-5.0);
        (want[32], want[255]) = (56.5, 635.0);
        assert_eq!(out, want);
    }
}
