//! PQ2_0: Q2_0 with blocks twice as long, by PrismML. Their older files use Q2_0's id; the type is recognised
//! by the size of its tensors.

use super::q2_0;
use crate::block::{Block, f16_rounding, upstream_id};
use crate::{Dialect, ids};

/// 34 bytes for 128 weights: f16 scale, then 32 bytes of codes as in Q2_0.
#[derive(Debug)]
pub struct Pq2_0;

impl Block for Pq2_0 {
    const NAME: &'static str = "pq2_0";
    const IDS: &'static [(Dialect, u32)] = upstream_id!(ids::GGML_TYPE_PQ2_0);
    const FILE_TYPE: Option<u32> = Some(141);
    const ELEMS: usize = 128;
    const BYTES: usize = 34;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        q2_0::decode(block, out);
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        q2_0::encode(values, block);
    }

    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Pq2_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 2; the first element is code 2, the last one code 0, all others 1.
        let mut bytes = [0b0101_0101; 34];
        (bytes[0], bytes[1]) = (0x00, 0x40);
        (bytes[2], bytes[33]) = (0b0101_0110, 0b0001_0101);
        let mut out = [f32::NAN; 128];
        Pq2_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 128];
        (want[0], want[127]) = (2.0, -2.0);
        assert_eq!(out, want);
    }
}
