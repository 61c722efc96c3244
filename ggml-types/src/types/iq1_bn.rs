//! IQ1_BN of ik_llama.cpp: ternary weights, five per byte, one f16 scale per row.

use super::iq2_bn;
use crate::block::{Block, absmax, f16_rounding, read_f16, same_id, ternary_code};
use crate::{Dialect, ids};

/// Powers of 3.
const THREE_TO: [u8; 5] = [1, 3, 9, 27, 81];

/// A row is its scale, then 13 bytes per 64 weights: three for each 16, which hold five weights each, and a
/// last one with the sixteenth of each. A byte is a fraction of 256 whose leading base-3 digits, from the
/// last weight to the first, are the codes; value = (code - 1) x scale.
#[derive(Debug)]
pub struct Iq1Bn;

impl Iq1Bn {
    /// Converts a row to IQ2_BN.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    pub fn to_iq2_bn(row: &[u8], out: &mut [u8]) {
        let (head, blocks) = row.split_at(Iq1Bn::HEAD_BYTES);
        let (out_head, out) = out.split_at_mut(iq2_bn::HEAD);
        out_head.copy_from_slice(&read_f16(head).to_le_bytes());
        out.fill(0);
        for (block, out) in blocks.chunks_exact(Iq1Bn::BYTES).zip(out.chunks_exact_mut(16)) {
            for elem in 0..Iq1Bn::ELEMS {
                out[elem % 16] |= code(block, elem) << (elem / 16 * 2);
            }
        }
    }
}

/// Byte of an element's code, and the power of 3 of its digit.
fn place(elem: usize) -> (usize, usize) {
    match elem % 16 {
        15 => (12, elem / 16),
        at => (elem / 16 * 3 + at / 5, at % 5),
    }
}

/// An element's code.
fn code(block: &[u8], elem: usize) -> u8 {
    let (byte, digit) = place(elem);
    let fraction = block[byte].wrapping_mul(THREE_TO[4 - digit]);
    ((u16::from(fraction) * 3) >> 8) as u8
}

impl Block for Iq1Bn {
    const NAME: &'static str = "iq1_bn";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::IK_TYPE_IQ1_BN);
    const FILE_TYPE: Option<u32> = Some(136);
    const ELEMS: usize = 64;
    const BYTES: usize = 13;
    const HEAD_BYTES: usize = 2;
    const TERNARY: bool = true;

    fn decode(block: &[u8], out: &mut [f32]) {
        for (elem, out) in out.iter_mut().enumerate() {
            *out = f32::from(code(block, elem)) - 1.0;
        }
    }

    fn apply_head(head: &[u8], out: &mut [f32]) {
        let scale = read_f16(head);
        out.iter_mut().for_each(|out| *out *= scale);
    }

    fn encode_head(values: &[f32], head: &mut [u8]) -> f32 {
        let scale = absmax(values);
        head.copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        scale
    }

    fn encode(values: &[f32], _weights: &[f32], block: &mut [u8]) {
        for (elem, value) in values.iter().enumerate() {
            let (byte, digit) = place(elem);
            block[byte] += ternary_code(*value) * THREE_TO[digit];
        }
        // The smallest fraction that begins with these digits.
        block.iter_mut().for_each(|byte| *byte = (u16::from(*byte) * 256).div_ceil(243) as u8);
    }

    /// `absmax` is the row's.
    fn error_bound(absmax: f32) -> f32 {
        0.5001 * absmax + f16_rounding(absmax)
    }
}

#[cfg(test)]
mod tests {
    use super::Iq1Bn;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 0.5; 128 is the smallest fraction whose five digits are 1, number 121: all zeros. Element 0
        // is the ones digit: 122 is one more. The last byte's second digit is element 31: 118 is three less.
        let mut bytes = [128; 15];
        (bytes[0], bytes[1]) = (0x00, 0x38);
        bytes[2] = (122_u16 * 256).div_ceil(243) as u8;
        bytes[14] = (118_u16 * 256).div_ceil(243) as u8;
        let mut out = [f32::NAN; 64];
        Iq1Bn.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.0; 64];
        (want[0], want[31]) = (0.5, -0.5);
        assert_eq!(out, want);
    }

    /// Every group of five codes, against the definition: the base-3 digits of a number below 243.
    #[test]
    fn every_byte_has_its_digits() {
        let mut out = [f32::NAN; 64];
        for number in 0..243_u16 {
            let mut bytes = [0; 15];
            (bytes[1], bytes[2]) = (0x3c, (number * 256).div_ceil(243) as u8);
            Iq1Bn.decode_row(&bytes, 1, 0, &mut out).unwrap();
            for (digit, value) in (0..).zip(&out[..5]) {
                assert_eq!(value + 1.0, f32::from(number / 3_u16.pow(digit) % 3), "{number}");
            }
        }
    }
}
