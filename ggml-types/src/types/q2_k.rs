//! Q2_K: 256 2-bit integers in 16 groups; value = q x group scale - group minimum.

use crate::affine::Fit;
use crate::block::{Block, Weighing, f16_rounding, read_f16, same_id};
use crate::{Dialect, ids};

/// Offsets of the codes, and of the two f16.
const CODES: usize = 16;
const OF_SCALES: usize = 80;
const OF_MINS: usize = 82;
/// Elements that share a scale and a minimum.
const GROUP: usize = 16;
/// The largest code, and the largest scale and minimum.
const LEVELS: u8 = 3;
const MAX_CODE: f32 = 15.0;

/// 84 bytes: a byte per group, with its scale in the low half and its minimum in the high one; 64 bytes of
/// codes; the f16 scale of the scales, and that of the minimums. In each half block of 128, byte `b` (0 to
/// 31) holds elements `b`, `b + 32`, `b + 64`, `b + 96`, low bits first.
#[derive(Debug)]
pub struct Q2K;

/// Byte and shift of an element's code.
pub(super) fn place(elem: usize) -> (usize, usize) {
    (elem / 128 * 32 + elem % 32, elem % 128 / 32 * 2)
}

impl Block for Q2K {
    const NAME: &'static str = "q2_k";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q2_K);
    const FILE_TYPE: Option<u32> = Some(10);
    const ELEMS: usize = 256;
    const BYTES: usize = 84;
    const WEIGHING: Option<Weighing> = Some(Weighing::Block(1.0));

    fn decode(block: &[u8], out: &mut [f32]) {
        let (of_scales, of_mins) = (read_f16(&block[OF_SCALES..]), read_f16(&block[OF_MINS..]));
        for (elem, out) in out.iter_mut().enumerate() {
            let (byte, shift) = place(elem);
            let group = block[elem / GROUP];
            let (scale, min) = (of_scales * f32::from(group & 15), of_mins * f32::from(group >> 4));
            *out = scale * f32::from(block[CODES + byte] >> shift & 3) - min;
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let fit = Fit::<16>::of(values, weights, LEVELS, MAX_CODE);
        for (byte, (scale, min)) in block.iter_mut().zip(fit.groups) {
            *byte = scale | min << 4;
        }
        for (elem, code) in fit.codes.into_iter().enumerate() {
            let (byte, shift) = place(elem);
            block[CODES + byte] |= code << shift;
        }
        block[OF_SCALES..OF_MINS].copy_from_slice(&fit.of_scales.to_le_bytes());
        block[OF_MINS..].copy_from_slice(&fit.of_mins.to_le_bytes());
    }

    fn error_bound(absmax: f32) -> f32 {
        // A group's plain range, twice the largest value, has steps of two thirds of that value and errors of
        // half a step. The fit's sum of squares is no larger, so one value of 16 may be four times as far
        // off. Then scale and minimum are rounded to fifteenths of the largest; the error of a scale is
        // multiplied by 3, and that of an f16 by 15 times as much.
        4.0 * absmax / 3.0 + 3.0 * absmax / 15.0 + absmax / 15.0 + 90.0 * f16_rounding(absmax / 15.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Q2K;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scales in 0.5, minimums in 2. Group 1: scale 3, minimum 1; group 15: scale 2, minimum 0.
        let mut bytes = [0; 84];
        (bytes[81], bytes[83]) = (0x38, 0x40);
        (bytes[1], bytes[15]) = (0x13, 0x02);
        // Element 18 is in byte 18 at shift 0; element 255 in byte 63 at shift 6.
        (bytes[16 + 18], bytes[16 + 63]) = (0x02, 0xc0);
        let mut out = [f32::NAN; 256];
        Q2K.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 256];
        want[16..32].fill(-2.0);
        (want[18], want[255]) = (1.0, 3.0);
        assert_eq!(out, want);
    }
}
