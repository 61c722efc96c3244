//! Matrix products whose right-hand side is stored as codes: each code is looked up in a register and
//! multiplied there, with up to four rows of the left-hand side at a time. Decoded values are never written
//! to memory.
#![allow(unsafe_code)]

use super::Matrices;
use crate::lanes::{Kernel, Lanes, array, array_mut};

/// Columns of one unit of codes, which [`UnitOf`] stores together.
pub const UNIT: usize = 64;

/// A matrix of codes, `[rows, units]`.
#[derive(Clone, Copy)]
pub struct CodeMatrix<'a> {
    /// Format of a unit.
    pub unit: UnitOf,
    /// Values of the codes, as [`UnitOf`] defines; ignored for [`UnitOf::Int8`].
    pub values: &'a [f32; 16],
    /// The units, one row after another.
    pub bytes: &'a [u8],
    /// Distance between rows, in bytes.
    pub row_bytes: usize,
    /// The first column that is multiplied, a multiple of 32.
    pub first: usize,
}

/// Format of the codes of 64 columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitOf {
    /// 24 bytes: byte `b` of the first 16 has the magnitudes of the columns `b`, `16 + b`, `32 + b` and
    /// `48 + b`, 2 bits each, low bits first; the other 8 have the signs, low bits first, 1 for negative.
    /// Magnitude `i` is `values[i]`, and `values` repeat after 4.
    Signed3,
    /// 16 bytes, as the first 16 of [`Signed3`](Self::Signed3): code `i` is `values[i]`, and `values` repeat
    /// after 4.
    Table2,
    /// 8 bytes, as the other 8 of [`Signed3`](Self::Signed3): every column is `values[0]` or its negation.
    Sign,
    /// 32 bytes: byte `b` has column `b` in its low half and column `32 + b` in its high half. Codes index
    /// `values`.
    Table4,
    /// 64 bytes: the values themselves, as `i8`.
    Int8,
}

impl UnitOf {
    /// Bytes of a unit.
    pub const fn bytes(self) -> usize {
        match self {
            UnitOf::Signed3 => 24,
            UnitOf::Table2 => 16,
            UnitOf::Sign => 8,
            UnitOf::Table4 => 32,
            UnitOf::Int8 => 64,
        }
    }

    /// Value of a column of a unit.
    pub fn value(self, values: &[f32; 16], unit: &[u8], col: usize) -> f32 {
        let two_bits = || values[usize::from(unit[col % 16] >> (2 * (col / 16)) & 3)];
        let signed = |signs: &[u8], x: f32| if signs[col / 8] >> (col % 8) & 1 == 1 { -x } else { x };
        match self {
            UnitOf::Signed3 => signed(&unit[16..], two_bits()),
            UnitOf::Table2 => two_bits(),
            UnitOf::Sign => signed(unit, values[0]),
            UnitOf::Table4 => values[usize::from(unit[col % 32] >> (4 * (col / 32)) & 15)],
            UnitOf::Int8 => f32::from(unit[col].cast_signed()),
        }
    }

    /// Sets the code of a column: a magnitude with its sign in the bit above, an index, a sign, or an `i8`.
    pub fn put(self, unit: &mut [u8], col: usize, code: u8) {
        let put = |byte: &mut u8, shift: usize, mask: u8, bits: u8| {
            *byte = *byte & !(mask << shift) | bits << shift;
        };
        match self {
            UnitOf::Signed3 => {
                put(&mut unit[col % 16], 2 * (col / 16), 3, code & 3);
                put(&mut unit[16 + col / 8], col % 8, 1, code >> 2);
            }
            UnitOf::Table2 => put(&mut unit[col % 16], 2 * (col / 16), 3, code),
            UnitOf::Sign => put(&mut unit[col / 8], col % 8, 1, code),
            UnitOf::Table4 => put(&mut unit[col % 32], 4 * (col / 32), 15, code),
            UnitOf::Int8 => unit[col] = code,
        }
    }
}

