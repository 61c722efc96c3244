//! Ternary weights times int8 activations.
//!
//! `sum((code - 1) q) = sum(code q) - sum(q)`: the codes 0 to 2 are the unsigned side of a product of bytes, and
//! the sum over the activations is known. Sums are 32-bit integers, exact for rows of up to 2^23 inputs.
//!
//! Few rows of activations: each 64 bytes of weights are shifted four times into 4 x 64 codes, and these are
//! multiplied as they are; the weights are read once, at the speed of memory. Many rows: a strip of weight rows
//! is unpacked once, four codes of 16 rows a vector, and stays in the cache while blocks of activation rows pass
//! over it; a block's sums live in registers. It reads 1 vector of codes a `ROWS` products, 4 bytes of activations
//! a `STRIP_VECTORS` products.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use half::f16;

use super::lanes::{Kernel, Lanes};
use super::{I8Rows, MANY_ROWS, Product, Scratch, Tile, UNIT, padded};

/// How a ternary type keeps 256 weights.
pub trait Form {
    /// Bytes of 256 weights.
    const UNIT_BYTES: usize;
    /// Whether the 64 bytes of codes are followed by an f16 scale.
    const SCALED: bool;
    /// Whether group 0 stands in the high bits of a byte, rather than the low ones.
    const HIGH_FIRST: bool;

    /// What belongs to groups 0 to 3, in the order of the bits; or the other way round.
    #[inline(always)]
    fn order<T>(four: [T; 4]) -> [T; 4] {
        let [a, b, c, d] = four;
        if Self::HIGH_FIRST { [d, c, b, a] } else { [a, b, c, d] }
    }

    /// The codes of groups 0 to 3 of 64 bytes.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn codes<L: Lanes>(bytes: L::Bytes) -> [L::Bytes; 4] {
        // SAFETY: as for this function.
        Self::order(unsafe {
            [L::codes::<0>(bytes), L::codes::<2>(bytes), L::codes::<4>(bytes), L::codes::<6>(bytes)]
        })
    }
}

/// Group 0 in the high bits; the scale is the tensor's. A row may end with half a unit.
pub struct I2S;

impl Form for I2S {
    const UNIT_BYTES: usize = 64;
    const SCALED: bool = false;
    const HIGH_FIRST: bool = true;
}

/// Group 0 in the low bits, and a scale every 256 weights.
pub struct Tq2_0;

impl Form for Tq2_0 {
    const UNIT_BYTES: usize = 66;
    const SCALED: bool = true;
    const HIGH_FIRST: bool = false;
}

/// Weight rows that are multiplied at once where there are few activation rows.
const TOGETHER: usize = 4;

/// How far ahead of the weights the cache is asked for, in bytes.
const AHEAD: usize = 4096;

/// The kernel of one tile.
pub struct Ternary<'a, 'b, F> {
    product: &'a Product<'a>,
    acts: I8Rows<'a>,
    scratch: &'a mut Scratch,
    tile: &'a mut Tile<'b, f32>,
    form: PhantomData<F>,
}

impl<'a, 'b, F: Form> Ternary<'a, 'b, F> {
    /// Checks that everything fits.
    ///
    /// # Panics
    /// Where it does not.
    pub fn new(
        product: &'a Product<'a>,
        acts: I8Rows<'a>,
        scratch: &'a mut Scratch,
        tile: &'a mut Tile<'b, f32>,
    ) -> Self {
        let (cols, outputs) = (product.cols, tile.cols().len());
        assert!(cols.is_multiple_of(if F::SCALED { UNIT } else { UNIT / 2 }), "{cols} inputs");
        assert!(cols <= 1 << 23 && cols == acts.cols, "{cols} inputs, {} activations", acts.cols);
        let unit = if F::SCALED { 0 } else { cols % UNIT / 4 };
        assert_eq!(product.row_bytes, cols / UNIT * F::UNIT_BYTES + unit, "bytes of {cols} weights");
        assert_eq!(product.weights.len(), outputs * product.row_bytes, "bytes of {outputs} rows");
        assert!(product.bias.is_none_or(|bias| bias.len() == outputs), "a bias for {outputs} outputs");
        assert!(tile.rows().end * padded(cols) <= acts.q.len() && tile.rows().end <= acts.quant.len());
        Self { product, acts, scratch, tile, form: PhantomData }
    }
}

