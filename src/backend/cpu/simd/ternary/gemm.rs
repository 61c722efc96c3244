//! Product of ternary weights and many rows of int8 activations.
//!
//! A strip of weight rows is unpacked piece by piece into vectors of four codes of 16 rows. A piece stays in
//! L1 while all activation rows are multiplied with it; their sums are kept in memory for the next piece. If
//! the instruction set has tiles, 16 activation rows are multiplied at a time. Otherwise the sums of a block
//! are in registers, and it loads 1 vector of codes per `ROWS` products and 4 bytes of activations per
//! `STRIP_VECTORS` products. While one piece is unpacked, the next one is prefetched.
#![allow(unsafe_code)]

use std::ops::Range;

use half::f16;

use super::super::lanes::{Lanes, array, array_mut};
use super::super::{MAX_BLOCK_ROWS, PIECE_UNITS, SUMMED_ROWS, UNIT, padded};
use super::{Form, Ternary, groups, sum_of_unit};

/// 16 rows of sums, aligned to cache lines.
#[repr(align(64))]
struct TileSums<const N: usize>([[[i32; 16]; N]; 16]);

impl<F: Form> Ternary<'_, '_, F> {
    /// Multiplies all activation rows with `16 N` weight rows, `M` at a time, or `LESS` if that is
    /// sufficient.
    #[inline(always)]
    pub(super) fn gemm<L: Lanes, const M: usize, const LESS: usize, const N: usize>(&mut self, l: L) {
        let (rows, outputs) = (self.tile.rows(), self.tile.cols().len());
        let units = self.product.cols.div_ceil(UNIT);
        // With scales, a piece is a single unit, because its sums are scaled.
        let piece = if F::SCALED { 1 } else { PIECE_UNITS };
        // SAFETY: each piece is unpacked before it is multiplied, and tiles are set up for the rows.
        unsafe {
            for row in rows.clone().step_by(SUMMED_ROWS) {
                let rows = row..rows.end.min(row + SUMMED_ROWS);
                let mut ready_for = rows.len().min(L::TILE_ROWS);
                l.tiles_begin(ready_for);
                for first in (0..outputs).step_by(16 * N) {
                    for unit in (0..units).step_by(piece) {
                        let piece = unit..units.min(unit + piece);
                        self.unpack::<L, N>(l, first, piece.clone());
                        if L::TILE_ROWS > 0 {
                            self.tiles::<L, N>(l, rows.clone(), piece, &mut ready_for);
                        } else {
                            self.blocks::<L, M, LESS, N>(l, rows.clone(), piece);
                        }
                    }
                    self.finish_all::<L, N>(l, rows.clone(), first);
                }
            }
            l.tiles_end();
        }
    }

    /// The sums of the rows: `[rows, 16 N]`, as integers, or as floats if units have scales.
    #[inline(always)]
    fn sums<const N: usize>(&mut self) -> *mut f32 {
        self.scratch.sums[..(SUMMED_ROWS + MAX_BLOCK_ROWS) * 16 * N].as_mut_ptr()
    }

    /// Unpacks some units of `16 N` weight rows: for each four inputs, in the order of the activations, `N`
    /// vectors of four codes of 16 rows. Rows after the last one repeat it.
    ///
    /// # Safety
    /// The rows have the units, at most [`PIECE_UNITS`]; this thread has called `tiles_begin`.
    #[inline(always)]
    unsafe fn unpack<L: Lanes, const N: usize>(&mut self, l: L, first: usize, piece: Range<usize>) {
        let (weights, row_bytes, cols) = (self.product.weights, self.product.row_bytes, self.product.cols);
        let outputs = self.tile.cols().len();
        let row_of = |n: usize, i: usize| (first + 16 * n + i).min(outputs - 1) * row_bytes;
        // The next strip is prefetched in memory order, as much at a time as is unpacked of this one.
        let next = weights.as_ptr().wrapping_add((first + 16 * N) * row_bytes);
        let codes = self.scratch.codes[..PIECE_UNITS * UNIT * 16 * N].as_mut_ptr();
        for n in 0..N {
            let mut rows = [weights.as_ptr(); 16];
            for i in 0..16 {
                rows[i] = weights[row_of(n, i)..][..row_bytes].as_ptr();
            }
            for (at, unit) in piece.clone().enumerate() {
                // SAFETY: each pointer is to a unit of its row, and a unit's codes are 64 times `N` vectors.
                unsafe {
                    let codes = codes.add(at * UNIT * 16 * N);
                    l.tiles_awake();
                    let mut at_unit = rows;
                    for i in 0..16 {
                        at_unit[i] = rows[i].add(unit * F::UNIT_BYTES);
                    }
                    let columns = l.columns(&at_unit, cols - unit * UNIT >= UNIT);
                    for i in 0..16 {
                        // After the loads, which compete for the same few line fill buffers.
                        l.prefetch_far(next.wrapping_add((unit * 16 * N + 16 * n + i) * 64));
                        let four = F::codes(l, columns[i]);
                        for group in 0..4 {
                            l.store_bytes(array_mut(codes.add(((group * 16 + i) * N + n) * 64)), four[group]);
                        }
                    }
                }
            }
        }
        if F::SCALED {
            let scales = &mut self.scratch.floats[..16 * N];
            for (i, scale) in scales.iter_mut().enumerate() {
                let unit = &weights[row_of(0, i) + piece.start * F::UNIT_BYTES..];
                *scale = f16::from_le_bytes([unit[64], unit[65]]).to_f32();
            }
        }
    }

