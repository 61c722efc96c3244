//! Q3_K: 256 3-bit integers in 16 groups; value = (q - 4) x group scale x block scale.

use super::q2_k::place;
use crate::block::{Block, Weighing, f16_rounding, read_f16, reciprocal, same_id};
use crate::eights::{nearest_within, sums};
use crate::scale_search::{best_scale, quantise};
use crate::{Dialect, ids};

/// Offsets of the low bits, of the packed scales, and of the f16 scale.
const LOW: usize = 32;
const SCALES: usize = 96;
const SCALE: usize = 108;
/// Elements that share a group scale.
const GROUP: usize = 16;

/// 110 bytes: 32 bytes whose bit `g` is the third bit of an element of the 32 elements from `32 g` on; 64
/// bytes of the low two bits as in Q2_K; 12 bytes of 16 6-bit scales (minus 32), with the low four bits of
/// each in the first eight and the high two in the others; f16 scale.
#[derive(Debug)]
pub struct Q3K;

/// The bytes and shifts of a group scale's low four bits, and of its high two.
fn places(group: usize) -> [(usize, usize); 2] {
    [(SCALES + group % 8, group / 8 * 4), (SCALES + 8 + group % 4, group / 4 * 2)]
}

impl Block for Q3K {
    const NAME: &'static str = "q3_k";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q3_K);
    const FILE_TYPE: Option<u32> = Some(11);
    const ELEMS: usize = 256;
    const BYTES: usize = 110;
    const WEIGHING: Option<Weighing> = Some(Weighing::Block(2.0));

    fn decode(block: &[u8], out: &mut [f32]) {
        let of_scales = read_f16(&block[SCALE..]);
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let [low, high] = places(group).map(|(byte, shift)| block[byte] >> shift);
            let scale = of_scales * (f32::from(low & 15 | (high & 3) << 4) - 32.0);
            for (at, out) in out.iter_mut().enumerate() {
                let elem = group * GROUP + at;
                let (byte, shift) = place(elem);
                let q = block[LOW + byte] >> shift & 3 | (block[elem % 32] >> (elem / 32) & 1) << 2;
                *out = scale * (f32::from(q) - 4.0);
            }
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let mut scales = [0f32; 16];
        let groups = values.chunks_exact(GROUP).zip(weights.chunks_exact(GROUP));
        for (scale, (group, weights)) in scales.iter_mut().zip(groups) {
            *scale = best_scale(group, weights, 4);
        }
        let extreme =
            scales.iter().fold(0f32, |max, &scale| if scale.abs() > max.abs() { scale } else { max });
        if extreme.abs() < 1e-15 {
            return;
        }
        let groups = || values.chunks_exact(GROUP).zip(weights.chunks_exact(GROUP));
        let error = |values: &[f32], weights: &[f32], step: f32| -> f32 {
            let inverse = reciprocal(step);
            let [sum] = sums(values, weights, |value, weight| {
                let off = value - nearest_within(value * inverse, -4.0, 3.0) * step;
                [weight * (off * off)]
            });
            sum
        };
        // The largest group scale becomes -32, or slightly less if the others are nearer to integers then.
        let fit = |largest: f32| {
            let stored = half::f16::from_f32(-extreme / largest);
            let (mut group_scales, mut sum) = ([0; 16], 0.0);
            for ((out, scale), (values, weights)) in group_scales.iter_mut().zip(scales).zip(groups()) {
                let nearest = quantise(scale, -largest / extreme, 32);
                let near =
                    [nearest, nearest - 1, nearest + 1].into_iter().filter(|near| (-32..32).contains(near));
                let with_errors =
                    near.map(|near| (near, error(values, weights, stored.to_f32() * near as f32)));
                let best = with_errors.min_by(|a, b| a.1.total_cmp(&b.1)).expect("the nearest is one");
                *out = best.0;
                sum += best.1;
            }
            (stored, group_scales, sum)
        };
        let fits = [32.0, 32.5, 31.5, 31.0, 30.5, 30.0, 29.0].map(fit);
        let best = fits.into_iter().min_by(|a, b| a.2.total_cmp(&b.2)).expect("there are seven");
        let (stored, group_scales, _) = best;
        block[SCALE..].copy_from_slice(&stored.to_le_bytes());
        for (group, (values, group_scale)) in values.chunks_exact(GROUP).zip(group_scales).enumerate() {
            let code = (group_scale + 32) as u8;
            let [(low, low_shift), (high, high_shift)] = places(group);
            block[low] |= (code & 15) << low_shift;
            block[high] |= (code >> 4) << high_shift;
            let step = stored.to_f32() * group_scale as f32;
            for (at, value) in values.iter().enumerate() {
                let elem = group * GROUP + at;
                let q = if step == 0.0 { 4 } else { (quantise(value / step, 1.0, 4) + 4) as u8 };
                let (byte, shift) = place(elem);
                block[LOW + byte] |= (q & 3) << shift;
                block[elem % 32] |= (q >> 2) << (elem / 32);
            }
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // The search maps the largest value to 3.1 to 4.9 steps, and the end without a fourth step loses up
        // to two. A group scale is off by half a 32nd of the largest, times four, and the f16 rounding of the
        // block scale is multiplied by 4 x 32.
        0.9 * absmax + 128.0 * f16_rounding(absmax / 2.0 / 32.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Q3K;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Block scale 0.5; scales of groups 0 and 13 are 33 and 30 minus 32, all others 0.
        let mut bytes = [0; 110];
        bytes[109] = 0x38;
        bytes[104..108].fill(0b1010_1010);
        (bytes[96], bytes[96 + 5], bytes[104 + 1]) = (0x01, 0xe0, 0b0110_1010);
        // Element 3: 2 and the third bit. Element 223, of group 13: 1, in byte 63 at shift 4.
        (bytes[3], bytes[32 + 3], bytes[32 + 63]) = (0x01, 0x02, 0x10);
        let mut out = [f32::NAN; 256];
        Q3K.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [-0.0; 256];
        want[..16].fill(-2.0);
        want[208..224].fill(4.0);
        (want[3], want[223]) = (1.0, 3.0);
        assert_eq!(out, want);
    }
}
