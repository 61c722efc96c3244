//! TQ2_0: ternary weights, 2 bits each, one f16 scale per block; value = (code - 1) x scale.

use crate::block::{Block, absmax, f16_rounding, read_f16, reciprocal, same_id, ternary_code};
use crate::{Dialect, ids};

pub(super) const SCALE: usize = 64;

/// 66 bytes for 256 weights: 64 bytes of codes, f16 scale. Weight `j` of each half block of 128 is in byte
/// `j % 32` of its 32 bytes, at shift `2 (j / 32)`: I2_S's order with the shifts reversed.
#[derive(Debug)]
pub struct Tq2_0;

/// Byte and shift of an element's code.
pub(super) fn place(elem: usize) -> (usize, usize) {
    (elem / 128 * 32 + elem % 32, elem % 128 / 32 * 2)
}

impl Block for Tq2_0 {
    const NAME: &'static str = "tq2_0";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_TQ2_0);
    const FILE_TYPE: Option<u32> = Some(37);
    const ELEMS: usize = 256;
    const BYTES: usize = 66;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(&block[SCALE..]);
        for (elem, out) in out.iter_mut().enumerate() {
            let (byte, shift) = place(elem);
            *out = (f32::from(block[byte] >> shift & 3) - 1.0) * scale;
        }
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        let scale = absmax(values);
        let inverse = reciprocal(scale);
        for (elem, value) in values.iter().enumerate() {
            let (byte, shift) = place(elem);
            block[byte] |= ternary_code(value * inverse) << shift;
        }
        block[SCALE..].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
    }

    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Tq2_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0.5. Byte 0 holds elements 0, 32, 64, 96 from the bottom: 2, 0, 1, 3; byte 63 the
        // elements 159, 191, 223, 255: 1, 1, 1, 0.
        let mut bytes = [0b0101_0101; 66];
        bytes[0] = 0b1101_0010;
        bytes[63] = 0b0001_0101;
        (bytes[64], bytes[65]) = (0x00, 0x38);
        let mut out = [f32::NAN; 256];
        Tq2_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 256];
        (want[0], want[32], want[96], want[255]) = (0.5, -0.5, 1.0, -0.5);
        assert_eq!(out, want);
    }
}
