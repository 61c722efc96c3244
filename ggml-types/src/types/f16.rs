//! F16: IEEE half precision, little-endian.

use crate::block::{Block, f16_rounding, read_f16, same_id};
use crate::{Dialect, ids};

/// IEEE half precision: 5 bits of exponent, 10 of fraction; rounds to nearest, ties to even.
#[derive(Debug)]
pub struct F16;

impl Block for F16 {
    const NAME: &'static str = "f16";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_F16);
    const FILE_TYPE: Option<u32> = Some(1);
    const ELEMS: usize = 1;
    const BYTES: usize = 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = read_f16(block);
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&half::f16::from_f32(values[0]).to_le_bytes());
    }

    fn error_bound(absmax: f32) -> f32 {
        f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::F16;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // One, the largest number, the smallest subnormal.
        let bytes = [0x00, 0x3c, 0xff, 0x7b, 0x01, 0x00];
        let mut out = [0.0; 3];
        F16.decode_row(&bytes, 1, 0, &mut out).unwrap();
        assert_eq!(out, [1.0, 65504.0, 2f32.powi(-24)]);
        // 2049 is halfway between 2048 and 2050, and 2048 has the even fraction.
        assert_eq!(F16.encode(&[2049.0], 1, 1).unwrap(), [0x00, 0x68]);
    }
}
