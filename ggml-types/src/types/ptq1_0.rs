//! PTQ1_0: ternary weights in base 3 with one f16 scale per block, by PrismML: TQ1_0 with blocks half as
//! long.

use super::tq1_0::{self, Run};
use crate::block::{Block, f16_rounding, upstream_id};
use crate::{Dialect, ids};

/// As in TQ1_0.
const RUNS: [Run; 3] = [
    Run { start: 0, n_bytes: 16, n_trits: 5, first: 0 },
    Run { start: 16, n_bytes: 8, n_trits: 5, first: 80 },
    Run { start: 24, n_bytes: 2, n_trits: 4, first: 120 },
];
const SCALE: usize = 26;

/// 28 bytes for 128 weights: 24 bytes of five, 2 bytes of four, f16 scale.
#[derive(Debug)]
pub struct Ptq1_0;

impl Ptq1_0 {
    /// Converts a block to PQ2_0, 34 bytes, which must be zero.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    pub fn to_pq2_0(block: &[u8], out: &mut [u8]) {
        out[..2].copy_from_slice(&block[SCALE..]);
        tq1_0::each_trit(&RUNS, block, |elem, trit| out[2 + elem / 4] |= trit << (elem % 4 * 2));
    }
}

impl Block for Ptq1_0 {
    const NAME: &'static str = "ptq1_0";
    const IDS: &'static [(Dialect, u32)] = upstream_id!(ids::GGML_TYPE_PTQ1_0);
    const FILE_TYPE: Option<u32> = Some(143);
    const ELEMS: usize = 128;
    const BYTES: usize = 28;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        tq1_0::decode(&RUNS, block, SCALE, out);
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        tq1_0::encode(&RUNS, values, SCALE, block);
    }

    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Ptq1_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 1. Trits 2 0 1 0 2 are the byte 183, five of 1 are 128, and 0 2 1 1 of the bytes of four 70.
        let mut bytes = [128; 28];
        (bytes[0], bytes[23], bytes[25]) = (183, 183, 70);
        (bytes[26], bytes[27]) = (0x00, 0x3c);
        let mut out = [f32::NAN; 128];
        Ptq1_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 128];
        (want[0], want[16], want[48], want[64]) = (1.0, -1.0, -1.0, 1.0);
        (want[87], want[95], want[111], want[119]) = (1.0, -1.0, -1.0, 1.0);
        (want[121], want[123]) = (-1.0, 1.0);
        assert_eq!(out, want);
    }
}
