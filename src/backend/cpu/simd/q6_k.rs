//! Product of Q6_K weights and f32 activations.
//!
//! Two vector ports have to unpack weights at the speed of memory, so this kernel saves operations. 64
//! weights in a register are converted to floats without moving bytes into order: vector `j` of four takes
//! bytes `4 j` to `4 j + 3` of each group of 16, in the top bits of an integer, where the sign bit is in
//! place. The activations are brought into the same order once per tile. And four products of a lane are
//! summed before they are multiplied by their group's scale.
//!
//! For each 64 inputs, lane `4 g + e` of a row's sum thus adds `scale ((q0 x0) + q1 x1 + q2 x2 + q3 x3)` with
//! the inputs `16 g + 4 j + e`; every `+` is a fused multiply-add, including the one that adds to the lane.
//! Until the scale is applied, weights are `2^26` times too large: activations above 1e28 overflow.
#![allow(unsafe_code)]

use super::lanes::{Kernel, Lanes, array};
use super::{ARRANGED_ROWS, F32Rows, Product, Scratch, Tile};

/// Weights and bytes of a block. Its parts are low bits, high bits, 16 i8 scales of groups, and an f16 scale.
const BLOCK: usize = 256;
const BYTES: usize = 210;
const HIGH: usize = 128;
const SCALES: usize = 192;
const SCALE: usize = 208;

/// Factor on unpacked weights: they are two bits and three bytes above their place.
const ONE: f32 = (1 << 26) as f32;

/// Prefetch distance in bytes.
const AHEAD: usize = 4096;

/// The kernel of one tile.
pub struct Q6K<'a, 'b> {
    product: &'a Product<'a>,
    acts: F32Rows<'a>,
    scratch: &'a mut Scratch,
    tile: &'a mut Tile<'b, f32>,
}

impl<'a, 'b> Q6K<'a, 'b> {
    /// Checks that the arguments match.
    ///
    /// # Panics
    /// If they do not match.
    pub fn new(
        product: &'a Product<'a>,
        acts: F32Rows<'a>,
        scratch: &'a mut Scratch,
        tile: &'a mut Tile<'b, f32>,
    ) -> Self {
        let cols = product.cols;
        assert!(cols.is_multiple_of(BLOCK), "{cols} inputs");
        product.check(cols / BLOCK * BYTES, acts, tile);
        Self { product, acts, scratch, tile }
    }
}

impl Kernel for Q6K<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let mut rows = self.tile.rows();
        // Each row has an accumulator and a sum of four products, in addition to four vectors of weights.
        let most = L::FLOAT_BLOCK.1.min(ARRANGED_ROWS);
        while !rows.is_empty() {
            match rows.len().min(most) {
                1 => self.rows::<L, 1>(l, rows.start),
                2 => self.rows::<L, 2>(l, rows.start),
                3 => self.rows::<L, 3>(l, rows.start),
                _ => self.rows::<L, 6>(l, rows.start),
            }
            rows.start += rows.len().min(most);
        }
    }
}

impl Q6K<'_, '_> {
    /// Multiplies up to `T` activation rows.
    #[inline(always)]
    fn rows<L: Lanes, const T: usize>(&mut self, l: L, first_row: usize) {
        let (cols, end) = (self.product.cols, self.tile.rows().end);
        for (t, interleaved) in self.scratch.floats.chunks_exact_mut(cols).take(T).enumerate() {
            interleave(self.acts.row((first_row + t).min(end - 1)), interleaved);
        }
        let acts = self.scratch.floats[..T * cols].as_ptr();
        for output in 0..self.tile.cols().len() {
            // SAFETY: the pointers are to a row of weights and `T` rows of activations.
            let sums = unsafe { dots::<L, T>(l, self.product.row(output).as_ptr(), acts, cols) };
            for t in 0..T.min(end - first_row) {
                let out = &mut self.tile.row_mut(first_row + t)[output];
                self.product.finish(out, output, sums[t]);
            }
        }
    }
}

/// Brings activations into the order of the weights.
#[inline(always)]
fn interleave(x: &[f32], interleaved: &mut [f32]) {
    for (x, interleaved) in x.as_chunks::<64>().0.iter().zip(interleaved.as_chunks_mut::<64>().0) {
        let (x, interleaved) = (x.as_chunks::<4>().0, interleaved.as_chunks_mut::<4>().0);
        for j in 0..4 {
            for group in 0..4 {
                interleaved[4 * j + group] = x[4 * group + j];
            }
        }
    }
}

/// Products of a weight row with `T` rows of interleaved activations.
///
/// # Safety
/// The pointers are to a row of `cols` weights and `T` rows of `cols` floats.
#[inline(always)]
unsafe fn dots<L: Lanes, const T: usize>(
    l: L,
    weights: *const u8,
    acts: *const f32,
    cols: usize,
) -> [f32; T] {
    // SAFETY: blocks are within the row of weights, and their inputs within the rows of activations.
    unsafe {
        let mut acc = [l.splat(0.0); T];
        for block in 0..cols / BLOCK {
            let (acts, block) = (acts.add(block * BLOCK), weights.add(block * BYTES));
            for line in (0..BYTES).step_by(64) {
                l.prefetch(block.wrapping_add(line + AHEAD));
            }
            let scale = l.splat(l.f16_to_f32(block.add(SCALE).cast::<u16>().read_unaligned()) / ONE);
            let mut scales = [0.0; 16];
            l.store(&mut scales, l.mul(scale, l.load_i8(array(block.add(SCALES).cast()))));
            for half in 0..2 {
                let bytes = l.unpack_q6(array(block.add(64 * half)), array(block.add(HIGH + 32 * half)));
                for i in 0..2 {
                    let weights = [
                        l.to_floats(l.top_bytes::<0>(bytes[i])),
                        l.to_floats(l.top_bytes::<1>(bytes[i])),
                        l.to_floats(l.top_bytes::<2>(bytes[i])),
                        l.to_floats(l.top_bytes::<3>(bytes[i])),
                    ];
                    let scale = l.splat_each4(array(scales.as_ptr().add(8 * half + 4 * i)));
                    for t in 0..T {
                        let x = acts.add(t * cols + 128 * half + 64 * i);
                        let mut sum = l.mul(weights[0], l.load(array(x)));
                        for j in 1..4 {
                            sum = l.fma(weights[j], l.load(array(x.add(16 * j))), sum);
                        }
                        acc[t] = l.fma(scale, sum, acc[t]);
                    }
                }
            }
        }
        let mut sums = [0.0; T];
        for t in 0..T {
            sums[t] = l.sum(acc[t]);
        }
        sums
    }
}
