//! Kernels on f32 values, for norms, attention and activation functions.
//!
//! `plain.rs` defines all of them. Other sets compile the same functions for more instructions, with a matrix
//! product of their own in `vector.rs`. Everything except that product gives the same bits in every set: no
//! operation is fused there, and sums have the same partial sums.

mod codes;
mod plain;
mod trellis;
mod vector;

pub use codes::{CodeMatrix, UNIT, UnitOf};
pub(super) use plain::KERNELS as PLAIN;
pub use plain::exp;
pub use trellis::{Along, TrellisMatrix};
pub(super) use vector::table;

use ggml_types::Act;
use ggml_types::turboquant::PathSearch;
use half::f16;

/// The kernels of one instruction set.
pub struct RealKernels {
    /// `c = a b`, or `c += a b`, of row-major matrices. Every element of `c` is summed in the order of `k`,
    /// independent of the other rows and columns.
    pub gemm: fn(shape: &Matrices, a: &[f32], b: &[f32], c: &mut [f32]),
    /// As [`gemm`](Self::gemm), with an f16 `b`: the same bits as `gemm` gives after [`widen`](Self::widen).
    /// Fast if `m` is small, because it widens `b` once per few rows.
    pub gemm_f16: fn(shape: &Matrices, a: &[f32], b: &[f16], c: &mut [f32]),
    /// As [`gemm`](Self::gemm), with a `b` of codes: `c = (a b) s`, or `c += (a b) s`, where column `j` of
    /// the product is multiplied by `scales[j]`. Without scales the sum of every element starts from its
    /// value in `c`, as in `gemm`. `ldb` is ignored; the number of columns is a multiple of 32.
    pub gemm_codes: GemmCodes,
    /// The best codes of up to 16 vectors, the same as those of
    /// [`Trellis::search`](ggml_types::turboquant::Trellis::search).
    pub search: PathSearch,
    /// The value of each code of a matrix as an `i8`, `[rows, columns]`.
    ///
    /// Panics if there are fewer codes than values, which is a bug of the caller.
    pub expand: fn(matrix: &TrellisMatrix<'_>, out: &mut [u8]),
    /// The largest element, ignoring NaN; minus infinity if there is none.
    pub max: fn(x: &[f32]) -> f32,
    /// Replaces each element by `exp(x - max)`, see [`exp`], and returns the sum.
    pub exp_sum: fn(x: &mut [f32], max: f32) -> f32,
    /// `<a, b>`.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,
    /// `sum(x)`.
    pub sum: fn(x: &[f32]) -> f64,
    /// `sum((x - mean)^2)`.
    pub sum_squares: fn(x: &[f32], mean: f64) -> f64,
    /// `out = x`, element by element.
    ///
    /// Panics if the slices differ in length, which is a bug of the caller.
    pub widen: fn(x: &[f16], out: &mut [f32]),
    /// `h = act(h)`.
    pub act: fn(act: Act, h: &mut [f32]),
    /// `h = act(gate) * h`.
    pub gate: fn(act: Act, gate: &[f32], h: &mut [f32]),
    /// `h = h / (1 + exp(-gate))`.
    pub sigmoid_gate: fn(gate: &[f32], h: &mut [f32]),
    /// One row of a delta net, for [`COLUMNS`] or [`HALF_COLUMNS`] elements of a head's values, which are
    /// replaced by the output. `state` is `[head_dim, elements]`, the rows of `S` that belong to these
    /// elements, transposed.
    ///
    /// Panics if a slice has another length, which is a bug of the caller.
    pub delta: fn(row: DeltaRow<'_>, state: &mut [f32], values: &mut [f32]),
    /// SiLU of `sum(taps[j] * rows[j])` over all rows, element by element: `rows[j][i]` is multiplied by
    /// `taps[i * rows.len() + j]`.
    ///
    /// Panics if a slice has another length, which is a bug of the caller.
    pub convolve: fn(rows: &[&[f32]], taps: &[f32], out: &mut [f32]),
}

/// Elements of a head's values per call.
pub const COLUMNS: usize = 32;

/// Elements per call for heads that are not a multiple of [`COLUMNS`].
pub const HALF_COLUMNS: usize = COLUMNS / 2;

/// One row of a delta net, for one head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRow<'a> {
    /// `[head_dim]`.
    pub q: &'a [f32],
    /// `[head_dim]`.
    pub k: &'a [f32],
    /// Factor on the state.
    pub decay: f32,
    /// Factor on the update of the state.
    pub strength: f32,
}

/// [`RealKernels::gemm_codes`].
pub type GemmCodes = fn(&Matrices, a: &[f32], b: &CodeMatrix<'_>, scales: Option<&[f32]>, c: &mut [f32]);

/// Shapes of a matrix product `[m, n] = [m, k] [k, n]`, and the distances between rows.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Rows of `a` and `c`.
    pub m: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
    /// Columns of `b` and `c`.
    pub n: usize,
    /// Distance between rows of `a`, in elements.
    pub lda: usize,
    /// Distance between rows of `b`, in elements.
    pub ldb: usize,
    /// Distance between rows of `c`, in elements.
    pub ldc: usize,
    /// True if the product is added to the values in `c`.
    pub add: bool,
}

impl Matrices {
    /// # Panics
    /// If the slices are too short for these matrices.
    fn check<B>(&self, a: &[f32], b: &[B], c: &[f32]) {
        self.check_left(a, c);
        let Self { k, n, ldb, .. } = *self;
        assert!(ldb >= n && b.len() >= need(k, n, ldb), "{self:?} of {} elements on the right", b.len());
    }

    /// # Panics
    /// If the slices are too short for the left-hand matrix and the product.
    fn check_left(&self, a: &[f32], c: &[f32]) {
        let Self { m, k, n, lda, ldc, .. } = *self;
        assert!(lda >= k && ldc >= n, "rows overlap: {self:?}");
        let fits = a.len() >= need(m, k, lda) && c.len() >= need(m, n, ldc);
        assert!(fits, "{self:?} of {} and {} elements", a.len(), c.len());
    }
}

/// Number of elements that a matrix spans.
fn need(rows: usize, cols: usize, stride: usize) -> usize {
    match rows {
        0 => 0,
        _ => (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(cols)).expect("a matrix in memory"),
    }
}
