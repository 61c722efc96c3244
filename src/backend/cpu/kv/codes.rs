//! Pages of codes, laid out for attention's matrix products.
//!
//! Keys are `[head_dim, 64]` codes and values `[64, head_dim]`, in units of 64 columns ([`UnitOf`]); they are
//! followed by the scales, `[head_dim / block, 64]` f16. Keys with residual signs store these signs and their
//! scales as a second matrix of that form: first the codes of both matrices, then the scales of both. Keys in
//! two groups have a matrix per group, `[head_dim / 2, 64]`, and scales of one byte. That takes as many bytes
//! as 64 vectors of the codec; a mean before them is not part of it.
//!
//! Codes of a trellis are stored in the same units. They are expanded to bytes before they are multiplied.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use ggml_types::turboquant::{LogScale, Qjl, SEARCHED, Trellis};
use ggml_types::{CodeValues, KvCodes, KvSide, KvVectors};

use sterna_cpu_kernels::real::{Along, CodeMatrix, Matrices, RealKernels, TrellisMatrix, UNIT, UnitOf};
use sterna_program::PAGE;

/// Elements of the longest vector that is stored as codes.
pub const MAX_DIM: usize = 512;

/// Bytes of the longest vector, which is one of q8_0, and its number of scales.
const MAX_BYTES: usize = MAX_DIM / 32 * 34;
const MAX_SCALES: usize = MAX_DIM / 32;

/// Rows of attention weights that are multiplied by the scales of values at a time.
const ROWS: usize = 16;

/// Vectors that are encoded together.
pub const TOGETHER: usize = SEARCHED;

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
    /// Values of the codes, if they follow from no trellis.
    values: [f32; 16],
    trellis: Option<&'static Trellis>,
    /// The elements of a vector that it has.
    elems: Range<usize>,
    /// Offset of the codes in a page, in bytes, and of the scales.
    units_at: usize,
    scales_at: usize,
    scales: Scales,
}