impl CodeMatrix<'_> {
    /// # Panics
    /// If the slices are too short for these matrices.
    pub(super) fn check(&self, shape: &Matrices, a: &[f32], scales: Option<&[f32]>, c: &[f32]) {
        let Matrices { k, n, .. } = *shape;
        shape.check_left(a, c);
        assert!(self.first.is_multiple_of(32) && n.is_multiple_of(32), "columns {} and {n} more", self.first);
        let need = (self.first + n).div_ceil(UNIT) * self.unit.bytes();
        assert!(self.row_bytes >= need && (k == 0 || self.bytes.len() >= (k - 1) * self.row_bytes + need));
        assert!(scales.is_none_or(|scales| scales.len() == n), "a scale for each of {n} columns");
    }
}

/// Plain code that defines [`RealKernels::gemm_codes`](super::RealKernels::gemm_codes).
pub(super) fn plain(shape: &Matrices, a: &[f32], b: &CodeMatrix<'_>, scales: Option<&[f32]>, c: &mut [f32]) {
    b.check(shape, a, scales, c);
    let Matrices { m, k, n, lda, ldc, add, .. } = *shape;
    for row in 0..m {
        for col in 0..n {
            let (unit, at) = ((b.first + col) / UNIT * b.unit.bytes(), (b.first + col) % UNIT);
            let values = (0..k).map(|i| b.unit.value(b.values, &b.bytes[i * b.row_bytes + unit..], at));
            let pairs = a[row * lda..][..k].iter().zip(values);
            let c = &mut c[row * ldc + col];
            let before = if add { *c } else { 0.0 };
            *c = match scales {
                Some(scales) => before + scales[col] * pairs.fold(0.0, |sum, (a, b)| sum + a * b),
                None => pairs.fold(before, |sum, (a, b)| sum + a * b),
            };
        }
    }
}

/// [`RealKernels::gemm_codes`](super::RealKernels::gemm_codes), after checks. Lanes are columns.
pub(super) struct CodeGemm<'a> {
    pub shape: &'a Matrices,
    pub a: &'a [f32],
    pub b: &'a CodeMatrix<'a>,
    pub scales: Option<&'a [f32]>,
    pub c: &'a mut [f32],
}

/// Look-up of 16 of the 64 columns of a unit.
trait Unit {
    /// Loads the columns `16 part` to `16 part + 16`; `part` is below 4.
    ///
    /// # Safety
    /// The pointer is to a unit.
    unsafe fn load<L: Lanes>(l: L, unit: *const u8, part: usize, table: L::Table) -> L::Floats;
}

struct Signed3;
struct Table2;
struct Sign;
struct Table4;
struct Int8;

impl Unit for Signed3 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, unit: *const u8, part: usize, table: L::Table) -> L::Floats {
        // SAFETY: the caller ensures the unit, and `part` is below 4.
        unsafe { l.signed(array(unit), array(unit.add(16 + 2 * part)), part, table) }
    }
}

impl Unit for Table2 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, unit: *const u8, part: usize, table: L::Table) -> L::Floats {
        // SAFETY: the caller ensures the unit, and `part` is below 4.
        l.signed(unsafe { array(unit) }, &[0; 2], part, table)
    }
}

impl Unit for Sign {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, unit: *const u8, part: usize, table: L::Table) -> L::Floats {
        // SAFETY: the caller ensures the unit, and `part` is below 4.
        l.signed(&[0; 16], unsafe { array(unit.add(2 * part)) }, part, table)
    }
}

impl Unit for Table4 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, unit: *const u8, part: usize, table: L::Table) -> L::Floats {
        // SAFETY: the caller ensures the unit, and `part` is below 4.
        l.table4(unsafe { array(unit.add(16 * (part % 2))) }, part / 2, table)
    }
}

impl Unit for Int8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, unit: *const u8, part: usize, _: L::Table) -> L::Floats {
        // SAFETY: the caller ensures the unit, and `part` is below 4.
        l.load_i8(unsafe { array(unit.add(16 * part).cast()) })
    }
}

impl Kernel for CodeGemm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        match self.b.unit {
            UnitOf::Signed3 => self.columns::<L, Signed3>(l),
            UnitOf::Table2 => self.columns::<L, Table2>(l),
            UnitOf::Sign => self.columns::<L, Sign>(l),
            UnitOf::Table4 => self.columns::<L, Table4>(l),
            UnitOf::Int8 => self.columns::<L, Int8>(l),
        }
    }
}

