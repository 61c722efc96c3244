//! IQ4_NL: 32 4-bit indices of 16 unevenly spaced values, with one f16 scale before them.

use crate::block::{Block, Weighing, f16_rounding, read_f16, reciprocal, same_id};
use crate::uneven::{VALUES, best_scale, nearest};
use crate::{Dialect, ids};

/// 18 bytes: f16 scale, then 16 bytes; byte b holds element b in its low and b + 16 in its high half.
#[derive(Debug)]
pub struct Iq4Nl;

impl Block for Iq4Nl {
    const NAME: &'static str = "iq4_nl";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_IQ4_NL);
    const FILE_TYPE: Option<u32> = Some(25);
    const ELEMS: usize = 32;
    const BYTES: usize = 18;
    const WEIGHING: Option<Weighing> = Some(Weighing::Block(2.0));

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        for (elem, out) in out.iter_mut().enumerate() {
            let code = block[2 + elem % 16] >> (elem / 16 * 4) & 15;
            *out = scale * f32::from(VALUES[usize::from(code)]);
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let scale = half::f16::from_f32(best_scale(values, weights));
        let inverse = reciprocal(scale.to_f32());
        block[..2].copy_from_slice(&scale.to_le_bytes());
        for (elem, value) in values.iter().enumerate() {
            block[2 + elem % 16] |= nearest(value * inverse) << (elem / 16 * 4);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // As in Q4_0: the search maps the largest value to 92 to 141 times the scale, and the fit may stop at
        // 113 or 127 times it.
        0.5 * absmax + 127.0 * f16_rounding(absmax / 50.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Iq4Nl;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0.5; all indices 8 (value 1) but two.
        let mut bytes = [0x88; 18];
        (bytes[0], bytes[1], bytes[2], bytes[17]) = (0x00, 0x38, 0x80, 0xf8);
        let mut out = [f32::NAN; 32];
        Iq4Nl.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.5; 32];
        (want[0], want[31]) = (-63.5, 56.5);
        assert_eq!(out, want);
    }
}