impl<F: Form> Kernel for Ternary<'_, '_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let rows = self.tile.rows();
        // SAFETY: as for this function; `new` checked every length.
        unsafe {
            if rows.len() >= MANY_ROWS {
                return match (L::ROWS, L::STRIP_VECTORS) {
                    (8, 3) => self.many::<L, 8, 4, 3>(),
                    _ => self.many::<L, 4, 2, 1>(),
                };
            }
            let mut row = rows.start;
            while row < rows.end {
                match rows.end - row {
                    1 => self.few::<L, 1>(row),
                    2 => self.few::<L, 2>(row),
                    3 => self.few::<L, 3>(row),
                    _ => self.few::<L, 4>(row),
                }
                row += 4;
            }
        }
    }
}

impl<F: Form> Ternary<'_, '_, F> {
    /// Multiplies `T` activation rows.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn few<L: Lanes, const T: usize>(&mut self, first_row: usize) {
        let acts: [*const i8; T] = std::array::from_fn(|t| self.acts.row(first_row + t).as_ptr());
        let outputs = self.tile.cols().len();
        for first in (0..outputs).step_by(16) {
            let n = (outputs - first).min(16);
            let mut sums = [[0; 16]; T];
            let mut values = [[0.0; 16]; T];
            for some in (0..n).step_by(TOGETHER) {
                // Rows beyond the last one repeat it; what comes out of them is not looked at.
                let weights: [*const u8; TOGETHER] = std::array::from_fn(|r| {
                    let row = (first + some + r).min(outputs - 1);
                    self.product.weights[row * self.product.row_bytes..].as_ptr()
                });
                // SAFETY: as for this function; every pointer has a whole row behind it.
                unsafe {
                    if T == 1 && !F::SCALED {
                        one_row::<L, F>(
                            weights,
                            acts[0],
                            self.product.cols,
                            &mut sums[0][some..][..TOGETHER],
                        );
                        continue;
                    }
                    let place = some..some + TOGETHER;
                    let sums = sums.each_mut().map(|sums| &mut sums[place.clone()]);
                    let values = values.each_mut().map(|values| &mut values[place.clone()]);
                    dots::<L, F, T>(weights, acts, self.product.cols, sums, values);
                }
            }
            for t in 0..T {
                // SAFETY: as for this function.
                unsafe {
                    let value = if F::SCALED {
                        [L::load(values[t].as_ptr())]
                    } else {
                        self.of_sums::<L, 1>([L::load_ints(sums[t].as_ptr())], first_row + t)
                    };
                    self.finish::<L, 1>(value, first_row + t, first);
                }
            }
        }
    }

    /// Multiplies all activation rows, `M` at a time (`LESS` where that is enough) with `16 N` weight rows.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn many<L: Lanes, const M: usize, const LESS: usize, const N: usize>(&mut self) {
        let (rows, outputs) = (self.tile.rows(), self.tile.cols().len());
        for first in (0..outputs).step_by(16 * N) {
            // SAFETY: as for this function.
            unsafe {
                self.unpack::<L, N>(first);
                let mut row = rows.start;
                while row < rows.end {
                    if rows.end - row <= LESS {
                        self.block::<L, LESS, N>(first, row);
                        row += LESS;
                    } else {
                        self.block::<L, M, N>(first, row);
                        row += M;
                    }
                }
            }
        }
    }

    /// Unpacks `16 N` weight rows: for each four inputs, in the order of the activations, `N` vectors of four
    /// codes of 16 rows. Rows beyond the last one repeat it.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn unpack<L: Lanes, const N: usize>(&mut self, first: usize) {
        let Product { weights, row_bytes, cols, .. } = *self.product;
        let outputs = self.tile.cols().len();
        let start = self.scratch.codes.as_ptr().align_offset(64);
        let codes = &mut self.scratch.codes[start..][..padded(cols) * 16 * N];
        let row_of = |n: usize, i: usize| (first + 16 * n + i).min(outputs - 1);
        for n in 0..N {
            let rows: [&[u8]; 16] =
                std::array::from_fn(|i| &weights[row_of(n, i) * row_bytes..][..row_bytes]);
            for (unit, codes) in codes.chunks_exact_mut(UNIT * 16 * N).enumerate() {
                let rows = rows.map(|row| row[unit * F::UNIT_BYTES..].as_ptr());
                // SAFETY: as for this function; a unit of each row lies behind its pointer, and a unit's codes are
                // 64 times `N` vectors.
                unsafe {
                    let columns = L::columns(&rows, cols - unit * UNIT >= UNIT);
                    for i in 0..16 {
                        let four = F::codes::<L>(columns[i]);
                        for group in 0..4 {
                            let place = ((group * 16 + i) * N + n) * 64;
                            L::store_bytes(codes.as_mut_ptr().add(place), four[group]);
                        }
                    }
                }
            }
        }
        if F::SCALED {
            let scales = self.scratch.floats.chunks_exact_mut(16 * N);
            for (unit, scales) in scales.take(cols / UNIT).enumerate() {
                for (i, scale) in scales.iter_mut().enumerate() {
                    let unit = &weights[row_of(0, i) * row_bytes + unit * F::UNIT_BYTES..];
                    *scale = f16::from_le_bytes([unit[64], unit[65]]).to_f32();
                }
            }
        }
    }

    /// Multiplies the unpacked strip with `M` activation rows.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn block<L: Lanes, const M: usize, const N: usize>(&mut self, first: usize, first_row: usize) {
        let rows = self.tile.rows();
        let acts: [*const i8; M] =
            std::array::from_fn(|m| self.acts.row((first_row + m).min(rows.end - 1)).as_ptr());
        let start = self.scratch.codes.as_ptr().align_offset(64);
        let codes = self.scratch.codes[start..][..padded(self.product.cols) * 16 * N].as_ptr();
        // SAFETY: as for this function; `unpack` filled `codes`, and every activation row is padded.
        unsafe {
            let rows = M.min(rows.end - first_row);
            if F::SCALED {
                let mut values = [[L::splat(0.0); N]; M];
                for unit in 0..self.product.cols / UNIT {
                    let codes = codes.add(unit * UNIT * 16 * N);
                    let acts = acts.map(|acts| acts.add(unit * UNIT));
                    let sums = quads::<L, M, N>(codes, acts, UNIT / 4);
                    let scales = self.scratch.floats[unit * 16 * N..][..16 * N].as_ptr();
                    for m in 0..M {
                        let all = L::splat_int(-sum_of_unit::<L>(acts[m]));
                        for n in 0..N {
                            let sum = L::to_floats(L::add_ints(sums[m][n], all));
                            values[m][n] = L::add(values[m][n], L::mul(L::load(scales.add(16 * n)), sum));
                        }
                    }
                }
                for m in 0..rows {
                    self.finish::<L, N>(values[m], first_row + m, first);
                }
            } else {
                let sums = quads::<L, M, N>(codes, acts, padded(self.product.cols) / 4);
                for m in 0..rows {
                    let values = self.of_sums::<L, N>(sums[m], first_row + m);
                    self.finish::<L, N>(values, first_row + m, first);
                }
            }
        }
    }

    /// The products of weights without scales of their own, but for the division by the activations' scale.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn of_sums<L: Lanes, const N: usize>(&self, sums: [L::Ints; N], row: usize) -> [L::Floats; N] {
        // SAFETY: as for this function.
        unsafe {
            let all = L::splat_int(-self.acts.quant[row].sum);
            let mut values = [L::splat(0.0); N];
            for n in 0..N {
                values[n] = L::to_floats(L::add_ints(sums[n], all));
            }
            values
        }
    }

    /// Divides by the activations' scale, applies what the layer has, and writes `16 N` outputs, or those that there
    /// are.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn finish<L: Lanes, const N: usize>(&mut self, values: [L::Floats; N], row: usize, first: usize) {
        let product = self.product;
        let out = &mut self.tile.row_mut(row)[first..];
        // SAFETY: as for this function; full vectors go where 16 outputs are.
        unsafe {
            let by = Divisor::<L>::new(self.acts.quant[row].scale);
            for n in 0..N {
                let mut value = by.divide(values[n]);
                if !F::SCALED {
                    value = L::mul(value, L::splat(product.tensor_scale));
                }
                if out.len() < 16 * (n + 1) {
                    let mut values = [0.0; 16];
                    L::store(values.as_mut_ptr(), value);
                    for (i, (out, value)) in out.iter_mut().skip(16 * n).zip(values).enumerate() {
                        product.finish(out, first + 16 * n + i, value);
                    }
                    return;
                }
                value = L::mul(value, L::splat(product.factor));
                if let Some(bias) = product.bias {
                    value = L::add(value, L::load(bias[first + 16 * n..][..16].as_ptr()));
                }
                let out = out.as_mut_ptr().add(16 * n);
                if product.add {
                    value = L::add(L::load(out), value);
                }
                L::store(out, value);
            }
        }
    }
}

