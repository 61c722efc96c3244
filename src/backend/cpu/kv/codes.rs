//! Pages of codes, laid out for attention's matrix products.
//!
//! Keys are `[head_dim, 64]` codes and values `[64, head_dim]`, in units of 64 columns ([`UnitOf`]); they are
//! followed by the scales, `[head_dim / block, 64]` f16. Keys with residual signs store these signs and their
//! scales as a second matrix of that form: first the codes of both matrices, then the scales of both. Keys in
//! two groups have a matrix per group, `[head_dim / 2, 64]`, and scales of one byte. That takes as many bytes
//! as 64 vectors of the codec; a mean before them is not part of it.

use std::ops::Range;

use bytemuck::cast_slice;
use ggml_types::turboquant::{LogScale, Qjl};
use ggml_types::{CodeValues, KvCodes, KvSide, KvVectors};

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
    /// The second matrix, if the codec has one.
    second: Option<(Second, MatrixLayout)>,
}

/// Meaning of the second matrix of a page of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    /// The signs of the residual, which are multiplied with projected queries.
    Residual,
    /// The second half of the elements.
    Half,
}

/// A matrix of codes.
struct MatrixLayout {
    unit: UnitOf,
    values: [f32; 16],
    /// The elements of a vector that it has.
    elems: Range<usize>,
    /// Offset of the codes in a page, in bytes, and of the scales.
    units_at: usize,
    scales_at: usize,
    scales: Scales,
}

/// Form of the scales of a matrix.
enum Scales {
    /// f16.
    Half,
    /// Bytes, which are indices of these values.
    Log(Box<[f32; 256]>),
}

