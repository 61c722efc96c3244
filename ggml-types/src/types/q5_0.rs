//! Q5_0: 32 5-bit integers with one f16 scale before them; value = (q - 16) x scale.

use crate::block::{Block, Weighing, f16_rounding, read_f16, reciprocal, same_id};
use crate::scale_search::{best_scale, quantise};
use crate::{Dialect, ids};

/// Offsets of the fifth bits and of the low bits.
const HIGH: usize = 2;
const LOW: usize = 6;

/// 22 bytes: f16 scale, 32 fifth bits with element 0 lowest, then 16 bytes; byte b holds the low bits of
/// element b in its low half and of b + 16 in its high half.
#[derive(Debug)]
pub struct Q5_0;

impl Block for Q5_0 {
    const NAME: &'static str = "q5_0";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q5_0);
    const FILE_TYPE: Option<u32> = Some(8);
    const ELEMS: usize = 32;
    const BYTES: usize = 22;
    const WEIGHING: Option<Weighing> = Some(Weighing::Row);

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        for (elem, out) in out.iter_mut().enumerate() {
            let low = block[LOW + elem % 16] >> (elem / 16 * 4) & 15;
            let high = block[HIGH + elem / 8] >> (elem % 8) & 1;
            *out = (f32::from(low | high << 4) - 16.0) * scale;
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let scale = best_scale(values, weights, 16);
        let inverse = reciprocal(scale);
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        for (elem, value) in values.iter().enumerate() {
            let q = (quantise(*value, inverse, 16) + 16) as u8;
            block[LOW + elem % 16] |= (q & 15) << (elem / 16 * 4);
            block[HIGH + elem / 8] |= (q >> 4) << (elem % 8);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // As in Q4_0 with twice the steps: the search maps the largest value to 15.1 to 16.9 of them.
        0.25 * absmax + 16.0 * f16_rounding(absmax / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Q5_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 2; all codes 16 (value 0) but four.
        let mut bytes = [0; 22];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        bytes[2..6].fill(0xff);
        // Element 0 is 31, element 16 is 15, element 15 is 0, element 31 is 17.
        (bytes[6], bytes[21]) = (0xff, 0x10);
        (bytes[4], bytes[3]) = (0xfe, 0x7f);
        let mut out = [f32::NAN; 32];
        Q5_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 32];
        (want[0], want[16], want[15], want[31]) = (30.0, -2.0, -32.0, 2.0);
        assert_eq!(out, want);
    }
}
