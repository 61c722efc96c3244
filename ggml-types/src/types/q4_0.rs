//! Q4_0: 32 4-bit integers with one f16 scale before them; value = (q - 8) x scale.

use crate::block::{Block, Weighing, f16_rounding, read_f16, reciprocal, same_id};
use crate::scale_search::{best_scale, quantise};
use crate::{Dialect, ids};

/// 18 bytes: f16 scale, then 16 bytes; byte b holds element b in its low and b + 16 in its high half.
#[derive(Debug)]
pub struct Q4_0;

impl Block for Q4_0 {
    const NAME: &'static str = "q4_0";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q4_0);
    const FILE_TYPE: Option<u32> = Some(2);
    const ELEMS: usize = 32;
    const BYTES: usize = 18;
    const WEIGHING: Option<Weighing> = Some(Weighing::Row);

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        let (low, high) = out.split_at_mut(16);
        for ((byte, low), high) in block[2..].iter().zip(low).zip(high) {
            *low = (f32::from(byte & 15) - 8.0) * scale;
            *high = (f32::from(byte >> 4) - 8.0) * scale;
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let scale = best_scale(values, weights, 8);
        let inverse = reciprocal(scale);
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        for (at, value) in values.iter().enumerate() {
            let q = (quantise(*value, inverse, 8) + 8) as u8;
            block[2 + at % 16] |= q << (at / 16 * 4);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // The search maps the largest value to 7.1 to 8.9 steps, it becomes 7 or 8, and every other code is
        // within half a step of its value unless the range cuts it off. So the fitted scale is at least (1 -
        // (7 + 31) / 2 / (49 + 31)) / 8.9 of the largest value, if all others become 1, and 7 such steps
        // leave 0.4 of a value as large on the side without an eighth step. It is rarely more than a seventh.
        0.4 * absmax + 8.0 * f16_rounding(absmax / 5.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Q4_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 2; low half of byte 0 is element 0, high half element 16.
        let mut bytes = [0x88; 18];
        (bytes[0], bytes[1], bytes[2], bytes[17]) = (0x00, 0x40, 0xf0, 0x19);
        let mut out = [f32::NAN; 32];
        Q4_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 32];
        (want[0], want[16], want[15], want[31]) = (-16.0, 14.0, 2.0, -14.0);
        assert_eq!(out, want);
    }
}
