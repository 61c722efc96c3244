//! q4_1: the weight type's blocks, 80 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::q8_0::{Blocks, CodedBlock};
use crate::KvForm;
use crate::types::q4_1;

/// Blocks of Q4_1.
pub static Q4_1: Blocks<q4_1::Q4_1> = Blocks(PhantomData);

impl CodedBlock for q4_1::Q4_1 {
    const FORM: KvForm = KvForm::Q4_1;
    // Its offset is an f16, and may be the smallest element.
    const LARGEST: f32 = 65_504.0;
}
