//! Q6_K: 256 6-bit integers in 16 groups; value = (q - 32) x group scale x block scale.

use crate::block::{Block, Weighing, absmax, f16_rounding, fitted_f16, read_f16, same_id};
use crate::scale_search::{best_scale, quantise};
use crate::{Dialect, ids};

/// Offsets of a block's parts after the low 4 bits: high 2 bits, 16 int8 group scales, f16 block scale.
const HIGH: usize = 128;
const SCALES: usize = 192;
const SCALE: usize = 208;
/// Elements that share a group scale.
const GROUP: usize = 16;

/// 210 bytes. In each half block of 128, byte `b` (0 to 63) of the low bits holds elements `b` and `b + 64`,
/// and byte `b` (0 to 31) of the high bits holds elements `b`, `b + 32`, `b + 64`, `b + 96`, low bits first.
#[derive(Debug)]
pub struct Q6K;

/// Byte and shift of an element's low 4 bits, and of its high 2 bits.
fn places(elem: usize) -> ((usize, usize), (usize, usize)) {
    let (half, within) = (elem / 128, elem % 128);
    let low = (half * 64 + within % 64, within / 64 * 4);
    let high = (HIGH + half * 32 + within % 32, within / 32 * 2);
    (low, high)
}

impl Block for Q6K {
    const NAME: &'static str = "q6_k";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q6_K);
    const FILE_TYPE: Option<u32> = Some(18);
    const ELEMS: usize = 256;
    const BYTES: usize = 210;
    const FOR_HEADS: bool = true;
    const WEIGHING: Option<Weighing> = Some(Weighing::Plain);

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(&block[SCALE..]);
        for (elem, out) in out.iter_mut().enumerate() {
            let ((low, low_shift), (high, high_shift)) = places(elem);
            let q = (block[low] >> low_shift & 15) | (block[high] >> high_shift & 3) << 4;
            let group_scale = block[SCALES + elem / GROUP].cast_signed();
            // In this order: the product of the scales is rounded first, as upstream does.
            *out = scale * f32::from(group_scale) * (f32::from(q) - 32.0);
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let mut scales = [0f32; 16];
        let groups = values.chunks_exact(GROUP).zip(weights.chunks_exact(GROUP));
        for (scale, (group, weights)) in scales.iter_mut().zip(groups) {
            *scale = best_scale(group, weights, 32);
        }
        let extreme =
            scales.iter().fold(0f32, |max, &scale| if scale.abs() > max.abs() { scale } else { max });
        if extreme.abs() < 1e-15 {
            return;
        }
        // The largest group scale becomes -128.
        let inverse = -128.0 / extreme;
        let stored = fitted_f16(1.0 / inverse, absmax(values) / 31.0 / 128.0);
        block[SCALE..].copy_from_slice(&stored.to_le_bytes());
        for (group, (values, scale)) in values.chunks_exact(GROUP).zip(scales).enumerate() {
            let group_scale = quantise(scale, inverse, 128);
            block[SCALES + group] = (group_scale as i8).cast_unsigned();
            let step = stored.to_f32() * group_scale as f32;
            for (at, value) in values.iter().enumerate() {
                let q = if step == 0.0 { 32 } else { (quantise(value / step, 1.0, 32) + 32) as u8 };
                let ((low, low_shift), (high, high_shift)) = places(group * GROUP + at);
                block[low] |= (q & 15) << low_shift;
                block[high] |= (q >> 4) << high_shift;
            }
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // A group's step is at most absmax / 31; the end without a 32nd step loses a whole one, and the group
        // scale (in 128ths of the largest) at most another 16 128ths of a step. The f16 rounding of the block
        // scale is multiplied by 32 x 128.
        absmax / 24.0 + 4096.0 * f16_rounding(absmax / 31.0 / 128.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Q6K;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 0.5, all group scales 1 but the last, -2. All codes 0 (value -32) but four.
        let mut bytes = [0; 210];
        bytes[192..207].fill(1);
        (bytes[207], bytes[209]) = (0xfe, 0x38);
        // Elements 0 and 64 share byte 0 of the low bits and byte 0 of the high bits: codes 63 and 33.
        bytes[0] = 0x1f;
        bytes[128] = 0b0010_0011;
        // Elements 191 and 255, of the second half: codes 16 and 47.
        bytes[127] = 0xf0;
        bytes[191] = 0b1000_0100;
        let mut out = [f32::NAN; 256];
        Q6K.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [-16.0; 256];
        want[240..].fill(32.0);
        (want[0], want[64], want[191], want[255]) = (15.5, 0.5, -8.0, -15.0);
        assert_eq!(out, want);
    }
}
