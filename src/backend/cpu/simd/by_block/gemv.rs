//! One activation row.
//!
//! Weight rows are read one after the other, as they lie in memory: that is what a processor asks memory for
//! by itself. The sums of a row's groups and its scales are kept until all 16 rows have theirs.
#![allow(unsafe_code)]

use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::super::lanes::{Lanes, array, array_mut};
use super::super::{BLOCK_PIECE, SUMMED_ROWS, Scratch, UNIT};
use super::codes::Coded;
use super::{Acc, Blocks, Group, TOGETHER, dot};

/// Inputs of a weight row that are multiplied before the next row's: as many sums are kept.
const PIECE: usize = SUMMED_ROWS * 16;

/// Inputs whose products are added up together: 16 vectors of 64.
const PERIOD: usize = 1024;

/// How far ahead memory is asked for, in bytes. On two cores of an EPYC (Zen 5) that read 38 GB/s together,
/// Q4_K was read with 25 GB/s without asking, 34 to 36 with 4 KiB, 36 to 37 with 8 KiB and 35 with 16 KiB.
const AHEAD: usize = 8192;

/// Memory that is asked for before it is read.
struct Ahead {
    /// What is asked for next.
    at: *const u8,
    /// Bytes that were read and not asked for again: less than a line.
    due: usize,
}

impl Ahead {
    /// Asks for as many bytes as are read now.
    #[inline(always)]
    fn follow<L: Lanes>(&mut self, l: L, bytes: usize) {
        let due = self.due + bytes % 64;
        let lines = bytes / 64 + due / 64;
        for line in 0..bytes / 64 {
            l.prefetch(self.at.wrapping_add(64 * line));
        }
        if due >= 64 {
            l.prefetch(self.at.wrapping_add(bytes / 64 * 64));
        }
        *self = Self { at: self.at.wrapping_add(64 * lines), due: due % 64 };
    }
}

impl<F: Coded> Blocks<'_, '_, F> {
    /// Multiplies an activation row with 16 weight rows, or those that there are.
    #[inline(always)]
    pub(super) fn gemv<L: Lanes>(&mut self, l: L, row: usize, first: usize, scratch: &mut Scratch) {
        let cols = self.product.cols;
        let n_rows = TOGETHER.min(self.tile.cols().len() - first);
        let (q, blocks) = self.acts.row(row);
        let (scales, minimums) = scratch.floats.split_at_mut(TOGETHER * BLOCK_PIECE / 16);
        let (scales, minimums) = (scales.as_mut_ptr(), minimums.as_mut_ptr());
        let sums = scratch.sums[..TOGETHER * PIECE / 16].as_mut_ptr().cast::<i32>();
        let heads = scratch.codes[..TOGETHER * PIECE / F::BLOCK * F::HEAD].as_mut_ptr();
        let mut ahead = Ahead { at: self.product.row(first).as_ptr().wrapping_add(AHEAD), due: 0 };
        // SAFETY: every piece is of whole blocks, the row has all of its inputs, and there is room for the
        // sums and heads of a piece.
        unsafe {
            let mut total = l.splat(0.0);
            for start in (0..cols).step_by(PIECE) {
                let len = (cols - start).min(PIECE);
                let rows = self.rows_at(first, start);
                for r in 0..n_rows {
                    for period in (0..len).step_by(PERIOD) {
                        let block = period / F::BLOCK;
                        let place = Place {
                            row: rows[r].add(block * F::BYTES),
                            q: q.as_ptr().add(start + period),
                            heads: heads.add((block * TOGETHER + r) * F::HEAD),
                            sums: sums.add(r * PIECE / 16 + period / F::GROUP),
                        };
                        if len - period >= PERIOD {
                            place.add_up::<L, F, true>(l, PERIOD, &mut ahead);
                        } else {
                            place.add_up::<L, F, false>(l, len - period, &mut ahead);
                        }
                    }
                }
                for period in (0..len).step_by(PERIOD) {
                    // Vector `i` becomes that of step `i`, of 16 rows.
                    let sums = sums.add(period / F::GROUP);
                    for k in 0..64 / F::GROUP {
                        turn(l, sums.add(16 * k));
                    }
                    for half in (period..len.min(period + PERIOD)).step_by(BLOCK_PIECE) {
                        let mut acc = Acc::none(l);
                        for input in (half..len.min(half + BLOCK_PIECE)).step_by(F::BLOCK) {
                            let heads = heads.add(input / F::BLOCK * TOGETHER * F::HEAD);
                            let n = F::BLOCK / F::GROUP * TOGETHER;
                            F::groups(
                                l,
                                from_raw_parts(heads, TOGETHER * F::HEAD),
                                from_raw_parts_mut(scales, n),
                                from_raw_parts_mut(minimums, n),
                            );
                            for group in 0..F::BLOCK / F::GROUP {
                                let input = input + group * F::GROUP;
                                let (i, k) = ((input - period) / 64, input % 64 / F::GROUP);
                                let ints = l.load_ints(array(sums.add(i * PIECE / 16 + 16 * k)));
                                let of = Group::load::<F>(l, scales, minimums, group);
                                acc.add::<F>(l, ints, &of, blocks.as_ptr(), start + input);
                            }
                        }
                        total = l.add(total, acc.total(l));
                    }
                }
            }
            let sums = &mut scratch.sums[..TOGETHER];
            l.store(array_mut(sums.as_mut_ptr()), total);
            self.finish(row, first, sums);
        }
    }
}

