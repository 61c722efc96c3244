//! What Q4_K and Q5_K have in common: eight groups of 32 elements, whose 6-bit scales and minimums lie packed
//! in 12 bytes, under an f16 scale of the scales and one of the minimums.

use crate::block::{f16_rounding, read_f16, reciprocal};

/// Elements of a group, and groups of a block.
pub(crate) const GROUP: usize = 32;
const GROUPS: usize = 8;
/// Where the packed scales begin and end.
const SCALES: std::ops::Range<usize> = 4..16;
/// Largest scale and minimum.
const MOST: f32 = 63.0;

/// Scale and minimum of a group: value = scale x code - minimum.
pub(crate) fn scale_and_min(block: &[u8], group: usize) -> (f32, f32) {
    let (packed, at) = (&block[SCALES], group % 4);
    let (scale, min) = match group {
        0..4 => (packed[at] & 63, packed[at + 4] & 63),
        _ => (packed[at + 8] & 15 | packed[at] >> 6 << 4, packed[at + 8] >> 4 | packed[at + 4] >> 6 << 4),
    };
    (read_f16(block) * f32::from(scale), read_f16(&block[2..]) * f32::from(min))
}

fn put_scale_and_min(block: &mut [u8], group: usize, scale: u8, min: u8) {
    let (packed, at) = (&mut block[SCALES], group % 4);
    if group < 4 {
        packed[at] |= scale;
        packed[at + 4] |= min;
    } else {
        packed[at + 8] |= scale & 15 | min << 4;
        packed[at] |= scale >> 4 << 6;
        packed[at + 4] |= min >> 4 << 6;
    }
}

/// Finds scales and minimums of a block's groups, writes them, and gives each element's code, 0 to `levels`.
pub(crate) fn encode(values: &[f32], levels: u8, block: &mut [u8]) -> [u8; GROUP * GROUPS] {
    let mut found = [(0.0, 0.0); GROUPS];
    for (found, group) in found.iter_mut().zip(values.chunks_exact(GROUP)) {
        *found = best_affine(group, levels);
    }
    let (largest_scale, largest_min) =
        found.iter().fold((0f32, 0f32), |(scale, min), of| (scale.max(of.0), min.max(of.1)));
    let [of_scales, of_mins] = [largest_scale, largest_min].map(|most| half::f16::from_f32(most / MOST));
    block[..2].copy_from_slice(&of_scales.to_le_bytes());
    block[2..4].copy_from_slice(&of_mins.to_le_bytes());
    let [of_scales, of_mins] = [of_scales, of_mins].map(half::f16::to_f32);
    let near = |value: f32, unit: f32| {
        let nearest = (value * reciprocal(unit)).round().min(MOST);
        [nearest, nearest - 1.0, nearest + 1.0].into_iter().filter(|near| (0.0..=MOST).contains(near))
    };
    let mut codes = [0; GROUP * GROUPS];
    for (group, (values, (scale, min))) in values.chunks_exact(GROUP).zip(found).enumerate() {
        // Rounded together they may be better than each by itself.
        let (mut best, mut least) = ((0.0, 0.0), f32::INFINITY);
        for scale in near(scale, of_scales) {
            for min in near(min, of_mins) {
                let off = error(values, levels, of_scales * scale, of_mins * min);
                if off < least {
                    (best, least) = ((scale, min), off);
                }
            }
        }
        put_scale_and_min(block, group, best.0 as u8, best.1 as u8);
        let (scale, min) = scale_and_min(block, group);
        let inverse = reciprocal(scale);
        for (code, value) in codes[group * GROUP..].iter_mut().zip(values) {
            *code = code_of(value + min, inverse, levels);
        }
    }
    codes
}

/// The nearest code to a value above the minimum.
fn code_of(above: f32, inverse: f32, levels: u8) -> u8 {
    (above * inverse).round_ties_even().clamp(0.0, f32::from(levels)) as u8
}

/// The sum of squared errors of values that are kept with a scale and a minimum.
fn error(values: &[f32], levels: u8, scale: f32, min: f32) -> f32 {
    let inverse = reciprocal(scale);
    let off = |value: &f32| scale * f32::from(code_of(value + min, inverse, levels)) - min - value;
    values.iter().map(|value| off(value).powi(2)).sum()
}

/// A scale and a minimum, none below 0, so that `scale x code - minimum` is near the values in the mean
/// square: of some first guesses at the scale, and the least-squares fits to the codes that each gives.
fn best_affine(values: &[f32], levels: u8) -> (f32, f32) {
    let low = values.iter().fold(0f32, |low, value| low.min(*value));
    let high = values.iter().fold(0f32, |high, value| high.max(*value));
    let range = high - low;
    if range <= 0.0 || !range.is_finite() {
        return (0.0, -low);
    }
    let plain = (range / f32::from(levels), -low);
    let (mut best, mut least) = (plain, error(values, levels, plain.0, plain.1));
    // Each fit gives other codes, and these another fit.
    let mut start = plain;
    for step in -20..=40 {
        if step % 2 == 0 {
            start = (range / (f32::from(levels) + 0.05 * step as f32), -low);
        }
        let inverse = reciprocal(start.0);
        let (mut sum_q, mut sum_qq, mut sum_x, mut sum_xq) = (0.0, 0.0, 0.0, 0.0);
        for value in values {
            let q = f32::from(code_of(value + start.1, inverse, levels));
            (sum_q, sum_qq) = (sum_q + q, sum_qq + q * q);
            (sum_x, sum_xq) = (sum_x + value, sum_xq + value * q);
        }
        let n = values.len() as f32;
        let determinant = n * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (n * sum_xq - sum_x * sum_q) / determinant;
        let mut min = -(sum_qq * sum_x - sum_q * sum_xq) / determinant;
        if min < 0.0 {
            (scale, min) = (sum_xq / sum_qq, 0.0);
        }
        if scale <= 0.0 {
            continue;
        }
        start = (scale, min);
        let off = error(values, levels, scale, min);
        if off < least {
            (best, least) = ((scale, min), off);
        }
    }
    best
}

/// Bound on the error of a block whose largest magnitude is `absmax`.
pub(crate) fn error_bound(absmax: f32, levels: u8) -> f32 {
    // A group's range is at most two of the largest value. The fit may leave the ends three steps off, the
    // 6-bit scale half a 63rd of the largest scale for each step, the minimum half a 63rd of the largest. An
    // f16 is rounded 63 times a step, and once for the minimum.
    let levels = f32::from(levels);
    let step = 2.0 * absmax / (levels - 1.0);
    3.5 * step
        + levels * step / 63.0
        + absmax / 63.0
        + 64.0 * (levels + 1.0) * f16_rounding(step / 63.0)
        + 64.0 * f16_rounding(absmax / 63.0)
}
