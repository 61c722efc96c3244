//! One activation row.
//!
//! Weight rows are read one after the other, as they lie in memory: that is what a processor asks memory for
//! by itself. The sums of a row's groups and its scales are kept until all 16 rows have theirs.
#![allow(unsafe_code)]

use super::super::lanes::Lanes;
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
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn follow<L: Lanes>(&mut self, bytes: usize) {
        let due = self.due + bytes % 64;
        let lines = bytes / 64 + due / 64;
        // SAFETY: as for this function.
        unsafe {
            for line in 0..bytes / 64 {
                L::prefetch(self.at.wrapping_add(64 * line));
            }
            if due >= 64 {
                L::prefetch(self.at.wrapping_add(bytes / 64 * 64));
            }
        }
        *self = Self { at: self.at.wrapping_add(64 * lines), due: due % 64 };
    }
}

impl<F: Coded> Blocks<'_, '_, F> {
    /// Multiplies an activation row with 16 weight rows, or those that there are.
    ///
    /// # Safety
    /// As [`Kernel::run`](super::super::lanes::Kernel::run).
    #[inline(always)]
    pub(super) unsafe fn gemv<L: Lanes>(&mut self, row: usize, first: usize, scratch: &mut Scratch) {
        let cols = self.product.cols;
        let n_rows = TOGETHER.min(self.tile.cols().len() - first);
        let (q, blocks) = self.acts.row(row);
        let (scales, minimums) = scratch.floats.split_at_mut(TOGETHER * BLOCK_PIECE / 16);
        let (scales, minimums) = (scales.as_mut_ptr(), minimums.as_mut_ptr());
        let sums = scratch.sums[..TOGETHER * PIECE / 16].as_mut_ptr().cast::<i32>();
        let heads = scratch.codes[..TOGETHER * PIECE / F::BLOCK * F::HEAD].as_mut_ptr();
        let mut ahead = Ahead { at: self.product.row(first).as_ptr().wrapping_add(AHEAD), due: 0 };
        // SAFETY: as for this function; every piece is of whole blocks, the row has all of its inputs, and
        // there is room for the sums and heads of a piece.
        unsafe {
            let mut total = L::splat(0.0);
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
                            place.add_up::<L, F, true>(PERIOD, &mut ahead);
                        } else {
                            place.add_up::<L, F, false>(len - period, &mut ahead);
                        }
                    }
                }
                for period in (0..len).step_by(PERIOD) {
                    // Vector `i` becomes that of step `i`, of 16 rows.
                    let sums = sums.add(period / F::GROUP);
                    for k in 0..64 / F::GROUP {
                        turn::<L>(sums.add(16 * k));
                    }
                    for half in (period..len.min(period + PERIOD)).step_by(BLOCK_PIECE) {
                        let mut acc = Acc::<L>::none();
                        for input in (half..len.min(half + BLOCK_PIECE)).step_by(F::BLOCK) {
                            F::groups::<L>(
                                heads.add(input / F::BLOCK * TOGETHER * F::HEAD),
                                scales,
                                minimums,
                            );
                            for group in 0..F::BLOCK / F::GROUP {
                                let input = input + group * F::GROUP;
                                let (i, k) = ((input - period) / 64, input % 64 / F::GROUP);
                                let ints = L::load_ints(sums.add(i * PIECE / 16 + 16 * k));
                                let of = Group::load::<F>(scales, minimums, group);
                                acc.add::<F>(ints, &of, blocks.as_ptr(), start + input);
                            }
                        }
                        total = L::add(total, acc.total());
                    }
                }
            }
            let sums = &mut scratch.sums[..TOGETHER];
            L::store(sums.as_mut_ptr(), total);
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
    /// As [`Lanes`]; everything is there.
    #[inline(always)]
    unsafe fn add_up<L: Lanes, F: Coded, const WHOLE: bool>(&self, len: usize, ahead: &mut Ahead) {
        // SAFETY: as for this function.
        unsafe {
            let mut products = [L::splat_int(0); 16];
            for unit in 0..PERIOD / UNIT {
                let left = len.saturating_sub(unit * UNIT).min(UNIT);
                let row = self.row.add(unit * (UNIT / F::BLOCK) * F::BYTES);
                let q = self.q.add(unit * UNIT);
                let heads = self.heads.add(unit * (UNIT / F::BLOCK) * TOGETHER * F::HEAD);
                if WHOLE || left == UNIT {
                    ahead.follow::<L>(UNIT / F::BLOCK * F::BYTES);
                    products[4 * unit] = step::<L, F, 0>(row, q, UNIT);
                    products[4 * unit + 1] = step::<L, F, 1>(row, q, UNIT);
                    products[4 * unit + 2] = step::<L, F, 2>(row, q, UNIT);
                    products[4 * unit + 3] = step::<L, F, 3>(row, q, UNIT);
                    keep::<F>(row, heads, UNIT / F::BLOCK);
                } else if left > 0 {
                    products[4 * unit] = step::<L, F, 0>(row, q, left);
                    if left > 64 {
                        products[4 * unit + 1] = step::<L, F, 1>(row, q, left);
                    }
                    if left > 128 {
                        products[4 * unit + 2] = step::<L, F, 2>(row, q, left);
                    }
                    if left > 192 {
                        products[4 * unit + 3] = step::<L, F, 3>(row, q, left);
                    }
                    keep::<F>(row, heads, left / F::BLOCK);
                }
            }
            if F::GROUP == 16 {
                let parts = L::sums_of_4(&products);
                for k in 0..4 {
                    L::store_ints(self.sums.add(16 * k), parts[k]);
                }
            } else {
                let parts = L::sums_of_8(&products);
                for k in 0..2 {
                    L::store_ints(self.sums.add(16 * k), parts[k]);
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
        // SAFETY: as for this function.
        unsafe { F::head(row.add(block * F::BYTES), heads.add(block * TOGETHER * F::HEAD)) };
    }
}

/// The products of step `I` of a unit of which there are `len` inputs: 64 of them, 4 a lane.
///
/// # Safety
/// As [`Lanes`]; the blocks are there, and the activations. Behind the last block of 32 there are other
/// values of these, or what pads them.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const I: usize>(row: *const u8, q: *const i8, len: usize) -> L::Ints {
    // SAFETY: as for this function.
    unsafe {
        let block = row.add(64 * I / F::BLOCK * F::BYTES);
        let codes = match (F::BLOCK, I) {
            (256, _) => F::codes::<L, I>(block, block),
            (128, 1 | 3) => F::codes::<L, 1>(block, block),
            (32, _) if 64 * I + 32 < len => F::codes::<L, 0>(block, block.add(F::BYTES)),
            _ => F::codes::<L, 0>(block, block),
        };
        dot::<L, F>(L::splat_int(0), codes, L::load_bytes(q.add(64 * I).cast()))
    }
}

/// Exchanges rows and columns of the sums of 16 rows, one vector each.
///
/// # Safety
/// As [`Lanes`]; the sums are there, [`PIECE`] / 16 apart.
#[inline(always)]
unsafe fn turn<L: Lanes>(sums: *mut i32) {
    // SAFETY: as for this function.
    unsafe {
        let mut rows = [L::splat4([0; 4].as_ptr()); 16];
        for r in 0..16 {
            rows[r] = L::load_bytes(sums.add(r * PIECE / 16).cast());
        }
        let turned = L::turned(rows);
        for i in 0..16 {
            L::store_bytes(sums.add(i * PIECE / 16).cast(), turned[i]);
        }
    }
}