impl CodeGemm<'_> {
    #[inline(always)]
    fn columns<L: Lanes, U: Unit>(&mut self, l: L) {
        let (first, n) = (self.b.first, self.shape.n);
        let mut col = 0;
        // SAFETY: columns come in halves of units, and at least as many remain.
        unsafe {
            while col < n {
                let half = (first + col) % UNIT / 32;
                match (L::GEMM_VECTORS, half) {
                    (4, 0) if col + UNIT <= n => {
                        self.rows::<L, U, 4>(l, col, 0);
                        col += UNIT;
                    }
                    (4, 0) => {
                        self.rows::<L, U, 2>(l, col, 0);
                        col += 32;
                    }
                    (4, _) => {
                        self.rows::<L, U, 2>(l, col, 2);
                        col += 32;
                    }
                    _ if L::IS_FETCHED => {
                        self.rows::<L, U, 1>(l, col, (first + col) % UNIT / 16);
                        col += 16;
                    }
                    (_, 0) => {
                        self.rows::<L, U, 1>(l, col, 0);
                        self.rows::<L, U, 1>(l, col + 16, 1);
                        col += 32;
                    }
                    (_, _) => {
                        self.rows::<L, U, 1>(l, col, 2);
                        self.rows::<L, U, 1>(l, col + 16, 3);
                        col += 32;
                    }
                }
            }
        }
    }

    /// Computes all rows of `N` vectors of columns from `col` on, which start at `part` of a unit.
    ///
    /// # Safety
    /// The columns exist.
    #[inline(always)]
    unsafe fn rows<L: Lanes, U: Unit, const N: usize>(&mut self, l: L, col: usize, part: usize) {
        let m = self.shape.m;
        let mut row = 0;
        // SAFETY: the caller ensures the columns, and at least as many rows remain.
        unsafe {
            while row + 4 <= m {
                self.block::<L, U, 4, N>(l, row, col, part);
                row += 4;
            }
            while row < m {
                self.block::<L, U, 1, N>(l, row, col, part);
                row += 1;
            }
        }
    }

    /// # Safety
    /// As [`rows`](Self::rows), and `M` rows from `row` on exist.
    #[inline(always)]
    unsafe fn block<L: Lanes, U: Unit, const M: usize, const N: usize>(
        &mut self,
        l: L,
        row: usize,
        col: usize,
        part: usize,
    ) {
        let Matrices { k, lda, ldc, add, .. } = *self.shape;
        let CodeMatrix { unit, values, bytes, row_bytes, first } = *self.b;
        // SAFETY: the block is within the matrices, whose shapes were checked.
        unsafe {
            let table = l.table(array(values.as_ptr()));
            let a: [*const f32; M] = std::array::from_fn(|i| self.a.as_ptr().add((row + i) * lda));
            let c: [*mut f32; M] = std::array::from_fn(|i| self.c.as_mut_ptr().add((row + i) * ldc + col));
            let mut unit = bytes.as_ptr().add((first + col) / UNIT * unit.bytes());
            let mut acc = [[l.splat(0.0); N]; M];
            if add && self.scales.is_none() {
                for i in 0..M {
                    for j in 0..N {
                        acc[i][j] = l.load(array(c[i].add(16 * j)));
                    }
                }
            }
            for i in 0..k {
                let mut vectors = [l.splat(0.0); N];
                for j in 0..N {
                    vectors[j] = U::load(l, unit, part + j, table);
                }
                for row in 0..M {
                    let a = l.splat(*a[row].add(i));
                    for j in 0..N {
                        acc[row][j] = l.fma(a, vectors[j], acc[row][j]);
                    }
                }
                unit = unit.wrapping_add(row_bytes);
            }
            if let Some(scales) = self.scales {
                for j in 0..N {
                    let scale = l.load(array(scales.as_ptr().add(col + 16 * j)));
                    for i in 0..M {
                        let before = if add { l.load(array(c[i].add(16 * j))) } else { l.splat(0.0) };
                        acc[i][j] = l.fma(scale, acc[i][j], before);
                    }
                }
            }
            for i in 0..M {
                for j in 0..N {
                    l.store(array_mut(c[i].add(16 * j)), acc[i][j]);
                }
            }
        }
    }
}
