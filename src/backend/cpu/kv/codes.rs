//! Pages of codes, laid out for attention's matrix products.
//!
//! Keys are `[head_dim, 64]` codes and values `[64, head_dim]`, in units of 64 columns ([`UnitOf`]); they are
//! followed by the scales, `[head_dim / block, 64]` f16. Keys with residual signs store these signs and their
//! scales as a second matrix of that form: first the codes of both matrices, then the scales of both. That
//! takes as many bytes as 64 vectors of the codec; a mean before them is not part of it.

use bytemuck::{cast_slice, cast_slice_mut};
use ggml_types::turboquant::Qjl;
use ggml_types::{CodeValues, KvCodes, KvSide, KvVectors};
use half::f16;

use sterna_cpu_kernels::real::{CodeMatrix, Matrices, RealKernels, UNIT, UnitOf};
use sterna_program::PAGE;

/// Elements of the longest vector that is stored as codes.
pub const MAX_DIM: usize = 512;

/// Bytes of the longest vector, which is one of q8_0, and its number of scales.
const MAX_BYTES: usize = MAX_DIM / 32 * 34;
const MAX_SCALES: usize = MAX_DIM / 32;

/// Rows of attention weights that are multiplied by the scales of values at a time.
const ROWS: usize = 16;

/// The keys or the values of a cache of codes.
pub struct Codes {
    codec: Box<dyn KvVectors>,
    side: KvSide,
    head_dim: usize,
    /// Bytes of one vector.
    vec_bytes: usize,
    /// Elements per scale.
    block: usize,
    part: MatrixLayout,
    /// The signs of the residual, if the codec has them.
    residual: Option<MatrixLayout>,
}

/// A matrix of codes.
#[derive(Clone, Copy)]
struct MatrixLayout {
    unit: UnitOf,
    values: [f32; 16],
    /// Offset of the codes in a page, in bytes, and of the scales.
    units_at: usize,
    scales_at: usize,
}

/// A page of codes.
#[derive(Clone, Copy)]
pub struct CodePage<'a> {
    codes: &'a Codes,
    part: &'a MatrixLayout,
    /// The whole page.
    page: &'a [u8],
}

impl Codes {
    /// Lays out pages for a codec; returns the codec if its vectors have no codes or do not fill units.
    pub fn new(
        codec: Box<dyn KvVectors>,
        side: KvSide,
        head_dim: usize,
        vec_bytes: usize,
    ) -> Result<Self, Box<dyn KvVectors>> {
        let fits = head_dim.is_multiple_of(UNIT) && head_dim <= MAX_DIM;
        let Some((values, block)) =
            codec.codes().filter(|_| fits).map(|codes| (codes.values(), codes.block()))
        else {
            return Err(codec);
        };
        let repeated = |values: [f32; 4]| std::array::from_fn(|i| values[i % 4]);
        let (first, second) = match values {
            CodeValues::Signed3(values) => ((UnitOf::Signed3, repeated(values)), None),
            CodeValues::Table4(values) => ((UnitOf::Table4, values), None),
            CodeValues::Int8 => ((UnitOf::Int8, [0.0; 16]), None),
            CodeValues::TwoAndSign { values, sign } => {
                ((UnitOf::Table2, repeated(values)), Some((UnitOf::Sign, [sign; 16])))
            }
        };
        let scale_bytes = head_dim / block * PAGE * 2;
        let second_at = head_dim * first.0.bytes();
        let scales_at = second_at + second.map_or(0, |(unit, _)| head_dim * unit.bytes());
        let part = |(unit, values), units_at, scales_at| MatrixLayout { unit, values, units_at, scales_at };
        let residual = second.map(|second| part(second, second_at, scales_at + scale_bytes));
        let part = part(first, 0, scales_at);
        let end = residual.map_or(part.scales_at, |part| part.scales_at) + scale_bytes;
        assert_eq!(PAGE * vec_bytes, end, "bytes of a page");
        Ok(Self { codec, side, head_dim, vec_bytes, block, part, residual })
    }

