//! Few activation rows: weights are decoded on the way, at the speed of memory.

use std::marker::PhantomData;
use std::slice::from_raw_parts;

use super::super::lanes::{Kernel, Lanes, array, array_mut};
use super::super::{F32Rows, Product, Tile};
use super::{Form, SINGLE, tail};

/// Weight rows that are multiplied together.
const TOGETHER: usize = 2;

/// Maximum number of inputs of weights whose sums are added for 16 outputs at a time: with few inputs, as in
/// an adapter's second matrix, the sums would take longer than the products.
const SHORT: usize = 64;

/// Prefetch distance in bytes: to the next weight rows, unless rows are so long that their lines would be
/// evicted before they are used.
fn ahead(row_bytes: usize) -> usize {
    let next = TOGETHER * row_bytes;
    if next <= 16 << 10 { next } else { 4 << 10 }
}

/// Function that multiplies some activation rows from `first_row` on with all weights of a tile.
pub(super) type FewFn = fn(&Product<'_>, F32Rows<'_>, first_row: usize, &mut Tile<'_, f32>);

/// The [`FewFn`] of a format for `T` activation rows.
pub(super) fn few<L: Lanes, F: Form, const T: usize>(
    product: &Product<'_>,
    acts: F32Rows<'_>,
    first_row: usize,
    tile: &mut Tile<'_, f32>,
) {
    L::vectorize(Few::<F, T> { product, acts, first_row, tile, form: PhantomData });
}

/// The arguments of [`few`].
struct Few<'a, 'b, F, const T: usize> {
    product: &'a Product<'a>,
    acts: F32Rows<'a>,
    first_row: usize,
    tile: &'a mut Tile<'b, f32>,
    form: PhantomData<F>,
}

impl<F: Form, const T: usize> Kernel for Few<'_, '_, F, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        if F::BLOCK == SINGLE && self.product.cols <= SHORT && self.product.cols.is_multiple_of(16) {
            return self.short(l);
        }
        let Self { product, acts, first_row, tile, form: _ } = self;
        let acts: [&[f32]; T] = std::array::from_fn(|t| acts.row(first_row + t));
        let ahead = ahead(product.row_bytes);
        for first in (0..tile.cols().len()).step_by(TOGETHER) {
            let weights: [&[u8]; TOGETHER] = std::array::from_fn(|r| product.row(first + r));
            // SAFETY: blocks and their inputs are within rows: the caller has checked every length.
            let sums = unsafe {
                let mut acc = [[l.splat(0.0); TOGETHER]; T];
                for block in 0..product.cols / F::BLOCK {
                    for r in 0..TOGETHER {
                        let bytes = weights[r].as_ptr().add(block * F::BYTES);
                        for line in (0..F::BYTES).step_by(64) {
                            l.prefetch(bytes.wrapping_add(ahead + line));
                        }
                        F::decode(
                            l,
                            from_raw_parts(bytes, F::BYTES),
                            #[inline(always)]
                            |i, weights| {
                                for t in 0..T {
                                    let x = l.load(array(acts[t].as_ptr().add(block * F::BLOCK + i)));
                                    acc[t][r] = l.fma(weights, x, acc[t][r]);
                                }
                            },
                        );
                    }
                }
                let mut sums = [[0.0; TOGETHER]; T];
                for t in 0..T {
                    for r in 0..TOGETHER {
                        sums[t][r] = l.sum(acc[t][r]);
                    }
                }
                sums
            };
            for t in 0..T {
                for r in 0..TOGETHER {
                    // The last outputs may be fewer.
                    if let Some(out) = tile.row_mut(first_row + t).get_mut(first + r) {
                        product.finish(out, first + r, sums[t][r] + tail::<F>(weights[r], acts[t]));
                    }
                }
            }
        }
    }
}

impl<F: Form, const T: usize> Few<'_, '_, F, T> {
    /// Multiplies weights with up to [`SHORT`] inputs, in whole 16.
    #[inline(always)]
    fn short<L: Lanes>(self, l: L) {
        let Self { product, acts, first_row, tile, form: _ } = self;
        let acts: [&[f32]; T] = std::array::from_fn(|t| acts.row(first_row + t));
        for first in (0..tile.cols().len()).step_by(16) {
            let mut lanes = [[0.0; 256]; T];
            for (r, row) in product.rows::<16>(first).iter().enumerate() {
                let mut acc = [l.splat(0.0); T];
                for at in (0..product.cols).step_by(16) {
                    // SAFETY: blocks and their inputs are within rows: the caller has checked every length.
                    let bytes = unsafe { from_raw_parts(row.add(at / 16 * F::BYTES), F::BYTES) };
                    F::decode(
                        l,
                        bytes,
                        #[inline(always)]
                        |_, weights| {
                            for t in 0..T {
                                // SAFETY: as above.
                                let x = l.load(unsafe { array(acts[t].as_ptr().add(at)) });
                                acc[t] = l.fma(weights, x, acc[t]);
                            }
                        },
                    );
                }
                for t in 0..T {
                    // SAFETY: there are 16 rows of 16 lanes.
                    l.store(unsafe { array_mut(lanes[t].as_mut_ptr().add(16 * r)) }, acc[t]);
                }
            }
            for (t, lanes) in lanes.iter().enumerate() {
                let mut sums = [0.0; 16];
                l.store(&mut sums, l.sum_each(lanes));
                for (i, out) in tile.row_mut(first_row + t)[first..].iter_mut().take(16).enumerate() {
                    // Adds 0 as the other loops do without a tail: -0 becomes 0.
                    product.finish(out, first + i, sums[i] + 0.0);
                }
            }
        }
    }
}
