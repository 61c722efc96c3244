//! Blocks of 256 weights that are points of a codebook.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use ggml_types::codebooks::{BLOCK, Coded, GROUP};

use super::Form;
use crate::lanes::{Lanes, array};

/// The blocks of a type of points: signed bytes of a look-up, times an f16 and a factor, which is exact.
pub struct Points<T>(PhantomData<T>);

impl<T: Coded> Form for Points<T> {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = T::BLOCK_BYTES;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(l: L, block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: a block lies behind the pointer.
        let bytes = unsafe { std::slice::from_raw_parts(block, T::BLOCK_BYTES) };
        for group in 0..BLOCK / GROUP {
            let (points, factors) = T::group(bytes, group);
            let scale = l.f16_to_f32(T::scale(bytes));
            for half in 0..2 {
                // SAFETY: each half of the points is 16 bytes.
                let integers = l.load_i8(unsafe { array(points[2 * half..].as_ptr().cast()) });
                each(GROUP * group + 16 * half, l.mul(l.splat(scale * factors[half]), integers));
            }
        }
    }
}
