//! Product of ternary weights and int8 activations.
//!
//! `sum((code - 1) q) = sum(code q) - sum(q)`: the codes 0 to 2 are the unsigned operand of a byte product,
//! and the sum of the activations is known. Sums are 32-bit integers, exact for rows of up to 2^23 inputs.
//!
//! Few rows of activations: each 64 bytes of weights are shifted four times into 4 x 64 codes, which are
//! multiplied directly; the weights are read once, at the speed of memory. Many rows: `gemm.rs`.
#![allow(unsafe_code)]

mod gemm;
pub mod rows;
pub mod trits;

use std::marker::PhantomData;

use half::f16;

use super::lanes::{Kernel, Lanes, array, array_mut};
use super::{I8Rows, MANY_ROWS, Product, Scratch, Tile, UNIT, padded};

/// Storage format of 256 ternary weights.
pub trait Form {
    /// Bytes of 256 weights.
    const UNIT_BYTES: usize;
    /// True if the 64 bytes of codes are followed by an f16 scale.
    const SCALED: bool;
    /// True if group 0 is in the high bits of a byte rather than in the low ones.
    const HIGH_FIRST: bool;

    /// Converts between group order and bit order.
    #[inline(always)]
    fn order<T>(four: [T; 4]) -> [T; 4] {
        let [a, b, c, d] = four;
        if Self::HIGH_FIRST { [d, c, b, a] } else { [a, b, c, d] }
    }

    /// The codes of groups 0 to 3 in 64 bytes.
    #[inline(always)]
    fn codes<L: Lanes>(l: L, bytes: L::Bytes) -> [L::Bytes; 4] {
        Self::order([l.codes::<0>(bytes), l.codes::<2>(bytes), l.codes::<4>(bytes), l.codes::<6>(bytes)])
    }
}

/// Group 0 is in the high bits. There is one scale per tensor, or one per row that is stored elsewhere. A row
/// may end with half a unit.
pub struct I2S;

impl Form for I2S {
    const UNIT_BYTES: usize = 64;
    const SCALED: bool = false;
    const HIGH_FIRST: bool = true;
}

/// Group 0 is in the low bits, with one scale per 256 weights.
pub struct Tq2_0;

impl Form for Tq2_0 {
    const UNIT_BYTES: usize = 66;
    const SCALED: bool = true;
    const HIGH_FIRST: bool = false;
}

/// Weight rows that are multiplied together with up to four activation rows.
const TOGETHER: usize = 4;

/// Prefetch distance in bytes.
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
    /// Checks that the arguments match.
    ///
    /// # Panics
    /// If they do not match.
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
    fn run<L: Lanes>(mut self, l: L) {
        let rows = self.tile.rows();
        if rows.len() > L::FEW_ROWS.max(MANY_ROWS - 1) {
            return match (L::ROWS, L::STRIP_VECTORS) {
                (8, 3) => self.gemm::<L, 8, 4, 3>(l),
                _ => self.gemm::<L, 4, 2, 1>(l),
            };
        }
        if L::TILE_ROWS > 0 {
            return L::Few::vectorize(self);
        }
        let mut row = rows.start;
        while row < rows.end {
            row += match rows.end - row {
                1 => self.few::<L, 1, TOGETHER>(l, row),
                2 if !L::IS_FETCHED => self.few::<L, 2, TOGETHER>(l, row),
                3 if !L::IS_FETCHED => self.few::<L, 3, TOGETHER>(l, row),
                5.. if L::FEW_ROWS == 8 => self.few::<L, 8, 2>(l, row),
                _ => self.few::<L, 4, TOGETHER>(l, row),
            };
        }
    }
}

impl<F: Form> Ternary<'_, '_, F> {
    /// Multiplies up to `T` activation rows, `R` weight rows at a time. Returns `T`.
    #[inline(always)]
    fn few<L: Lanes, const T: usize, const R: usize>(&mut self, l: L, first_row: usize) -> usize {
        let end = self.tile.rows().end;
        let acts: [*const i8; T] =
            std::array::from_fn(|t| self.acts.row((first_row + t).min(end - 1)).as_ptr());
        let outputs = self.tile.cols().len();
        for first in (0..outputs).step_by(16) {
            let n = (outputs - first).min(16);
            let mut sums = [[0; 16]; T];
            let mut values = [[0.0; 16]; T];
            for some in (0..n).step_by(R) {
                // Rows after the last one repeat it; their results are ignored.
                let weights: [*const u8; R] = std::array::from_fn(|r| {
                    let row = (first + some + r).min(outputs - 1);
                    self.product.weights[row * self.product.row_bytes..].as_ptr()
                });
                // SAFETY: every pointer is to a whole row.
                unsafe {
                    if T == 1 && !F::SCALED {
                        one_row::<L, F, R>(l, weights, acts[0], self.product.cols, &mut sums[0][some..][..R]);
                        continue;
                    }
                    let place = some..some + R;
                    let sums = sums.each_mut().map(|sums| &mut sums[place.clone()]);
                    let values = values.each_mut().map(|values| &mut values[place.clone()]);
                    dots::<L, F, T, R>(l, weights, acts, self.product.cols, sums, values);
                }
            }
            for t in 0..T.min(end - first_row) {
                let value = if F::SCALED {
                    [l.load(&values[t])]
                } else {
                    self.of_sums::<L, 1>(l, [l.load_ints(&sums[t])], first_row + t)
                };
                self.finish::<L, 1>(l, value, first_row + t, first);
            }
        }
        T
    }

