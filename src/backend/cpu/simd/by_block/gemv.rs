//! One or two activation rows.
//!
//! Weight rows are read one after the other, as they lie in memory: that is what a processor asks memory for
//! by itself. The sums of each 16 inputs of a row and its scales are kept until all 16 rows have theirs; then
//! a lane is a row.
#![allow(unsafe_code)]

use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::super::lanes::{Lanes, array, array_mut, slot};
use super::super::{BLOCK_PIECE, SUMMED_ROWS, Scratch, UNIT};
use super::codes::Coded;
use super::{Blocks, Group, STRIPS, TOGETHER, add, dot, head, none};

/// Inputs of a weight row that are multiplied before the next row's: as many sums are kept of each activation
/// row.
const PIECE: usize = SUMMED_ROWS * 16;

/// How far ahead memory is asked for, in bytes. On two cores of an EPYC (Zen 5) that read 38 GB/s together,
/// Q4_K was read with 25 GB/s without asking, 34 to 36 with 4 KiB, 36 to 37 with 8 KiB and 35 with 16 KiB.
const AHEAD: usize = 8192;

impl<F: Coded> Blocks<'_, '_, F> {
    /// Multiplies `T` activation rows from `row` on with 16 weight rows, or those that there are.
    #[inline(always)]
    pub(super) fn gemv<L: Lanes, const T: usize>(
        &mut self,
        l: L,
        row: usize,
        first: usize,
        scratch: &mut Scratch,
    ) {
        const { assert!(T <= STRIPS) };
        let cols = self.product.cols;
        let n_rows = TOGETHER.min(self.tile.cols().len() - first);
        let mut acts = [self.acts.row(row); T];
        for t in 1..T {
            acts[t] = self.acts.row(row + t);
        }
        let (scales, minimums) = scratch.floats.split_at_mut(TOGETHER * BLOCK_PIECE / 16);
        let (scales, minimums) = (scales.as_mut_ptr(), minimums.as_mut_ptr());
        let sums = scratch.sums[..T * TOGETHER * PIECE / 16].as_mut_ptr().cast::<i32>();
        let heads = scratch.codes[..TOGETHER * PIECE / UNIT * F::HEAD].as_mut_ptr().cast::<[u8; 16]>();
        // SAFETY: every piece is of whole blocks, the rows have all of its inputs, and there is room for the
        // sums and heads of a piece.
        unsafe {
            let mut total = [l.splat(0.0); T];
            for start in (0..cols).step_by(PIECE) {
                let len = (cols - start).min(PIECE);
                let rows = self.rows_at(first, start);
                let mut q = [acts[0].0.as_ptr(); T];
                for t in 0..T {
                    q[t] = acts[t].0.as_ptr().add(start);
                }
                for r in 0..n_rows {
                    add_up::<L, F, T>(l, rows[r], q, len, heads.add(slot(r)), sums.add(16 * r));
                }
                for half in (0..len).step_by(BLOCK_PIECE) {
                    let mut acc = [l.splat(0.0); T];
                    for unit in (half..len.min(half + BLOCK_PIECE)).step_by(UNIT) {
                        let heads = heads.add(unit / UNIT * F::HEAD);
                        F::groups(
                            l,
                            from_raw_parts(heads, F::HEAD),
                            from_raw_parts_mut(scales, UNIT / F::GROUP * TOGETHER),
                            from_raw_parts_mut(minimums, UNIT / F::GROUP * TOGETHER),
                        );
                        for t in 0..T {
                            let sums = of_rows(l, sums.add((unit * T + t * UNIT) * TOGETHER / 16));
                            for group in 0..UNIT.min(len - unit) / F::GROUP {
                                let of = Group::load::<F>(l, scales, minimums, group);
                                let ints = match F::GROUP {
                                    16 => sums[group],
                                    _ => l.add_ints(sums[2 * group], sums[2 * group + 1]),
                                };
                                let (blocks, input) = (acts[t].1.as_ptr(), start + unit + group * F::GROUP);
                                let ints = l.add_ints(ints, none::<L, F>(l, blocks, input));
                                acc[t] = add::<L, F>(l, acc[t], ints, &of, blocks, input);
                            }
                        }
                    }
                    for t in 0..T {
                        total[t] = l.add(total[t], acc[t]);
                    }
                }
            }
            for t in 0..T {
                let sums = &mut scratch.sums[..TOGETHER];
                l.store(array_mut(sums.as_mut_ptr()), total[t]);
                self.finish(l, row + t, first, sums);
            }
        }
    }
}