    /// Encodes a vector, `[head_dim]`, as position `pos` of a page.
    pub fn put(&self, page: &mut [u8], pos: usize, x: &[f32]) -> bool {
        let (mut vector, mut codes, mut scales) = ([0; MAX_BYTES], [0; MAX_DIM], [f16::ZERO; MAX_SCALES]);
        let vector = &mut vector[..self.vec_bytes];
        let per_part = self.head_dim / self.block;
        let n_scales = per_part * if self.residual.is_some() { 2 } else { 1 };
        let (codes, scales) = (&mut codes[..self.head_dim], &mut scales[..n_scales]);
        let whole = self.codec.encode(x, vector);
        self.kv_codes().split(vector, codes, scales);

        for (part, scales) in
            [Some(&self.part), self.residual.as_ref()].into_iter().flatten().zip(scales.chunks(per_part))
        {
            let units = &mut page[part.units_at..];
            for (i, code) in codes.iter().enumerate() {
                let code = match part.unit {
                    // A magnitude, with the sign in the bit above it.
                    UnitOf::Signed3 if *code < 4 => 7 - code,
                    UnitOf::Signed3 => code - 4,
                    UnitOf::Table2 => code & 3,
                    // In a unit, 1 is negative.
                    UnitOf::Sign => code >> 2 ^ 1,
                    UnitOf::Table4 | UnitOf::Int8 => *code,
                };
                let at = match self.side {
                    KvSide::Keys => i * PAGE + pos,
                    KvSide::Values => pos * self.head_dim + i,
                };
                part.unit.put(&mut units[at / UNIT * part.unit.bytes()..], at % UNIT, code);
            }
            let rows = cast_slice_mut::<u8, f16>(&mut page[part.scales_at..]).chunks_exact_mut(PAGE);
            rows.zip(scales).for_each(|(row, scale)| row[pos] = *scale);
        }
        whole
    }

    /// Projection of queries for the product with the [residual](CodePage::residual) of a page.
    pub fn projection(&self) -> Option<&Qjl> {
        self.kv_codes().projection()
    }

    fn kv_codes(&self) -> &dyn KvCodes {
        self.codec.codes().expect("a codec of codes")
    }

    /// A page from its bytes.
    pub fn page<'a>(&'a self, page: &'a [u8]) -> CodePage<'a> {
        CodePage { codes: self, part: &self.part, page }
    }
}

impl<'a> CodePage<'a> {
    /// Residual of the page's codes, if the codec has one: projected queries are multiplied with it and added
    /// to the product with the codes.
    pub fn residual(self) -> Option<Self> {
        self.codes.residual.as_ref().map(|part| Self { part, ..self })
    }

    /// Multiplies queries `a` by keys, or weights `a` by the values from position `first` on.
    pub fn multiply(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        match self.codes.side {
            KvSide::Keys => self.multiply_keys(k, shape, a, c),
            KvSide::Values => self.multiply_values(k, shape, a, first, c),
        }
    }

    /// The packed codes.
    fn units(self) -> &'a [u8] {
        &self.page[self.part.units_at..]
    }

    /// `[head_dim / block, PAGE]`.
    fn scales(self) -> &'a [f16] {
        let n = self.codes.head_dim / self.codes.block * PAGE;
        &cast_slice(&self.page[self.part.scales_at..])[..n]
    }

    /// Computes the scores `c` of queries `a` with all keys of the page.
    fn multiply_keys(self, k: &RealKernels, shape: &Matrices, a: &[f32], c: &mut [f32]) {
        let (codes, part, mut scales) = (self.codes, self.part, [0.0; PAGE]);
        let row_bytes = PAGE / UNIT * part.unit.bytes();
        for (i, halves) in self.scales().chunks_exact(PAGE).enumerate() {
            (k.widen)(halves, &mut scales);
            let dims = i * codes.block;
            let bytes = &self.units()[dims * row_bytes..];
            let b = CodeMatrix { unit: part.unit, values: &part.values, bytes, row_bytes, first: 0 };
            let shape = Matrices { k: codes.block, add: shape.add || i > 0, ..*shape };
            (k.gemm_codes)(&shape, &a[dims..], &b, Some(&scales), c);
        }
    }

    /// Computes the sums `c` of the values from position `first` on, weighted with `a`.
    fn multiply_values(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        let Matrices { m, k: n, lda, ldc, .. } = *shape;
        let (codes, part) = (self.codes, self.part);
        let (mut scales, mut weights) = ([0.0; PAGE], [0.0; ROWS * PAGE]);
        let row_bytes = codes.head_dim / UNIT * part.unit.bytes();
        let bytes = &self.units()[first * row_bytes..];
        let scales = &mut scales[..n];
        for (i, halves) in self.scales().chunks_exact(PAGE).enumerate() {
            (k.widen)(&halves[first..first + n], scales);
            let col = i * codes.block;
            let b = CodeMatrix { unit: part.unit, values: &part.values, bytes, row_bytes, first: col };
            for row in (0..m).step_by(ROWS) {
                let m = ROWS.min(m - row);
                for (r, weights) in weights.chunks_exact_mut(PAGE).take(m).enumerate() {
                    let a = &a[(row + r) * lda..][..n];
                    weights.iter_mut().zip(a.iter().zip(&*scales)).for_each(|(w, (a, s))| *w = a * s);
                }
                let shape = Matrices { m, n: codes.block, lda: PAGE, ..*shape };
                (k.gemm_codes)(&shape, &weights, &b, None, &mut c[row * ldc + col..]);
            }
        }
    }
}