/// What values are divided by, correctly rounded: a quotient from the reciprocal, mended twice by its exact
/// remainder (Markstein). The divider takes 24 cycles for 16 quotients, this takes 3. The divisor is a scale of
/// [`RowQuant`](super::RowQuant): far from where anything could overflow, or 0, where the result is NaN as it should be
/// for 0.
struct Divisor<L: Lanes> {
    divisor: L::Floats,
    reciprocal: L::Floats,
}

impl<L: Lanes> Divisor<L> {
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn new(divisor: f32) -> Self {
        // SAFETY: as for this function.
        unsafe { Self { divisor: L::splat(divisor), reciprocal: L::splat(1.0 / divisor) } }
    }

    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn divide(&self, x: L::Floats) -> L::Floats {
        let Self { divisor, reciprocal } = *self;
        // SAFETY: as for this function.
        unsafe {
            let near = L::mul(x, reciprocal);
            let nearer = L::fma(L::fnma(near, divisor, x), reciprocal, near);
            L::fma(L::fnma(nearer, divisor, x), reciprocal, nearer)
        }
    }
}

/// Sums of products of [`TOGETHER`] weight rows without scales of their own with one activation row: the kernel of
/// single-token steps.
///
/// # Safety
/// As [`Lanes`]; each pointer has a row of `cols` behind it.
#[inline(always)]
unsafe fn one_row<L: Lanes, F: Form>(
    weights: [*const u8; TOGETHER],
    acts: *const i8,
    cols: usize,
    sums: &mut [i32],
) {
    // SAFETY: as for this function: a row has `cols / UNIT` units and perhaps half a one.
    unsafe {
        let mut acc = [L::no_sums(); TOGETHER];
        for unit in 0..cols / UNIT {
            let acts = F::order(groups::<L>(acts.add(unit * UNIT)));
            for r in 0..TOGETHER {
                let p = weights[r].add(unit * F::UNIT_BYTES);
                L::prefetch(p.wrapping_add(AHEAD));
                acc[r] = L::dot_packed(acc[r], L::load_bytes(p), acts);
            }
        }
        if !cols.is_multiple_of(UNIT) {
            let unit = cols / UNIT;
            let acts = F::order(groups::<L>(acts.add(unit * UNIT)));
            for r in 0..TOGETHER {
                let p = weights[r].add(unit * F::UNIT_BYTES);
                acc[r] = L::dot_packed(acc[r], L::load_half(p), acts);
            }
        }
        for r in 0..TOGETHER {
            sums[r] = L::total(acc[r]);
        }
    }
}