/// Values of the codes of a matrix.
enum Values {
    Table([f32; 16]),
    Trellis(&'static Trellis),
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
    /// Its codes as bytes, `[head_dim, 64]` keys or `[n, head_dim]` values, if they are those of a trellis.
    expanded: &'a [u8],
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
        let table = |unit, values, elems| (unit, Values::Table(values), elems);
        let expanded = |trellis, elems| (TrellisMatrix::unit_of(trellis), Values::Trellis(trellis), elems);
        let (first, second) = match values {
            CodeValues::Signed3(values) => (table(UnitOf::Signed3, repeated(values), all), None),
            CodeValues::Table4(values) => (table(UnitOf::Table4, values, all), None),
            CodeValues::Int8 => (table(UnitOf::Int8, [0.0; 16], all), None),
            CodeValues::TwoAndSign { values, sign } => {
                let signs = table(UnitOf::Sign, [sign; 16], all.clone());
                (table(UnitOf::Table2, repeated(values), all), Some((Second::Residual, signs)))
            }
            CodeValues::FourAndTwo { four, two } => {
                let second = table(UnitOf::Table2, repeated(two), half..head_dim);
                (table(UnitOf::Table4, four, 0..half), Some((Second::Half, second)))
            }
            CodeValues::Trellis(trellis) => (expanded(trellis, all), None),
            CodeValues::Trellises([first, second]) => {
                (expanded(first, 0..half), Some((Second::Half, expanded(second, half..head_dim))))
            }
        };
        let mut end = 0;
        let mut place = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        let unit_bytes =
            |(unit, _, elems): &(UnitOf, Values, Range<usize>)| elems.len() * PAGE / UNIT * unit.bytes();
        let first_at = place(unit_bytes(&first));
        let second_at = second.as_ref().map(|(_, second)| place(unit_bytes(second)));
        let mut part = |(unit, values, elems): (UnitOf, Values, Range<usize>), units_at, number: usize| {
            let (values, trellis) = match values {
                Values::Table(values) => (values, None),
                Values::Trellis(trellis) => ([0.0; 16], Some(trellis)),
            };
            let values_of = |scale: LogScale| Box::new(std::array::from_fn(|code| scale.decode(code as u8)));
            let scales = log_scales.map_or(Scales::Half, |scales| Scales::Log(values_of(scales[number])));
            let scales_at = place(elems.len() / block * PAGE * scales.bytes());
            MatrixLayout { unit, values, trellis, elems, units_at, scales_at, scales }
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
        let mut vector = [0; MAX_BYTES];
        let vector = &mut vector[..self.vec_bytes];
        let whole = self.codec.encode(x, vector);
        self.store(page, pos, vector);
        whole
    }

    /// Encodes up to [`TOGETHER`] vectors, `[n, head_dim]`, as the positions from `pos` on. Returns the
    /// number of those in which something had to be clamped.
    pub fn put_all(&self, k: &RealKernels, page: &mut [u8], pos: usize, x: &[f32]) -> usize {
        let (mut vectors, n) = ([0; TOGETHER * MAX_BYTES], x.len() / self.head_dim);
        let vectors = &mut vectors[..n * self.vec_bytes];
        let n_clamped = self.codec.encode_all(n, x, vectors, k.search);
        let positions = vectors.chunks_exact(self.vec_bytes).zip(pos..);
        positions.for_each(|(vector, pos)| self.store(page, pos, vector));
        n_clamped
    }

    /// Writes an encoded vector as position `pos` of a page.
    fn store(&self, page: &mut [u8], pos: usize, vector: &[u8]) {
        let (mut codes, mut scales) = ([0; MAX_DIM], [0; 2 * MAX_SCALES]);
        let scale_bytes = |part: &MatrixLayout| part.elems.len() / self.block * part.scales.bytes();
        let codes = &mut codes[..self.head_dim];
        let scales = &mut scales[..self.parts().map(scale_bytes).sum::<usize>()];
        self.kv_codes().split(vector, codes, scales);

        let mut scales = &*scales;
        for part in self.parts() {
            let units = &mut page[part.units_at..];
            for (i, code) in codes[part.elems.clone()].iter().enumerate() {
                let code = match part.unit {
                    _ if part.trellis.is_some() => *code,
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
    }

    /// Projection of queries for the product with the [residual](CodePage::residual) of a page.
    pub fn projection(&self) -> Option<&Qjl> {
        self.kv_codes().projection()
    }

    fn kv_codes(&self) -> &dyn KvCodes {
        self.codec.codes().expect("a codec of codes")
    }

    /// A page from its bytes, of which `n` positions are read if they are values. Codes of a trellis are
    /// expanded in `workspace`, `[head_dim * PAGE]`, or `[n * head_dim]` for values.
    pub fn page<'a>(
        &'a self,
        k: &RealKernels,
        page: &'a [u8],
        n: usize,
        workspace: &'a mut [f32],
    ) -> CodePage<'a> {
        let mut expanded: &[u8] = &[];
        if self.part.trellis.is_some() {
            let out = &mut cast_slice_mut::<f32, u8>(workspace)[..n * self.head_dim];
            for part in self.parts() {
                let vectors = match self.side {
                    KvSide::Keys => Along::Columns,
                    KvSide::Values => Along::Rows(self.head_dim / UNIT),
                };
                let trellis = part.trellis.expect("all matrices have one");
                let matrix = TrellisMatrix { trellis, vectors, bytes: &page[part.units_at..] };
                (k.expand)(&matrix, &mut out[part.elems.start * n..part.elems.end * n]);
            }
            expanded = out;
        }
        CodePage { codes: self, part: &self.part, page, expanded }
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

    /// The codes of rows of `cols` elements from row `first` of the page on, to be multiplied from column
    /// `col` on.
    fn matrix(self, cols: usize, first: usize, col: usize) -> CodeMatrix<'a> {
        let part = self.part;
        let (unit, bytes) = match part.trellis {
            None => (part.unit, &self.page[part.units_at..]),
            Some(_) => (UnitOf::Int8, self.expanded),
        };
        let row_bytes = cols / UNIT * unit.bytes();
        CodeMatrix { unit, values: &part.values, bytes: &bytes[first * row_bytes..], row_bytes, first: col }
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
        if self.part.trellis.is_some() {
            out.iter_mut().for_each(|scale| *scale /= Trellis::UNIT as f32);
        }
    }

    /// Computes the scores `c` of queries `a` with all keys of the page.
    fn multiply_keys(self, k: &RealKernels, shape: &Matrices, a: &[f32], c: &mut [f32]) {
        let (codes, part, mut scales) = (self.codes, self.part, [0.0; PAGE]);
        // Expanded codes are those of all elements, stored codes those of the matrix.
        let skip = if part.trellis.is_some() { part.elems.start } else { 0 };
        for (i, from) in part.elems.clone().step_by(codes.block).enumerate() {
            self.read_scales(k, i, 0..PAGE, &mut scales);
            let b = self.matrix(PAGE, skip + i * codes.block, 0);
            let shape = Matrices { k: codes.block, add: shape.add || i > 0, ..*shape };
            (k.gemm_codes)(&shape, &a[from..], &b, Some(&scales), c);
        }
    }

    /// Computes the sums `c` of the values from position `first` on, weighted with `a`.
    fn multiply_values(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        let Matrices { m, k: n, lda, ldc, .. } = *shape;
        let (codes, part) = (self.codes, self.part);
        let (mut scales, mut weights) = ([0.0; PAGE], [0.0; ROWS * PAGE]);
        let scales = &mut scales[..n];
        for (i, col) in part.elems.clone().step_by(codes.block).enumerate() {
            self.read_scales(k, i, first..first + n, scales);
            let b = self.matrix(codes.head_dim, first, col);
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
