//! Q8_0: 32 int8 with one f16 scale before them; value = q x scale.

use crate::block::{Block, absmax, f16_rounding, read_f16, reciprocal, same_id};
use crate::{Dialect, ids};

/// 34 bytes: f16 scale, then 32 signed bytes.
#[derive(Debug)]
pub struct Q8_0;

impl Block for Q8_0 {
    const NAME: &'static str = "q8_0";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q8_0);
    const FILE_TYPE: Option<u32> = Some(7);
    const ELEMS: usize = 32;
    const BYTES: usize = 34;
    const FOR_HEADS: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        for (out, &q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(q.cast_signed()) * scale;
        }
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        let scale = absmax(values) / 127.0;
        // The integers use the scale before it is rounded to f16, as upstream does.
        let inverse = reciprocal(scale);
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        for (q, value) in block[2..].iter_mut().zip(values) {
            *q = ((value * inverse).round() as i8).cast_unsigned();
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        // Half a step, and 127 times the f16 rounding of the scale.
        let scale = absmax / 127.0;
        0.5001 * scale + 127.0 * f16_rounding(scale)
    }
}

#[cfg(test)]
mod tests {
    use super::Q8_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0.5; 1, -128 and 127 in the first, second and last place.
        let mut bytes = [0; 34];
        (bytes[1], bytes[2], bytes[3], bytes[33]) = (0x38, 1, 0x80, 0x7f);
        let mut out = [f32::NAN; 32];
        Q8_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 32];
        (want[0], want[1], want[31]) = (0.5, -64.0, 63.5);
        assert_eq!(out, want);
    }
}
