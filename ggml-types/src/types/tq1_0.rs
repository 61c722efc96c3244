//! TQ1_0: ternary weights, five per byte in base 3, one f16 scale per block; value = (trit - 1) x scale.
//!
//! A byte of trits `t0..t4` is `ceil((t0 3^4 + t1 3^3 + ... + t4) 256 / 243)`: a fraction, so that
//! multiplying by 3 shifts out the next trit at the top.

use super::tq2_0;
use crate::block::{Block, absmax, f16_rounding, read_f16, reciprocal, same_id, ternary_code};
use crate::{Dialect, ids};

/// A run of bytes. Byte `b` of `n_bytes` holds the elements `first + b`, `first + b + n_bytes`, and so on.
pub(super) struct Run {
    pub start: usize,
    pub n_bytes: usize,
    /// Trits per byte.
    pub n_trits: usize,
    pub first: usize,
}

const RUNS: [Run; 3] = [
    Run { start: 0, n_bytes: 32, n_trits: 5, first: 0 },
    Run { start: 32, n_bytes: 16, n_trits: 5, first: 160 },
    Run { start: 48, n_bytes: 4, n_trits: 4, first: 240 },
];
const SCALE: usize = 52;

/// Calls `each` with every element of a block and its trit.
pub(super) fn each_trit(runs: &[Run], block: &[u8], mut each: impl FnMut(usize, u8)) {
    for run in runs {
        for byte in 0..run.n_bytes {
            let mut fraction = block[run.start + byte];
            for trit in 0..run.n_trits {
                let shifted = u16::from(fraction) * 3;
                each(run.first + trit * run.n_bytes + byte, (shifted >> 8) as u8);
                fraction = shifted as u8;
            }
        }
    }
}

/// Decodes a block with any runs, whose scale is at offset `at`.
pub(super) fn decode(runs: &[Run], block: &[u8], at: usize, out: &mut [f32]) {
    let scale = read_f16(&block[at..]);
    each_trit(runs, block, |elem, trit| out[elem] = (f32::from(trit) - 1.0) * scale);
}

/// Encodes a block with any runs, whose scale is at offset `at`.
pub(super) fn encode(runs: &[Run], values: &[f32], at: usize, block: &mut [u8]) {
    let scale = absmax(values);
    let inverse = reciprocal(scale);
    for run in runs {
        for byte in 0..run.n_bytes {
            // A byte of four trits has a fifth one of 0.
            let number = (0..5).fold(0, |number, trit| {
                let elem = run.first + trit * run.n_bytes + byte;
                let code = if trit < run.n_trits { ternary_code(values[elem] * inverse) } else { 0 };
                number * 3 + u32::from(code)
            });
            block[run.start + byte] = (number * 256).div_ceil(243) as u8;
        }
    }
    block[at..].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
}

/// 54 bytes for 256 weights: 48 bytes of five, 4 bytes of four, f16 scale.
#[derive(Debug)]
pub struct Tq1_0;

impl Tq1_0 {
    /// Converts a block to TQ2_0, 66 bytes, which must be zero.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    pub fn to_tq2_0(block: &[u8], out: &mut [u8]) {
        each_trit(&RUNS, block, |elem, trit| {
            let (byte, shift) = tq2_0::place(elem);
            out[byte] |= trit << shift;
        });
        out[tq2_0::SCALE..].copy_from_slice(&block[SCALE..]);
    }
}

impl Block for Tq1_0 {
    const NAME: &'static str = "tq1_0";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_TQ1_0);
    const FILE_TYPE: Option<u32> = Some(36);
    const ELEMS: usize = 256;
    const BYTES: usize = 54;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        decode(&RUNS, block, SCALE, out);
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        encode(&RUNS, values, SCALE, block);
    }

    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Tq1_0;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 1. Trits 2 0 1 0 2 are the number 173, as a fraction of 243 in 256ths rounded up: 183.
        // All trits 1 are 121 and so 128; trits 0 2 1 1 of the bytes of four (then 0) are 66 and so 70.
        let mut bytes = [128; 54];
        bytes[0] = 183;
        bytes[51] = 70;
        (bytes[52], bytes[53]) = (0x00, 0x3c);
        let mut out = [f32::NAN; 256];
        Tq1_0.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 256];
        (want[0], want[32], want[64], want[96], want[128]) = (1.0, -1.0, 0.0, -1.0, 1.0);
        (want[243], want[247], want[251], want[255]) = (-1.0, 1.0, 0.0, 0.0);
        assert_eq!(out, want);
    }
}
