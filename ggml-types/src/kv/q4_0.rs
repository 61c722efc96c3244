//! q4_0: the weight type's blocks, 72 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::q8_0::Blocks;
use crate::types::q4_0;

/// Blocks of Q4_0.
pub static Q4_0: Blocks<q4_0::Q4_0> = Blocks(PhantomData);
