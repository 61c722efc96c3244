//! Pages of codes, laid out for the products that attention makes of them.
//!
//! Keys are `[head_dim, 64]` codes and values `[64, head_dim]`, in units of 64 columns ([`UnitOf`]); the scales behind
//! them are `[head_dim / block, 64]` f16. A page has as many bytes as 64 vectors of its codec.

use bytemuck::{cast_slice, cast_slice_mut};
use ggml_types::{CodeValues, KvSide, KvVectors};
use half::f16;

use crate::backend::cpu::simd::real::{CodeMatrix, Matrices, RealKernels, UNIT, UnitOf};
use crate::program::PAGE;

/// Elements of the longest vector that is kept so.
pub const MAX_DIM: usize = 512;

/// Bytes of the longest vector, that of q8_0, and the scales that it has.
const MAX_BYTES: usize = MAX_DIM / 32 * 34;
const MAX_SCALES: usize = MAX_DIM / 32;

/// Rows of weights that are multiplied with the scales of values at a time.
const ROWS: usize = 16;

/// One side of a cache of codes.
pub struct Codes {
    codec: Box<dyn KvVectors>,
    side: KvSide,
    head_dim: usize,
    /// Bytes of one vector.
    vec_bytes: usize,
    /// Elements that share a scale.
    block: usize,
    unit: UnitOf,
    values: [f32; 16],
}

/// A page of them.
#[derive(Clone, Copy)]
pub struct CodePage<'a> {
    codes: &'a Codes,
    bytes: &'a [u8],
    /// `[head_dim / block, PAGE]`.
    scales: &'a [f16],
}

impl Codes {
    /// Pages for a codec; gives it back where its vectors have no codes, or not enough of them for a unit.
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
        let (unit, values) = match values {
            CodeValues::Signed3(values) => (UnitOf::Signed3, std::array::from_fn(|i| values[i % 4])),
            CodeValues::Table4(values) => (UnitOf::Table4, values),
            CodeValues::Int8 => (UnitOf::Int8, [0.0; 16]),
        };
        assert_eq!(
            PAGE * vec_bytes,
            head_dim * unit.bytes() + head_dim / block * PAGE * 2,
            "bytes of a page"
        );
        Ok(Self { codec, side, head_dim, vec_bytes, block, unit, values })
    }

    /// Encodes a vector, `[head_dim]`, as position `pos` of a page.
    pub fn put(&self, page: &mut [u8], pos: usize, x: &[f32]) -> bool {
        let (mut vector, mut codes, mut scales) = ([0; MAX_BYTES], [0; MAX_DIM], [f16::ZERO; MAX_SCALES]);
        let vector = &mut vector[..self.vec_bytes];
        let (codes, scales) = (&mut codes[..self.head_dim], &mut scales[..self.head_dim / self.block]);
        let whole = self.codec.encode(x, vector);
        self.codec.codes().expect("a codec of codes").split(vector, codes, scales);

        let (units, page_scales) = page.split_at_mut(self.head_dim * self.unit.bytes());
        for (i, code) in codes.iter().enumerate() {
            let code = match self.unit {
                // A magnitude and the sign above it.
                UnitOf::Signed3 => {
                    if *code < 4 {
                        7 - code
                    } else {
                        code - 4
                    }
                }
                UnitOf::Table4 | UnitOf::Int8 => *code,
            };
            let at = match self.side {
                KvSide::Keys => i * PAGE + pos,
                KvSide::Values => pos * self.head_dim + i,
            };
            self.unit.put(&mut units[at / UNIT * self.unit.bytes()..], at % UNIT, code);
        }
        let rows = cast_slice_mut::<u8, f16>(page_scales).chunks_exact_mut(PAGE);
        rows.zip(scales).for_each(|(row, scale)| row[pos] = *scale);
        whole
    }

    /// A page by its bytes.
    pub fn page<'a>(&'a self, bytes: &'a [u8]) -> CodePage<'a> {
        let (bytes, scales) = bytes.split_at(self.head_dim * self.unit.bytes());
        CodePage { codes: self, bytes, scales: cast_slice(scales) }
    }
}

impl CodePage<'_> {
    /// Queries `a` times keys, or weights `a` times the values from position `first` on.
    pub fn multiply(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        match self.codes.side {
            KvSide::Keys => self.multiply_keys(k, shape, a, c),
            KvSide::Values => self.multiply_values(k, shape, a, first, c),
        }
    }

    /// Scores `c` of queries `a` with all keys of the page.
    fn multiply_keys(self, k: &RealKernels, shape: &Matrices, a: &[f32], c: &mut [f32]) {
        let (codes, mut scales) = (self.codes, [0.0; PAGE]);
        let row_bytes = PAGE / UNIT * codes.unit.bytes();
        for (i, halves) in self.scales.chunks_exact(PAGE).enumerate() {
            (k.widen)(halves, &mut scales);
            let dims = i * codes.block;
            let bytes = &self.bytes[dims * row_bytes..];
            let b = CodeMatrix { unit: codes.unit, values: &codes.values, bytes, row_bytes, first: 0 };
            let shape = Matrices { k: codes.block, add: shape.add || i > 0, ..*shape };
            (k.gemm_codes)(&shape, &a[dims..], &b, Some(&scales), c);
        }
    }

    /// Sums `c` of the values from position `first` on, weighted with `a`.
    fn multiply_values(self, k: &RealKernels, shape: &Matrices, a: &[f32], first: usize, c: &mut [f32]) {
        let Matrices { m, k: n, lda, ldc, .. } = *shape;
        let (codes, mut scales, mut weights) = (self.codes, [0.0; PAGE], [0.0; ROWS * PAGE]);
        let row_bytes = codes.head_dim / UNIT * codes.unit.bytes();
        let bytes = &self.bytes[first * row_bytes..];
        let scales = &mut scales[..n];
        for (i, halves) in self.scales.chunks_exact(PAGE).enumerate() {
            (k.widen)(&halves[first..first + n], scales);
            let col = i * codes.block;
            let b = CodeMatrix { unit: codes.unit, values: &codes.values, bytes, row_bytes, first: col };
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
