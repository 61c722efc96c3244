//! MXFP4: 32 4-bit floats (a sign, two bits of exponent, one of mantissa) with a power of two as scale, as
//! defined by the Microscaling Formats of the Open Compute Project.

use crate::block::{Block, absmax, reciprocal, upstream_id};
use crate::{Dialect, ids};

/// Twice the value of each code.
pub(super) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 17 bytes: exponent plus 127, then 16 bytes; byte b holds element b in its low and b + 16 in its high half.
#[derive(Debug)]
pub struct Mxfp4;

/// The code whose value is nearest to `ratio`, the smaller one on a tie.
pub(super) fn nearest(ratio: f32) -> u8 {
    const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let code = MIDDLES.iter().map(|middle| u8::from(ratio.abs() > *middle)).sum::<u8>();
    if code > 0 && ratio < 0.0 { code | 8 } else { code }
}

/// Half the power of two of an exponent byte.
fn half_scale(exponent: u8) -> f32 {
    // 2^-128 and 2^-127 are subnormal.
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

impl Block for Mxfp4 {
    const NAME: &'static str = "mxfp4";
    const IDS: &'static [(Dialect, u32)] = upstream_id!(ids::GGML_TYPE_MXFP4);
    const FILE_TYPE: Option<u32> = Some(38);
    const ELEMS: usize = 32;
    const BYTES: usize = 17;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = half_scale(block[0]);
        for (elem, out) in out.iter_mut().enumerate() {
            let code = block[1 + elem % 16] >> (elem / 16 * 4) & 15;
            *out = f32::from(VALUES[usize::from(code)]) * scale;
        }
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        // The power of two below the largest value is mapped to 4, that of the largest code, 6. 254 is the
        // largest valid exponent; 0 is avoided, because the reciprocal of half its power of two is infinite.
        let largest = absmax(values);
        let exponent = if largest > 0.0 { largest.log2().floor() - 2.0 + 127.0 } else { 0.0 };
        block[0] = exponent.clamp(1.0, 254.0) as u8;
        let inverse = reciprocal(half_scale(block[0]));
        for (elem, value) in values.iter().enumerate() {
            block[1 + elem % 16] |= nearest(value * inverse) << (elem / 16 * 4);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // The largest value is 4 to 8 times the scale, and the largest code is 6; the smallest scale is
        // 2^-127.
        0.26 * absmax + 2f32.powi(-128)
    }
}

#[cfg(test)]
mod tests {
    use super::Mxfp4;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // 2^1: codes decode to `VALUES`. The first element is code 15, the last one code 1.
        let mut bytes = [0; 17];
        (bytes[0], bytes[1], bytes[16]) = (128, 0x0f, 0x10);
        let mut out = [f32::NAN; 32];
        Mxfp4.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 32];
        (want[0], want[31]) = (-12.0, 1.0);
        assert_eq!(out, want);
        // Half of the smallest powers of two is subnormal.
        bytes[0] = 0;
        Mxfp4.decode_row(&bytes, 1, 0, &mut out).unwrap();
        assert_eq!((out[0], out[31]), (-12.0 * 2f32.powi(-128), 2f32.powi(-128)));
    }
}
