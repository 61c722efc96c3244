//! q4_0: the weight type's blocks, 72 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::CodeValues;
use super::q8_0::{Blocks, CodedBlock};
use crate::KvForm;
use crate::types::q4_0;

/// Blocks of Q4_0.
pub static Q4_0: Blocks<q4_0::Q4_0> = Blocks(PhantomData);

impl CodedBlock for q4_0::Q4_0 {
    const FORM: KvForm = KvForm::Q4_0;

    fn values() -> Option<CodeValues> {
        Some(CodeValues::Table4(std::array::from_fn(|i| i as f32 - 8.0)))
    }

    fn codes(bytes: &[u8], codes: &mut [u8]) {
        let (low, high) = codes.split_at_mut(bytes.len());
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
}
