//! NVFP4: 64 4-bit floats (a sign, two bits of exponent, one of mantissa) in groups of 16, each with an
//! unsigned 8-bit scale. Files of this type store a factor of the whole tensor separately, as `.scale`.

use super::mxfp4::{VALUES, nearest};
use crate::block::{Block, absmax, reciprocal, upstream_id};
use crate::{Dialect, ids};

/// 36 bytes: four scales, then 8 bytes per group; byte `b` of those holds element `b` in its low and `b + 8`
/// in its high half.
#[derive(Debug)]
pub struct Nvfp4;

/// Elements of a group.
const GROUP: usize = 16;
/// Bytes of the scales.
const SCALES: usize = 4;
/// The code of the largest scale, 448. The next code means 0.
const LARGEST: u8 = 0x7e;

/// Half the scale of a code: 4 bits of exponent, 3 of mantissa.
pub(crate) fn half_scale(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    match (code, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (8.0 + mantissa) * 2f32.powi(i32::from(exponent) - 11),
    }
}

/// The code of the largest scale that is not above `scale`.
fn code_below(scale: f32) -> u8 {
    let codes: [u8; LARGEST as usize] = std::array::from_fn(|at| at as u8 + 1);
    codes.partition_point(|code| 2.0 * half_scale(*code) <= scale) as u8
}

impl Block for Nvfp4 {
    const NAME: &'static str = "nvfp4";
    const IDS: &'static [(Dialect, u32)] = upstream_id!(ids::GGML_TYPE_NVFP4);
    const FILE_TYPE: Option<u32> = Some(39);
    const ELEMS: usize = 64;
    const BYTES: usize = 36;

    fn decode(block: &[u8], out: &mut [f32]) {
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let scale = half_scale(block[group]);
            for (elem, out) in out.iter_mut().enumerate() {
                let code = block[SCALES + 8 * group + elem % 8] >> (elem / 8 * 4) & 15;
                *out = f32::from(VALUES[usize::from(code)]) * scale;
            }
        }
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        for (group, values) in values.chunks_exact(GROUP).enumerate() {
            let error = |code: &u8| -> f32 {
                let (scale, inverse) = (half_scale(*code), reciprocal(half_scale(*code)));
                let off =
                    |value: &f32| f32::from(VALUES[usize::from(nearest(value * inverse))]) * scale - value;
                values.iter().map(|value| off(value).powi(2)).sum()
            };
            // The largest code is 6. Scales slightly above or below the one for it may fit the rest better.
            let plain = code_below(absmax(values) / 6.0);
            let codes = plain.saturating_sub(3)..=(plain + 4).min(LARGEST);
            let best = codes.min_by(|a, b| error(a).total_cmp(&error(b))).expect("some codes");
            block[group] = best;
            let inverse = reciprocal(half_scale(best));
            for (elem, value) in values.iter().enumerate() {
                block[SCALES + 8 * group + elem % 8] |= nearest(value * inverse) << (elem / 8 * 4);
            }
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // With the scale below a sixth of the largest value, every error is below a fifth of that value, or
        // half the smallest scale. The sum of squares of 16 is no larger with the best scale. No value is
        // above six times the largest scale.
        if absmax > 6.0 * 448.0 { f32::INFINITY } else { 0.8 * absmax + 2f32.powi(-9) }
    }
}

#[cfg(test)]
mod tests {
    use super::Nvfp4;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0 is 2: codes decode to `VALUES`. 0x7f and 0 mean 0, 1 means the smallest scale, 2^-9.
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&[0x40, 0x7f, 0, 1]);
        // Group 0: the first element is code 15, the last one code 1; group 3: the same in code 7.
        (bytes[4], bytes[11], bytes[12], bytes[28]) = (0x0f, 0x10, 0x77, 0x07);
        let mut out = [f32::NAN; 64];
        Nvfp4.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 64];
        (want[0], want[15], want[48]) = (-12.0, 1.0, 12.0 * 2f32.powi(-10));
        assert_eq!(out, want);
    }
}
