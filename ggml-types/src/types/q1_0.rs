//! Q1_0: 128 signs with one f16 scale before them; value = scale or -scale.

use crate::block::{Block, f16_rounding, read_f16, upstream_id};
use crate::{Dialect, ids};

/// 18 bytes: f16 scale, then 16 bytes; bit `j % 8` of byte `j / 8` is 1 where element `j` is positive.
#[derive(Debug)]
pub struct Q1_0;

impl Block for Q1_0 {
    const NAME: &'static str = "q1_0";
    const IDS: &'static [(Dialect, u32)] = upstream_id!(ids::GGML_TYPE_Q1_0);
    const FILE_TYPE: Option<u32> = Some(40);
    const ELEMS: usize = 128;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        for (elem, out) in out.iter_mut().enumerate() {
            *out = if block[2 + elem / 8] >> (elem % 8) & 1 == 1 { scale } else { -scale };
        }
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        // In f64, where a sum of the largest numbers does not overflow.
        let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
        let scale = (sum / values.len() as f64) as f32;
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        for (elem, value) in values.iter().enumerate() {
            block[2 + elem / 8] |= u8::from(*value >= 0.0) << (elem % 8);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // The scale is the mean magnitude: a zero among large values is off by all of it.
        absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Q1_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0.5; bit 1 of the first byte and bit 7 of the last.
        let mut bytes = [0; 18];
        (bytes[1], bytes[2], bytes[17]) = (0x38, 0b10, 0x80);
        let mut out = [f32::NAN; 128];
        Q1_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [-0.5; 128];
        (want[1], want[127]) = (0.5, 0.5);
        assert_eq!(out, want);
    }
}
