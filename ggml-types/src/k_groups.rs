//! Layout that Q4_K and Q5_K share: eight groups of 32 elements, whose 6-bit scales and minimums are packed
//! in 12 bytes, with an f16 scale of the scales and one of the minimums.

use crate::affine::Fit;
use crate::block::{f16_rounding, read_f16};

/// Elements of a group, and groups of a block.
pub(crate) const GROUP: usize = 32;
const GROUPS: usize = 8;
/// Range of the packed scales.
const SCALES: std::ops::Range<usize> = 4..16;
/// Largest scale and minimum.
const MAX_CODE: f32 = 63.0;

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

/// Finds and writes the scales and minimums of a block's groups, and returns each element's code, 0 to
/// `levels`.
pub(crate) fn encode(values: &[f32], weights: &[f32], levels: u8, block: &mut [u8]) -> [u8; GROUP * GROUPS] {
    let fit = Fit::<GROUPS>::of(values, weights, levels, MAX_CODE);
    block[..2].copy_from_slice(&fit.of_scales.to_le_bytes());
    block[2..4].copy_from_slice(&fit.of_mins.to_le_bytes());
    for (group, (scale, min)) in fit.groups.into_iter().enumerate() {
        put_scale_and_min(block, group, scale, min);
    }
    fit.codes
}

/// Bound on the error of a block whose largest magnitude is `absmax`.
pub(crate) fn error_bound(absmax: f32, levels: u8) -> f32 {
    // A group's range is at most twice the largest value. The fit may be off by three steps at the ends, the
    // 6-bit scale by half a 63rd of the largest scale per step, the minimum by half a 63rd of the largest.
    // The f16 rounding is multiplied by 63 for each step, and once for the minimum.
    let levels = f32::from(levels);
    let step = 2.0 * absmax / (levels - 1.0);
    3.5 * step
        + levels * step / 63.0
        + absmax / 63.0
        + 64.0 * (levels + 1.0) * f16_rounding(step / 63.0)
        + 64.0 * f16_rounding(absmax / 63.0)
}