impl Scales {
    const fn bytes(&self) -> usize {
        match self {
            Self::Half => 2,
            Self::Log(_) => 1,
        }
    }
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
        let Some((values, block, log_scales)) =
            codec.codes().filter(|_| fits).map(|codes| (codes.values(), codes.block(), codes.log_scales()))
        else {
            return Err(codec);
        };
        let repeated = |values: [f32; 4]| std::array::from_fn(|i| values[i % 4]);
        let (all, half) = (0..head_dim, head_dim / 2);
        let (first, second) = match values {
            CodeValues::Signed3(values) => ((UnitOf::Signed3, repeated(values), all), None),
            CodeValues::Table4(values) => ((UnitOf::Table4, values, all), None),
            CodeValues::Int8 => ((UnitOf::Int8, [0.0; 16], all), None),
            CodeValues::TwoAndSign { values, sign } => {
                let signs = (UnitOf::Sign, [sign; 16], all.clone());
                ((UnitOf::Table2, repeated(values), all), Some((Second::Residual, signs)))
            }
            CodeValues::FourAndTwo { four, two } => {
                let second = (UnitOf::Table2, repeated(two), half..head_dim);
                ((UnitOf::Table4, four, 0..half), Some((Second::Half, second)))
            }
        };
        let mut end = 0;
        let mut place = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        let unit_bytes =
            |(unit, _, elems): &(UnitOf, _, Range<usize>)| elems.len() * PAGE / UNIT * unit.bytes();
        let first_at = place(unit_bytes(&first));
        let second_at = second.as_ref().map(|(_, second)| place(unit_bytes(second)));
        let mut part = |(unit, values, elems): (UnitOf, [f32; 16], Range<usize>), units_at, number: usize| {
            let values_of = |scale: LogScale| Box::new(std::array::from_fn(|code| scale.decode(code as u8)));
            let scales = log_scales.map_or(Scales::Half, |scales| Scales::Log(values_of(scales[number])));
            let scales_at = place(elems.len() / block * PAGE * scales.bytes());
            MatrixLayout { unit, values, elems, units_at, scales_at, scales }
        };
        let part_of_first = part(first, first_at, 0);
        let second = second.zip(second_at).map(|((kind, second), at)| (kind, part(second, at, 1)));
        assert_eq!(PAGE * vec_bytes, end, "bytes of a page");
        Ok(Self { codec, side, head_dim, vec_bytes, block, part: part_of_first, second })
    }

    /// The matrices of a page.
    fn parts(&self) -> impl Iterator<Item = &MatrixLayout> {
        [Some(&self.part), self.second.as_ref().map(|(_, part)| part)].into_iter().flatten()
    }

    /// Encodes a vector, `[head_dim]`, as position `pos` of a page.
    pub fn put(&self, page: &mut [u8], pos: usize, x: &[f32]) -> bool {
        let (mut vector, mut codes, mut scales) = ([0; MAX_BYTES], [0; MAX_DIM], [0; 2 * MAX_SCALES]);
        let vector = &mut vector[..self.vec_bytes];
        let scale_bytes = |part: &MatrixLayout| part.elems.len() / self.block * part.scales.bytes();
        let codes = &mut codes[..self.head_dim];
        let scales = &mut scales[..self.parts().map(scale_bytes).sum::<usize>()];
        let whole = self.codec.encode(x, vector);
        self.kv_codes().split(vector, codes, scales);

        let mut scales = &*scales;
        for part in self.parts() {
            let units = &mut page[part.units_at..];
            for (i, code) in codes[part.elems.clone()].iter().enumerate() {
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
            let bytes = part.scales.bytes();
            let (of_part, rest) = scales.split_at(scale_bytes(part));
            let rows = page[part.scales_at..].chunks_exact_mut(PAGE * bytes);
            for (row, scale) in rows.zip(of_part.chunks_exact(bytes)) {
                row[pos * bytes..][..bytes].copy_from_slice(scale);
            }
            scales = rest;
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
        self.second(Second::Residual)
    }

    /// The page's second matrix, if that is its meaning.
    fn second(self, meaning: Second) -> Option<Self> {
        let second = self.codes.second.as_ref().filter(|(second, _)| *second == meaning);
        second.map(|(_, part)| Self { part, ..self })
    }

    /// Multiplies queries `a` by keys, or weights `a` by the values from position `first` on.
    pub fn multiply(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        match self.codes.side {
            KvSide::Keys => {
                self.multiply_keys(k, shape, a, c);
                if let Some(second) = self.second(Second::Half) {
                    second.multiply_keys(k, &Matrices { add: true, ..*shape }, a, c);
                }
            }
            KvSide::Values => self.multiply_values(k, shape, a, first, c),
        }
    }

    /// The packed codes.
    fn units(self) -> &'a [u8] {
        &self.page[self.part.units_at..]
    }

    /// Reads the scales of the positions `at` of block `i`.
    fn read_scales(self, k: &RealKernels, i: usize, at: Range<usize>, out: &mut [f32]) {
        let MatrixLayout { scales_at, scales, .. } = self.part;
        let row = &self.page[scales_at + i * PAGE * scales.bytes()..][..PAGE * scales.bytes()];
        match scales {
            Scales::Half => (k.widen)(&cast_slice(row)[at], out),
            Scales::Log(values) => {
                out.iter_mut().zip(&row[at]).for_each(|(scale, code)| *scale = values[usize::from(*code)]);
            }
        }
    }

    /// Computes the scores `c` of queries `a` with all keys of the page.
    fn multiply_keys(self, k: &RealKernels, shape: &Matrices, a: &[f32], c: &mut [f32]) {
        let (codes, part, mut scales) = (self.codes, self.part, [0.0; PAGE]);
        let row_bytes = PAGE / UNIT * part.unit.bytes();
        for (i, from) in part.elems.clone().step_by(codes.block).enumerate() {
            self.read_scales(k, i, 0..PAGE, &mut scales);
            let bytes = &self.units()[i * codes.block * row_bytes..];
            let b = CodeMatrix { unit: part.unit, values: &part.values, bytes, row_bytes, first: 0 };
            let shape = Matrices { k: codes.block, add: shape.add || i > 0, ..*shape };
            (k.gemm_codes)(&shape, &a[from..], &b, Some(&scales), c);
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
        for (i, col) in part.elems.clone().step_by(codes.block).enumerate() {
            self.read_scales(k, i, first..first + n, scales);
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
