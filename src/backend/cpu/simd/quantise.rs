//! Rounding of activations to int8.
#![allow(unsafe_code)]

use super::lanes::{Kernel, Lanes};
use super::{MAX_ACT, RowQuant, by_block, interleaved, padded};

/// [`Kernels::quantise`](super::Kernels::quantise).
pub struct Quantise<'a> {
    x: &'a [f32],
    q: &'a mut [i8],
}

impl<'a> Quantise<'a> {
    /// # Panics
    /// Where `q` is not `[padded(x.len())]`.
    pub fn new(x: &'a [f32], q: &'a mut [i8]) -> Self {
        assert_eq!(q.len(), padded(x.len()), "room for {} values", x.len());
        Self { x, q }
    }
}

impl Kernel for Quantise<'_> {
    type Out = RowQuant;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> RowQuant {
        let Self { x, q } = self;
        let (chunks, rest) = x.as_chunks::<16>();
        // SAFETY: as for this function; each 16 values have 16 places next to each other.
        unsafe {
            // As integers, the bits of magnitudes have their order, with NaN above everything.
            let mut largest = L::splat_int(0);
            for chunk in chunks {
                largest = L::max_magnitude(largest, L::load(chunk.as_ptr()));
            }
            let largest = rest.iter().fold(L::largest(largest) as u32, |max, x| max.max(x.abs().to_bits()));
            if x.len() != q.len() || largest > MAX_ACT.to_bits() {
                q.fill(0);
            }
            if largest > MAX_ACT.to_bits() {
                return RowQuant { scale: 0.0, sum: 0 };
            }
            let scale = 127.0 / f32::from_bits(largest).max(1e-5);
            let mut sums = L::splat_int(0);
            for (i, chunk) in chunks.iter().enumerate() {
                let values = L::round(L::mul(L::load(chunk.as_ptr()), L::splat(scale)));
                sums = L::add_ints(sums, values);
                L::store_i8(q[interleaved(16 * i)..][..16].as_mut_ptr(), values);
            }
            let mut sum = L::sum_ints(sums);
            for (k, x) in x.iter().enumerate().skip(16 * chunks.len()) {
                let value = (x * scale).round_ties_even() as i8;
                q[interleaved(k)] = value;
                sum += i32::from(value);
            }
            RowQuant { scale, sum }
        }
    }
}

/// [`Kernels::round_blocks`](super::Kernels::round_blocks): plain code that the compiler vectorises.
pub struct RoundBlocks<'a> {
    pub x: &'a [f32],
    pub q: &'a mut [i8],
    pub blocks: &'a mut [[f32; 4]],
}

impl Kernel for RoundBlocks<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        by_block::round(self.x, self.q, self.blocks);
    }
}