/// Multiplies `len` inputs of a weight row with those of `T` activation rows. Writes the sums of each 16 for
/// each unit and activation row, 16 of them every 16 weight rows, as [`of_rows`] reads them; and the heads of
/// its units, as [`Coded::groups`] does.
///
/// # Safety
/// So many inputs are there, and room for the heads and sums.
#[inline(always)]
unsafe fn add_up<L: Lanes, F: Coded, const T: usize>(
    l: L,
    mut row: *const u8,
    mut q: [*const i8; T],
    len: usize,
    mut heads: *mut [u8; 16],
    mut sums: *mut i32,
) {
    // SAFETY: blocks, activations, heads and sums are those of inputs below `len`.
    unsafe {
        for _ in 0..len / UNIT {
            ask_for(l, row, UNIT / F::BLOCK * F::BYTES);
            let steps = [
                step::<L, F, T, 0>(l, row, q, UNIT),
                step::<L, F, T, 1>(l, row, q, UNIT),
                step::<L, F, T, 2>(l, row, q, UNIT),
                step::<L, F, T, 3>(l, row, q, UNIT),
            ];
            for t in 0..T {
                let products = [steps[0][t], steps[1][t], steps[2][t], steps[3][t]];
                l.store_ints(array_mut(sums), l.sums_of_4(&products));
                sums = sums.add(TOGETHER * 16);
                q[t] = q[t].add(UNIT);
            }
            head::<F>(row, UNIT, heads);
            row = row.add(UNIT / F::BLOCK * F::BYTES);
            heads = heads.add(F::HEAD);
        }
        let left = len % UNIT;
        if F::BLOCK < UNIT && left > 0 {
            ask_for(l, row, left / F::BLOCK * F::BYTES);
            let none = [l.splat_int(0); T];
            let steps = [
                step::<L, F, T, 0>(l, row, q, left),
                if left > 64 { step::<L, F, T, 1>(l, row, q, left) } else { none },
                if left > 128 { step::<L, F, T, 2>(l, row, q, left) } else { none },
                if left > 192 { step::<L, F, T, 3>(l, row, q, left) } else { none },
            ];
            for t in 0..T {
                let products = [steps[0][t], steps[1][t], steps[2][t], steps[3][t]];
                l.store_ints(array_mut(sums), l.sums_of_4(&products));
                sums = sums.add(TOGETHER * 16);
            }
            head::<F>(row, left, heads);
        }
    }
}

/// Asks for memory that is read later, as much as is read now.
#[inline(always)]
fn ask_for<L: Lanes>(l: L, now: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        l.prefetch(now.wrapping_add(AHEAD + 64 * line));
    }
}

/// The sums of each 16 inputs of a unit, in their order, of 16 rows.
///
/// # Safety
/// Those of all rows are there.
#[inline(always)]
unsafe fn of_rows<L: Lanes>(l: L, sums: *const i32) -> [L::Ints; 16] {
    let mut rows = [l.splat4(&[0; 4]); 16];
    for r in 0..16 {
        // SAFETY: the caller has 16 of each row.
        rows[r] = l.load_bytes(unsafe { array(sums.add(16 * r).cast()) });
    }
    let turned = l.turned(rows);
    let mut sums = [l.splat_int(0); 16];
    for i in 0..16 {
        // Lane `4 k + s` has inputs `64 s + 16 k` on.
        sums[4 * (i % 4) + i / 4] = l.as_ints(turned[i]);
    }
    sums
}

/// The products of step `I` of a unit of which there are `len` inputs, with each activation row: 64 of them,
/// 4 a lane.
///
/// # Safety
/// The blocks are there, and the activations. Behind the last block of 32 there are other
/// values of these, or what pads them.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const T: usize, const I: usize>(
    l: L,
    row: *const u8,
    q: [*const i8; T],
    len: usize,
) -> [L::Ints; T] {
    // SAFETY: the caller has the blocks and the activations.
    unsafe {
        let at = row.add(64 * I / F::BLOCK * F::BYTES);
        let block = from_raw_parts(at, F::BYTES);
        let codes = match (F::BLOCK, I) {
            (256, _) => F::codes::<L, I>(l, block, block),
            (128, 1 | 3) => F::codes::<L, 1>(l, block, block),
            (32, _) if 64 * I + 32 < len => {
                F::codes::<L, 0>(l, block, from_raw_parts(at.add(F::BYTES), F::BYTES))
            }
            _ => F::codes::<L, 0>(l, block, block),
        };
        let mut products = [l.splat_int(0); T];
        for t in 0..T {
            products[t] = dot::<L, F>(l, products[t], codes, l.load_bytes(array(q[t].add(64 * I).cast())));
        }
        products
    }
}