    /// Products of weights without scales per unit, before the division by the activations' scale.
    #[inline(always)]
    fn of_sums<L: Lanes, const N: usize>(&self, l: L, sums: [L::Ints; N], row: usize) -> [L::Floats; N] {
        let all = l.splat_int(-self.acts.quant[row].sum);
        let mut values = [l.splat(0.0); N];
        for n in 0..N {
            values[n] = l.to_floats(l.add_ints(sums[n], all));
        }
        values
    }

    /// Divides by the activations' scale, applies the layer's factor and bias, and writes up to `16 N`
    /// outputs.
    #[inline(always)]
    fn finish<L: Lanes, const N: usize>(&mut self, l: L, values: [L::Floats; N], row: usize, first: usize) {
        let product = self.product;
        let out = &mut self.tile.row_mut(row)[first..];
        // SAFETY: full vectors are only written where 16 outputs remain.
        unsafe {
            let by = Divisor::new(l, self.acts.quant[row].scale);
            for n in 0..N {
                let mut value = by.divide(l, values[n]);
                if !F::SCALED {
                    let scale = match product.row_scales {
                        Some(scales) => l.load(array(scales[first + 16 * n..][..16].as_ptr())),
                        None => l.splat(product.tensor_scale),
                    };
                    value = l.mul(value, scale);
                }
                if out.len() < 16 * (n + 1) {
                    let mut values = [0.0; 16];
                    l.store(&mut values, value);
                    for (i, (out, value)) in out.iter_mut().skip(16 * n).zip(values).enumerate() {
                        product.finish(out, first + 16 * n + i, value);
                    }
                    return;
                }
                value = l.mul(value, l.splat(product.factor));
                if let Some(bias) = product.bias {
                    value = l.add(value, l.load(array(bias[first + 16 * n..][..16].as_ptr())));
                }
                let out = out.as_mut_ptr().add(16 * n);
                if product.add {
                    value = l.add(l.load(array(out)), value);
                }
                l.store(array_mut(out), value);
            }
        }
    }
}

/// Divisor of a correctly rounded division. It is a scale of [`RowQuant`](super::RowQuant): either in a range
/// in which nothing overflows, or 0, which gives NaN as intended.
struct Divisor<L: Lanes> {
    divisor: L::Floats,
    reciprocal: L::Floats,
}

impl<L: Lanes> Divisor<L> {
    #[inline(always)]
    fn new(l: L, divisor: f32) -> Self {
        Self { divisor: l.splat(divisor), reciprocal: l.splat(1.0 / divisor) }
    }

    #[inline(always)]
    fn divide(&self, l: L, x: L::Floats) -> L::Floats {
        let Self { divisor, reciprocal } = *self;
        l.divide(x, divisor, reciprocal)
    }
}

/// Sums of products of `R` weight rows without scales per unit with one activation row: the kernel for
/// single-token steps.
///
/// # Safety
/// Each pointer is to a row of `cols` elements.
#[inline(always)]
unsafe fn one_row<L: Lanes, F: Form, const R: usize>(
    l: L,
    weights: [*const u8; R],
    acts: *const i8,
    cols: usize,
    sums: &mut [i32],
) {
    // SAFETY: a row has `cols / UNIT` units and possibly half a unit; rows of activations are padded.
    unsafe {
        let mut acc = [l.no_sums(); R];
        for unit in 0..cols / UNIT {
            let acts = F::order(groups(l, acts.add(unit * UNIT)));
            for r in 0..R {
                let p = weights[r].add(unit * F::UNIT_BYTES);
                l.prefetch(p.wrapping_add(AHEAD));
                acc[r] = l.dot_packed(acc[r], l.load_bytes(array(p)), acts);
            }
        }
        if !cols.is_multiple_of(UNIT) {
            let unit = cols / UNIT;
            let acts = F::order(groups(l, acts.add(unit * UNIT)));
            for r in 0..R {
                let p = weights[r].add(unit * F::UNIT_BYTES);
                acc[r] = l.dot_packed(acc[r], l.load_half(array(p)), acts);
            }
        }
        for r in 0..R {
            sums[r] = l.total(acc[r]);
        }
    }
}