/// Where the inputs of a period are read, and what comes out of them is written.
struct Place {
    /// The blocks of a weight row.
    row: *const u8,
    q: *const i8,
    /// Heads of blocks, each 16 times their length after the other.
    heads: *mut u8,
    /// `[64 / group, 16]`, the sums of the first groups of each 64 inputs, then those of the second ones.
    sums: *mut i32,
}

impl Place {
    /// Adds up the groups of a period, and copies the heads. Of one that is not `WHOLE` there are `len`
    /// inputs.
    ///
    /// # Safety
    /// So many inputs are there, and room for the heads and sums.
    #[inline(always)]
    unsafe fn add_up<L: Lanes, F: Coded, const WHOLE: bool>(&self, l: L, len: usize, ahead: &mut Ahead) {
        // SAFETY: blocks, activations, heads and sums are those of inputs below `len`.
        unsafe {
            let mut products = [l.splat_int(0); 16];
            for unit in 0..PERIOD / UNIT {
                let left = len.saturating_sub(unit * UNIT).min(UNIT);
                let row = self.row.add(unit * (UNIT / F::BLOCK) * F::BYTES);
                let q = self.q.add(unit * UNIT);
                let heads = self.heads.add(unit * (UNIT / F::BLOCK) * TOGETHER * F::HEAD);
                if WHOLE || left == UNIT {
                    ahead.follow(l, UNIT / F::BLOCK * F::BYTES);
                    products[4 * unit] = step::<L, F, 0>(l, row, q, UNIT);
                    products[4 * unit + 1] = step::<L, F, 1>(l, row, q, UNIT);
                    products[4 * unit + 2] = step::<L, F, 2>(l, row, q, UNIT);
                    products[4 * unit + 3] = step::<L, F, 3>(l, row, q, UNIT);
                    keep::<F>(row, heads, UNIT / F::BLOCK);
                } else if left > 0 {
                    products[4 * unit] = step::<L, F, 0>(l, row, q, left);
                    if left > 64 {
                        products[4 * unit + 1] = step::<L, F, 1>(l, row, q, left);
                    }
                    if left > 128 {
                        products[4 * unit + 2] = step::<L, F, 2>(l, row, q, left);
                    }
                    if left > 192 {
                        products[4 * unit + 3] = step::<L, F, 3>(l, row, q, left);
                    }
                    keep::<F>(row, heads, left / F::BLOCK);
                }
            }
            if F::GROUP == 16 {
                let parts = l.sums_of_4(&products);
                for k in 0..4 {
                    l.store_ints(array_mut(self.sums.add(16 * k)), parts[k]);
                }
            } else {
                let parts = l.sums_of_8(&products);
                for k in 0..2 {
                    l.store_ints(array_mut(self.sums.add(16 * k)), parts[k]);
                }
            }
        }
    }
}

/// Keeps the heads of some blocks of a row, 16 heads apart.
///
/// # Safety
/// The blocks are there, and room for the heads.
#[inline(always)]
unsafe fn keep<F: Coded>(row: *const u8, heads: *mut u8, n_blocks: usize) {
    for block in 0..n_blocks {
        // SAFETY: the caller has the block, and room for its head.
        unsafe {
            F::head(
                from_raw_parts(row.add(block * F::BYTES), F::BYTES),
                from_raw_parts_mut(heads.add(block * TOGETHER * F::HEAD), F::HEAD),
            );
        }
    }
}

/// The products of step `I` of a unit of which there are `len` inputs: 64 of them, 4 a lane.
///
/// # Safety
/// The blocks are there, and the activations. Behind the last block of 32 there are other
/// values of these, or what pads them.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const I: usize>(
    l: L,
    row: *const u8,
    q: *const i8,
    len: usize,
) -> L::Ints {
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
        dot::<L, F>(l, l.splat_int(0), codes, l.load_bytes(array(q.add(64 * I).cast())))
    }
}

/// Exchanges rows and columns of the sums of 16 rows, one vector each.
///
/// # Safety
/// The sums are there, [`PIECE`] / 16 apart.
#[inline(always)]
unsafe fn turn<L: Lanes>(l: L, sums: *mut i32) {
    // SAFETY: the caller has 16 sums of each row.
    unsafe {
        let mut rows = [l.splat4(&[0; 4]); 16];
        for r in 0..16 {
            rows[r] = l.load_bytes(array(sums.add(r * PIECE / 16).cast()));
        }
        let turned = l.turned(rows);
        for i in 0..16 {
            l.store_bytes(array_mut(sums.add(i * PIECE / 16).cast()), turned[i]);
        }
    }
}
