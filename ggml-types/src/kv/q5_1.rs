//! q5_1: the weight type's blocks, 96 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::q8_0::{Blocks, CodedBlock};
use crate::KvForm;
use crate::types::q5_1;

/// Blocks of Q5_1.
pub static Q5_1: Blocks<q5_1::Q5_1> = Blocks(PhantomData);

impl CodedBlock for q5_1::Q5_1 {
    const FORM: KvForm = KvForm::Q5_1;
    // Its offset is an f16, and may be the smallest element.
    const LARGEST: f32 = 65_504.0;
}