    /// Multiplies the unpacked piece with all rows in tiles. The tiles are set up for `ready_for` rows.
    ///
    /// # Safety
    /// The piece is unpacked, and the tiles are set up.
    #[inline(always)]
    unsafe fn tiles<L: Lanes, const N: usize>(
        &mut self,
        l: L,
        rows: Range<usize>,
        piece: Range<usize>,
        ready_for: &mut usize,
    ) {
        let (codes, sums) = (self.scratch.codes.as_ptr(), self.sums::<N>());
        let (stride, quads) = (padded(self.product.cols), piece.len() * UNIT / 4);
        let mut of_unit = TileSums([[[0; 16]; N]; 16]);
        for row in rows.clone().step_by(L::TILE_ROWS) {
            let n = L::TILE_ROWS.min(rows.end - row);
            // SAFETY: `unpack` has filled `codes`, activation rows are padded, and sums have space.
            unsafe {
                if n != *ready_for {
                    l.tiles_begin(n);
                    *ready_for = n;
                }
                let acts = self.acts.row(row).as_ptr().add(piece.start * UNIT);
                let sums = sums.add((row - rows.start) * 16 * N);
                if F::SCALED {
                    l.tile_sums(codes, acts, stride, quads, false, of_unit.0.as_mut_ptr().cast());
                    for m in 0..n {
                        let mut ints = [l.splat_int(0); N];
                        for i in 0..N {
                            ints[i] = l.load_ints(&of_unit.0[m][i]);
                        }
                        let acts = acts.add(m * stride);
                        self.add_scaled::<L, N>(l, ints, acts, piece.start > 0, sums.add(m * 16 * N));
                    }
                } else {
                    l.tile_sums(codes, acts, stride, quads, piece.start > 0, sums.cast());
                }
            }
        }
    }

