//! Blocks of 256 weights that are stored as codebook entries.

use std::marker::PhantomData;

use ggml_types::codebooks::{BLOCK, Coded, GROUP};

use super::Form;
use crate::lanes::Lanes;

/// The blocks of a codebook type: signed bytes from a look-up, times an f16 and a factor, which is exact.
pub struct Points<T>(PhantomData<T>);

impl<T: Coded> Form for Points<T> {
    const BLOCK: usize = BLOCK;
    const BYTES: usize = T::BLOCK_BYTES;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        for group in 0..BLOCK / GROUP {
            let (points, factors) = T::group(block, group);
            let points: &[[i8; 16]; 2] = bytemuck::cast_ref(&points);
            let scale = l.f16_to_f32(T::scale(block));
            for half in 0..2 {
                let integers = l.load_i8(&points[half]);
                each(GROUP * group + 16 * half, l.mul(l.splat(scale * factors[half]), integers));
            }
        }
    }
}