/// Sums of products of [`TOGETHER`] weight rows with `T` activation rows: integers into `sums` where the weights
/// have no scales of their own, else scaled ones into `values`.
///
/// # Safety
/// As [`Lanes`]; each pointer has a row of `cols` behind it.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Form, const T: usize>(
    weights: [*const u8; TOGETHER],
    acts: [*const i8; T],
    cols: usize,
    sums: [&mut [i32]; T],
    values: [&mut [f32]; T],
) {
    // SAFETY: as for this function: a row has `cols / UNIT` units and perhaps half a one.
    unsafe {
        let mut acc = [[L::splat_int(0); TOGETHER]; T];
        for unit in 0..cols.div_ceil(UNIT) {
            let acts = acts.map(|acts| acts.add(unit * UNIT));
            let whole = F::SCALED || cols - unit * UNIT >= UNIT;
            for r in 0..TOGETHER {
                let p = weights[r].add(unit * F::UNIT_BYTES);
                L::prefetch(p.wrapping_add(AHEAD));
                let codes = F::codes::<L>(if whole { L::load_bytes(p) } else { L::load_half(p) });
                for t in 0..T {
                    acc[t][r] = L::dot4(acc[t][r], codes, groups::<L>(acts[t]));
                }
            }
            if F::SCALED {
                for t in 0..T {
                    let all = sum_of_unit::<L>(acts[t]);
                    for r in 0..TOGETHER {
                        let scale = weights[r].add(unit * F::UNIT_BYTES + 64).cast::<[u8; 2]>();
                        let scale = f16::from_le_bytes(scale.read()).to_f32();
                        values[t][r] += scale * (L::sum_ints(acc[t][r]) - all) as f32;
                        acc[t][r] = L::splat_int(0);
                    }
                }
            }
        }
        if !F::SCALED {
            for t in 0..T {
                for r in 0..TOGETHER {
                    sums[t][r] = L::sum_ints(acc[t][r]);
                }
            }
        }
    }
}

