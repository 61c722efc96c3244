//! q5_0: the weight type's blocks, 88 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::q8_0::{Blocks, CodedBlock};
use crate::KvForm;
use crate::types::q5_0;

/// Blocks of Q5_0.
pub static Q5_0: Blocks<q5_0::Q5_0> = Blocks(PhantomData);

impl CodedBlock for q5_0::Q5_0 {
    const FORM: KvForm = KvForm::Q5_0;
}