/// Sums of products of `R` weight rows with `T` activation rows: integers in `sums` if the weights have no
/// scales per unit, otherwise scaled sums in `values`.
///
/// # Safety
/// Each pointer is to a row of `cols` elements.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Form, const T: usize, const R: usize>(
    l: L,
    weights: [*const u8; R],
    acts: [*const i8; T],
    cols: usize,
    sums: [&mut [i32]; T],
    values: [&mut [f32]; T],
) {
    // SAFETY: a row has `cols / UNIT` units and possibly half a unit; rows of activations are padded.
    unsafe {
        let mut acc = [[l.splat_int(0); R]; T];
        for unit in 0..cols.div_ceil(UNIT) {
            let acts = acts.map(|acts| acts.add(unit * UNIT));
            let whole = F::SCALED || cols - unit * UNIT >= UNIT;
            if T == 8 {
                // Each vector of activations is loaded once for all weight rows: registers are too few to
                // keep all.
                let mut codes = [[l.splat4(&[0; 4]); 4]; R];
                for r in 0..R {
                    let p = weights[r].add(unit * F::UNIT_BYTES);
                    l.prefetch(p.wrapping_add(AHEAD));
                    codes[r] =
                        F::codes(l, if whole { l.load_bytes(array(p)) } else { l.load_half(array(p)) });
                }
                for group in 0..4 {
                    for t in 0..T {
                        let x = l.load_bytes(array(acts[t].add(64 * group).cast()));
                        for r in 0..R {
                            acc[t][r] = l.dot(acc[t][r], codes[r][group], x);
                        }
                    }
                }
            }
            for r in 0..if T == 8 { 0 } else { R } {
                let p = weights[r].add(unit * F::UNIT_BYTES);
                l.prefetch(p.wrapping_add(AHEAD));
                let codes = F::codes(l, if whole { l.load_bytes(array(p)) } else { l.load_half(array(p)) });
                for t in 0..T {
                    acc[t][r] = l.dot4(acc[t][r], codes, groups(l, acts[t]));
                }
            }
            if F::SCALED {
                for t in 0..T {
                    let all = sum_of_unit(l, acts[t]);
                    for r in 0..R {
                        let scale = weights[r].add(unit * F::UNIT_BYTES + 64).cast::<[u8; 2]>();
                        let scale = f16::from_le_bytes(scale.read()).to_f32();
                        values[t][r] += scale * (l.sum_ints(acc[t][r]) - all) as f32;
                        acc[t][r] = l.splat_int(0);
                    }
                }
            }
        }
        if !F::SCALED && T * R == 16 {
            let mut vectors = [l.splat_int(0); 16];
            for i in 0..16 {
                vectors[i] = acc[i / R][i % R];
            }
            let mut all = [0; 16];
            l.store_ints(&mut all, l.sum_ints_each(&vectors));
            for t in 0..T {
                sums[t].copy_from_slice(&all[t * R..][..R]);
            }
        } else if !F::SCALED {
            for t in 0..T {
                for r in 0..R {
                    sums[t][r] = l.sum_ints(acc[t][r]);
                }
            }
        }
    }
}

/// The groups of a unit of activations, as four vectors.
///
/// # Safety
/// The pointer is valid for reads of 256 bytes.
#[inline(always)]
unsafe fn groups<L: Lanes>(l: L, acts: *const i8) -> [L::Bytes; 4] {
    // SAFETY: the caller ensures 256 bytes.
    unsafe {
        let p: *const u8 = acts.cast();
        [
            l.load_bytes(array(p)),
            l.load_bytes(array(p.add(64))),
            l.load_bytes(array(p.add(128))),
            l.load_bytes(array(p.add(192))),
        ]
    }
}

/// Sum of a unit of activations.
///
/// # Safety
/// As [`groups`].
#[inline(always)]
unsafe fn sum_of_unit<L: Lanes>(l: L, acts: *const i8) -> i32 {
    let ones = l.splat4(&[1; 4]);
    // SAFETY: the caller ensures a unit.
    l.sum_ints(l.dot4(l.splat_int(0), [ones; 4], unsafe { groups(l, acts) }))
}