/// Four vectors: the groups of a unit of activations.
///
/// # Safety
/// As [`Lanes`]; 256 bytes lie behind the pointer.
#[inline(always)]
unsafe fn groups<L: Lanes>(acts: *const i8) -> [L::Bytes; 4] {
    // SAFETY: as for this function.
    unsafe {
        let p: *const u8 = acts.cast();
        [L::load_bytes(p), L::load_bytes(p.add(64)), L::load_bytes(p.add(128)), L::load_bytes(p.add(192))]
    }
}

/// Sum of a unit of activations.
///
/// # Safety
/// As [`groups`].
#[inline(always)]
unsafe fn sum_of_unit<L: Lanes>(acts: *const i8) -> i32 {
    // SAFETY: as for this function.
    unsafe {
        let ones = L::splat4([1; 4].as_ptr());
        L::sum_ints(L::dot4(L::splat_int(0), [ones; 4], groups::<L>(acts)))
    }
}

/// Sums of products of unpacked codes with activations, over `quads` times four inputs (a multiple of 4).
///
/// # Safety
/// As [`Lanes`]; `quads` times `N` vectors and `quads` times 4 activations lie behind the pointers.
#[inline(always)]
unsafe fn quads<L: Lanes, const M: usize, const N: usize>(
    codes: *const u8,
    acts: [*const i8; M],
    quads: usize,
) -> [[L::Ints; N]; M] {
    // SAFETY: as for this function.
    unsafe {
        let mut acc = [[L::splat_int(0); N]; M];
        for quad in (0..quads).step_by(4) {
            if N == 1 {
                let codes = groups::<L>(codes.add(quad * 64).cast());
                for m in 0..M {
                    let p = acts[m].add(4 * quad);
                    let acts = [L::splat4(p), L::splat4(p.add(4)), L::splat4(p.add(8)), L::splat4(p.add(12))];
                    acc[m][0] = L::dot4(acc[m][0], codes, acts);
                }
                continue;
            }
            let mut p = codes.add(quad * N * 64);
            for i in 0..4 {
                let mut vectors = [L::splat4([0; 4].as_ptr()); N];
                for n in 0..N {
                    vectors[n] = L::load_bytes(p.add(n * 64));
                }
                p = p.add(N * 64);
                for m in 0..M {
                    let acts = L::splat4(acts[m].add(4 * (quad + i)));
                    for n in 0..N {
                        acc[m][n] = L::dot(acc[m][n], vectors[n], acts);
                    }
                }
            }
        }
        acc
    }
}
