//! BF16: the upper half of an f32, little-endian.

use crate::block::{Block, same_id};
use crate::{Dialect, ids};

/// bfloat16: 8 bits of exponent, 7 of fraction; rounds to nearest, ties to even.
#[derive(Debug)]
pub struct Bf16;

impl Block for Bf16 {
    const NAME: &'static str = "bf16";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_BF16);
    const FILE_TYPE: Option<u32> = Some(32);
    const ELEMS: usize = 1;
    const BYTES: usize = 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32();
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&half::bf16::from_f32(values[0]).to_le_bytes());
    }

    fn error_bound(absmax: f32) -> f32 {
        // Half a step of 8 significant bits, but never less than half a subnormal step (2^-134, itself a
        // subnormal f32); numbers beyond the largest bfloat16 round to infinity.
        let largest = half::bf16::MAX.to_f32();
        if absmax > largest { f32::INFINITY } else { (absmax * 2f32.powi(-8)).max(f32::from_bits(1 << 15)) }
    }
}

#[cfg(test)]
mod tests {
    use super::Bf16;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        let bytes = [0x80, 0x3f, 0x49, 0xc0];
        let mut out = [0.0; 2];
        Bf16.decode_row(&bytes, 1, 0, &mut out).unwrap();
        assert_eq!(out, [1.0, -3.140625]);
        // 257 is halfway between 256 and 258, and 256 has the even fraction.
        assert_eq!(Bf16.encode(&[257.0], 1, 1).unwrap(), [0x80, 0x43]);
    }
}
