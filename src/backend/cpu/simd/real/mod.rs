//! Kernels of f32 values: what norms, attention and activation functions compute.
//!
//! `plain.rs` says what all of them are. Other sets are the same functions compiled for more instructions,
//! with a matrix product of their own in `vector.rs`. Everything but that product gives the same bits in
//! every set: no operation there is fused, and sums have the same partial sums.

mod codes;
mod plain;
mod vector;

pub use codes::{CodeMatrix, UNIT, UnitOf};
pub(super) use plain::KERNELS as PLAIN;
pub use plain::exp;
pub(super) use vector::table;

use ggml_types::Act;
use half::f16;

/// The kernels of one instruction set.
pub struct RealKernels {
    /// `c = a b`, or `c += a b`, of row-major matrices. Every element of `c` is summed in the order of `k`,
    /// by itself: no other row or column has a part in it.
    pub gemm: fn(shape: &Matrices, a: &[f32], b: &[f32], c: &mut [f32]),
    /// The same with a `b` of f16: the bits that [`gemm`](Self::gemm) gives after [`widen`](Self::widen).
    /// Fast where `m` is small, since it widens `b` once for every few rows.
    pub gemm_f16: fn(shape: &Matrices, a: &[f32], b: &[f16], c: &mut [f32]),
    /// The same with a `b` of codes: `c = (a b) s`, or `c += (a b) s`, where column `j` of the product is
    /// multiplied by `scales[j]`. Without scales every element is summed from what `c` holds on, as in
    /// [`gemm`](Self::gemm). `ldb` has no meaning; columns are a multiple of 32.
    pub gemm_codes: GemmCodes,
    /// The largest element; minus infinity for none; NaN is never the largest.
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
    /// Slices of different lengths are a bug of the caller and panic.
    pub widen: fn(x: &[f16], out: &mut [f32]),
    /// `h = act(h)`.
    pub act: fn(act: Act, h: &mut [f32]),
    /// `h = act(gate) * h`.
    pub gate: fn(act: Act, gate: &[f32], h: &mut [f32]),
    /// `h = h / (1 + exp(-gate))`.
    pub sigmoid_gate: fn(gate: &[f32], h: &mut [f32]),
    /// One row of a delta net, for [`COLUMNS`] elements of a head's values: replaces these by the output.
    /// `state` is `[head_dim, COLUMNS]`, the part of `S` that these elements are rows of, transposed.
    ///
    /// Slices of other lengths are a bug of the caller and panic.
    pub delta: fn(row: DeltaRow<'_>, state: &mut [f32], values: &mut [f32]),
    /// `sum(taps[j] * rows[j])` over all rows, and SiLU of it, element by element: `rows[j][i]` is multiplied
    /// with `taps[i * rows.len() + j]`.
    ///
    /// Slices of other lengths are a bug of the caller and panic.
    pub convolve: fn(rows: &[&[f32]], taps: &[f32], out: &mut [f32]),
}

/// Elements of a head's values that one call computes.
pub const COLUMNS: usize = 32;

/// One row of a delta net, for one head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRow<'a> {
    /// `[head_dim]`.
    pub q: &'a [f32],
    /// `[head_dim]`.
    pub k: &'a [f32],
    /// Factor on the state.
    pub decay: f32,
    /// Factor on what is written.
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
    /// Elements from one row of `a` to the next.
    pub lda: usize,
    /// Elements from one row of `b` to the next.
    pub ldb: usize,
    /// Elements from one row of `c` to the next.
    pub ldc: usize,
    /// Whether the product is added to what `c` holds.
    pub add: bool,
}

impl Matrices {
    /// # Panics
    /// Where the slices do not hold such matrices.
    fn check<B>(&self, a: &[f32], b: &[B], c: &[f32]) {
        self.check_left(a, c);
        let Self { k, n, ldb, .. } = *self;
        assert!(ldb >= n && b.len() >= need(k, n, ldb), "{self:?} of {} elements on the right", b.len());
    }

    /// # Panics
    /// Where the slices do not hold such a matrix on the left, and the product.
    fn check_left(&self, a: &[f32], c: &[f32]) {
        let Self { m, k, n, lda, ldc, .. } = *self;
        assert!(lda >= k && ldc >= n, "rows overlap: {self:?}");
        let fits = a.len() >= need(m, k, lda) && c.len() >= need(m, n, ldc);
        assert!(fits, "{self:?} of {} and {} elements", a.len(), c.len());
    }
}

/// Elements that a matrix needs.
fn need(rows: usize, cols: usize, stride: usize) -> usize {
    match rows {
        0 => 0,
        _ => (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(cols)).expect("a matrix in memory"),
    }
}