    /// Multiplies the unpacked piece with all rows, in blocks whose sums are in registers.
    ///
    /// # Safety
    /// The piece is unpacked.
    #[inline(always)]
    unsafe fn blocks<L: Lanes, const M: usize, const LESS: usize, const N: usize>(
        &mut self,
        l: L,
        rows: Range<usize>,
        piece: Range<usize>,
    ) {
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: the caller has unpacked the piece.
            unsafe {
                if rows.end - row <= LESS {
                    self.block::<L, LESS, N>(l, rows.clone(), row, piece.clone());
                    row += LESS;
                } else {
                    self.block::<L, M, N>(l, rows.clone(), row, piece.clone());
                    row += M;
                }
            }
        }
    }

    /// Multiplies the unpacked piece with `M` activation rows; rows after the last one repeat it.
    ///
    /// # Safety
    /// The piece is unpacked, and `M` rows have sums.
    #[inline(always)]
    unsafe fn block<L: Lanes, const M: usize, const N: usize>(
        &mut self,
        l: L,
        rows: Range<usize>,
        row: usize,
        piece: Range<usize>,
    ) {
        let (codes, sums) = (self.scratch.codes.as_ptr(), self.sums::<N>());
        // SAFETY: `unpack` has filled `codes`, every activation row is padded, and there is space for the
        // sums of a block after the last row.
        unsafe {
            let start = piece.start * UNIT;
            let acts: [*const i8; M] =
                std::array::from_fn(|m| self.acts.row((row + m).min(rows.end - 1)).as_ptr().add(start));
            let sums = sums.add((row - rows.start) * 16 * N);
            let go_on = piece.start > 0;
            let mut acc = [[l.splat_int(0); N]; M];
            if !F::SCALED && go_on {
                for m in 0..M {
                    for n in 0..N {
                        acc[m][n] = l.load_ints(array(sums.add(16 * (m * N + n)).cast()));
                    }
                }
            }
            let acc = quads::<L, M, N>(l, acc, codes, acts, piece.len() * UNIT / 4);
            for m in 0..M {
                if F::SCALED {
                    self.add_scaled::<L, N>(l, acc[m], acts[m], go_on, sums.add(16 * m * N));
                    continue;
                }
                for n in 0..N {
                    l.store_ints(array_mut(sums.add(16 * (m * N + n)).cast()), acc[m][n]);
                }
            }
        }
    }

    /// Adds the scaled sums of one row in a unit to those of the units before, if any.
    ///
    /// # Safety
    /// The pointers are to a unit of activations and `16 N` sums.
    #[inline(always)]
    unsafe fn add_scaled<L: Lanes, const N: usize>(
        &self,
        l: L,
        ints: [L::Ints; N],
        acts: *const i8,
        go_on: bool,
        sums: *mut f32,
    ) {
        let scales = &self.scratch.floats[..16 * N];
        // SAFETY: the caller ensures the activations and the sums, and `unpack` has written a scale for each.
        unsafe {
            let all = l.splat_int(-sum_of_unit(l, acts));
            for n in 0..N {
                let before = if go_on { l.load(array(sums.add(16 * n))) } else { l.splat(0.0) };
                let sum = l.to_floats(l.add_ints(ints[n], all));
                let scaled = l.mul(l.load(array(scales[16 * n..].as_ptr())), sum);
                l.store(array_mut(sums.add(16 * n)), l.add(before, scaled));
            }
        }
    }

    /// Finishes `16 N` outputs of all rows.
    ///
    /// # Safety
    /// `rows` has at most [`SUMMED_ROWS`] rows.
    #[inline(always)]
    unsafe fn finish_all<L: Lanes, const N: usize>(&mut self, l: L, rows: Range<usize>, first: usize) {
        let sums = self.sums::<N>();
        for row in rows.clone() {
            // SAFETY: every row has its sums.
            unsafe {
                let sums = sums.add((row - rows.start) * 16 * N);
                let mut values = [l.splat(0.0); N];
                if F::SCALED {
                    for n in 0..N {
                        values[n] = l.load(array(sums.add(16 * n)));
                    }
                } else {
                    let mut ints = [l.splat_int(0); N];
                    for n in 0..N {
                        ints[n] = l.load_ints(array(sums.add(16 * n).cast()));
                    }
                    values = self.of_sums::<L, N>(l, ints, row);
                }
                self.finish::<L, N>(l, values, row, first);
            }
        }
    }
}

/// Adds products of unpacked codes with activations, over `quads` times four inputs (a multiple of 4).
///
/// # Safety
/// The pointers are to `quads` times `N` vectors and `quads` times 4 activations.
#[inline(always)]
unsafe fn quads<L: Lanes, const M: usize, const N: usize>(
    l: L,
    mut acc: [[L::Ints; N]; M],
    codes: *const u8,
    acts: [*const i8; M],
    quads: usize,
) -> [[L::Ints; N]; M] {
    // SAFETY: the caller ensures these vectors and activations.
    unsafe {
        for quad in (0..quads).step_by(4) {
            if N == 1 {
                let codes = groups(l, codes.add(quad * 64).cast());
                for m in 0..M {
                    let p = acts[m].add(4 * quad);
                    let acts = [
                        l.splat4(array(p)),
                        l.splat4(array(p.add(4))),
                        l.splat4(array(p.add(8))),
                        l.splat4(array(p.add(12))),
                    ];
                    acc[m][0] = l.dot4(acc[m][0], codes, acts);
                }
                continue;
            }
            let mut p = codes.add(quad * N * 64);
            for i in 0..4 {
                let mut vectors = [l.splat4(&[0; 4]); N];
                for n in 0..N {
                    vectors[n] = l.load_bytes(array(p.add(n * 64)));
                }
                p = p.add(N * 64);
                for m in 0..M {
                    let acts = l.splat4(array(acts[m].add(4 * (quad + i))));
                    for n in 0..N {
                        acc[m][n] = l.dot(acc[m][n], vectors[n], acts);
                    }
                }
            }
        }
        acc
    }
}
