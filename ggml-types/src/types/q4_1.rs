//! Q4_1: 32 4-bit integers with an f16 scale and an f16 offset before them; value = q x scale + offset.

use crate::affine::{fit_group, group_error_bound};
use crate::block::{Block, Weighing, read_f16, same_id};
use crate::{Dialect, ids};

/// 20 bytes: f16 scale, f16 offset, then 16 bytes; byte b holds element b in its low and b + 16 in its high
/// half.
#[derive(Debug)]
pub struct Q4_1;

impl Block for Q4_1 {
    const NAME: &'static str = "q4_1";
    const IDS: &'static [(Dialect, u32)] = same_id!(ids::GGML_TYPE_Q4_1);
    const FILE_TYPE: Option<u32> = Some(3);
    const ELEMS: usize = 32;
    const BYTES: usize = 20;
    const WEIGHING: Option<Weighing> = Some(Weighing::Row);

    fn decode(block: &[u8], out: &mut [f32]) {
        let (scale, offset) = (read_f16(block), read_f16(&block[2..]));
        for (elem, out) in out.iter_mut().enumerate() {
            *out = f32::from(block[4 + elem % 16] >> (elem / 16 * 4) & 15) * scale + offset;
        }
    }

    fn encode(values: &[f32], weights: &[f32], block: &mut [u8]) {
        let (scale, offset, codes) = fit_group::<32>(values, weights, 15);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..4].copy_from_slice(&offset.to_le_bytes());
        for (elem, code) in codes.into_iter().enumerate() {
            block[4 + elem % 16] |= code << (elem / 16 * 4);
        }
    }

    fn error_bound(absmax: f32) -> f32 {
        group_error_bound(absmax, 15)
    }
}

#[cfg(test)]
mod tests {
    use super::Q4_1;
    use crate::QuantType;

    #[test]
    fn hand_written_bytes() {
        // Scale 2, offset -0.5; low half of byte 0 is element 0, high half of byte 15 element 31.
        let mut bytes = [0; 20];
        (bytes[1], bytes[3], bytes[4], bytes[19]) = (0x40, 0xb8, 0x0f, 0x10);
        let mut out = [f32::NAN; 32];
        Q4_1.decode_row(&bytes, 1, 0, &mut out).unwrap();
        let mut want = [-0.5; 32];
        (want[0], want[31]) = (29.5, 1.5);
        assert_eq!(out, want);
    }
}
