//! Q2_0: 64 codes of 2 bits with one f16 scale before them; value = (code - 1) x scale.
//!
//! Quantisers write ternary weights, codes 0 to 2; code 3 means twice the scale.

use crate::block::{Block, absmax, f16_rounding, read_f16, reciprocal, ternary_code, upstream_id};
use crate::{Dialect, ids};

/// 18 bytes: f16 scale, then 16 bytes; element `j` is in byte `j / 4` at shift `2 (j % 4)`.
#[derive(Debug)]
pub struct Q2_0;

/// Decodes a block of any number of elements.
pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let scale = read_f16(block);
    for (elem, out) in out.iter_mut().enumerate() {
        *out = (f32::from(block[2 + elem / 4] >> (elem % 4 * 2) & 3) - 1.0) * scale;
    }
}

/// Encodes a block of any number of elements.
pub(super) fn encode(values: &[f32], block: &mut [u8]) {
    let scale = absmax(values);
    let inverse = reciprocal(scale);
    block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
    for (elem, value) in values.iter().enumerate() {
        block[2 + elem / 4] |= ternary_code(value * inverse) << (elem % 4 * 2);
    }
}

impl Block for Q2_0 {
    const NAME: &'static str = "q2_0";
    const IDS: &'static [(Dialect, u32)] = upstream_id!(ids::GGML_TYPE_Q2_0);
    const FILE_TYPE: Option<u32> = Some(41);
    const ELEMS: usize = 64;
    const BYTES: usize = 18;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        decode(block, out);
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        encode(values, block);
    }

    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Q2_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0.5; elements 0 to 3 are codes 2, 0, 1, 3, the last one 0, all others 1.
        let mut bytes = [0b0101_0101; 18];
        (bytes[0], bytes[1]) = (0x00, 0x38);
        (bytes[2], bytes[17]) = (0b1101_0010, 0b0001_0101);
        let mut out = [f32::NAN; 64];
        Q2_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 64];
        (want[0], want[1], want[3], want[63]) = (0.5, -0.5, 1.0, -0.5);
        assert_eq!(out, want);
    }
}
