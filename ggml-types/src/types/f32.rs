//! F32: the number itself, little-endian.

use crate::block::{Block, same_id};
use crate::{Dialect, ids};

/// IEEE single precision.
#[derive(Debug)]
pub struct F32;

impl Block for F32 {
    const NAME: &'static str = "f32";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_F32);
    const FILE_TYPE: Option<u32> = Some(0);
    const ELEMS: usize = 1;
    const BYTES: usize = 4;

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&values[0].to_le_bytes());
    }

    fn error_bound(_absmax: f32) -> f32 {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::F32;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        let bytes = [0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x20, 0xc1];
        let mut out = [0.0; 2];
        F32.decode_row(&bytes, 1, 0, &mut out).unwrap();
        assert_eq!(out, [1.0, -10.0]);
    }
}
