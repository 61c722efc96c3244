//! Q5_1: 32 5-bit integers with an f16 scale and an f16 offset before them; value = q x scale + offset.

use crate::affine::{fit_group, group_error_bound};
use crate::block::{Block, Weighing, read_f16, same_id};
use crate::{Dialect, ids};

/// Offsets of the fifth bits and of the low bits.
const HIGH: usize = 4;
const LOW: usize = 8;

/// 24 bytes: f16 scale, f16 offset, 4 bytes whose bit j is the fifth bit of element j, then 16 bytes as in
/// Q4_1.
#[derive(Debug)]
pub struct Q5_1;

impl Block for Q5_1 {
    const NAME: &'static str = "q5_1";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q5_1);
    const FILE_TYPE: Option<u32> = Some(9);
    const ELEMS: usize = 32;
    const BYTES: usize = 24;
    const WEIGHING: Option<Weighing> = Some(Weighing::Row);

    fn decode(block: &[u8], out: &mut [f32]) {
        let (scale, offset) = (read_f16(block), read_f16(&block[2..]));
        for (elem, out) in out.iter_mut().enumerate() {
            let low = block[LOW + elem % 16] >> (elem / 16 * 4) & 15;
            let high = block[HIGH + elem / 8] >> (elem % 8) & 1;
            *out = f32::from(low | high << 4) * scale + offset;
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let (scale, offset, codes) = fit_group::<32>(values, weights, 31);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..4].copy_from_slice(&offset.to_le_bytes());
        for (elem, code) in codes.into_iter().enumerate() {
            block[LOW + elem % 16] |= (code & 15) << (elem / 16 * 4);
            block[HIGH + elem / 8] |= (code >> 4) << (elem % 8);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        group_error_bound(absmax, 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Q5_1;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 1, offset 0.5. Element 0 is 31, element 16 is 15, element 31 is 17.
        let mut bytes = [0; 24];
        (bytes[1], bytes[3]) = (0x3c, 0x38);
        (bytes[4], bytes[7]) = (0x01, 0x80);
        (bytes[8], bytes[23]) = (0xff, 0x10);
        let mut out = [f32::NAN; 32];
        Q5_1.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [0.5; 32];
        (want[0], want[16], want[31]) = (31.5, 15.5, 17.5);
        assert_eq!(out, want);
    }
}
