//! The kernels for one instruction set: the plain functions compiled for it, and a matrix product of its own.
#![allow(unsafe_code)]

use half::f16;

use super::codes::CodeGemm;
use super::trellis::{Expand, Search};
use super::{Matrices, RealKernels, plain};
use crate::lanes::{Kernel, Lanes, array, array_mut};

/// The kernels compiled for one instruction set.
pub(crate) const fn table<L: Lanes>() -> RealKernels {
    RealKernels {
        gemm: |shape, a, b, c| {
            shape.check(a, b, c);
            L::vectorize(Gemm { shape, a, b, c });
        },
        gemm_f16: |shape, a, b, c| {
            shape.check(a, b, c);
            L::vectorize(Gemm { shape, a, b, c });
        },
        gemm_codes: |shape, a, b, scales, c| {
            b.check(shape, a, scales, c);
            L::vectorize(CodeGemm { shape, a, b, scales, c });
        },
        search: |trellis, len, x, codes| L::vectorize(Search { trellis, len, x, codes }),
        expand: |matrix, out| {
            matrix.check(out);
            L::vectorize(Expand { matrix, out });
        },
        max: |x| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::max(x),
            ))
        },
        exp_sum: |x, max| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::exp_sum(x, max),
            ))
        },
        dot: |a, b| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::dot(a, b),
            ))
        },
        sum: |x| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::sum(x),
            ))
        },
        sum_squares: |x, mean| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::sum_squares(x, mean),
            ))
        },
        widen: |x, out| {
            assert_eq!(x.len(), out.len(), "elements to widen");
            L::vectorize(Widen { x, out });
        },
        act: |act, h| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::act(act, h),
            ))
        },
        gate: |act, gate, h| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::gate(act, gate, h),
            ))
        },
        sigmoid_gate: |gate, h| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::sigmoid_gate(gate, h),
            ))
        },
        delta: |row, state, values| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::delta(row, state, values),
            ))
        },
        convolve: |rows, taps, out| {
            L::vectorize(Plain(
                #[inline(always)]
                || plain::convolve(rows, taps, out),
            ))
        },
    }
}

/// Plain code that the compiler vectorises.
struct Plain<F>(F);

impl<R, F: FnOnce() -> R> Kernel for Plain<F> {
    type Out = R;

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> R {
        (self.0)()
    }
}

/// [`RealKernels::widen`], after the lengths were checked.
struct Widen<'a> {
    x: &'a [f16],
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (x, x_rest) = self.x.as_chunks::<16>();
        let (out, out_rest) = self.out.as_chunks_mut::<16>();
        for (x, out) in x.iter().zip(out) {
            // SAFETY: 16 f16 are 32 bytes.
            l.store(out, l.load_f16(unsafe { array(x.as_ptr().cast()) }));
        }
        x_rest.iter().zip(out_rest).for_each(|(x, out)| *out = x.to_f32());
    }
}

/// [`RealKernels::gemm`], after the shapes were checked. Lanes are columns; a block of `M` rows by `N`
/// vectors of columns keeps its sums in registers.
struct Gemm<'a, B> {
    shape: &'a Matrices,
    a: &'a [f32],
    b: &'a [B],
    c: &'a mut [f32],
}

/// Elements of the right-hand matrix.
trait Element: Copy + Into<f32> {
    /// Loads 16 of them as floats.
    ///
    /// # Safety
    /// The pointer is to 16 elements.
    unsafe fn load<L: Lanes>(l: L, p: *const Self) -> L::Floats;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, p: *const Self) -> L::Floats {
        // SAFETY: the caller ensures 16 elements.
        l.load(unsafe { array(p) })
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, p: *const Self) -> L::Floats {
        // SAFETY: the caller ensures 16 elements.
        l.load_f16(unsafe { array(p.cast()) })
    }
}

impl<B: Element> Kernel for Gemm<'_, B> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        match L::GEMM_VECTORS {
            4 => self.columns::<L, 4>(l),
            _ => self.columns::<L, 1>(l),
        }
    }
}

impl<B: Element> Gemm<'_, B> {
    #[inline(always)]
    fn columns<L: Lanes, const N: usize>(&mut self, l: L) {
        let n = self.shape.n;
        let mut col = 0;
        // SAFETY: at least as many columns remain.
        unsafe {
            while col + 16 * N <= n {
                self.rows::<L, N>(l, col);
                col += 16 * N;
            }
            while col + 16 <= n {
                self.rows::<L, 1>(l, col);
                col += 16;
            }
        }
        let Matrices { m, k, lda, ldb, ldc, add, .. } = *self.shape;
        for row in 0..m {
            for col in col..n {
                let c = &mut self.c[row * ldc + col];
                let terms = (0..k).map(|i| (self.a[row * lda + i], self.b[i * ldb + col].into()));
                *c = terms.fold(if add { *c } else { 0.0 }, |sum, (a, b)| l.fma_one(a, b, sum));
            }
        }
    }

    /// Computes all rows of `N` vectors of columns.
    ///
    /// # Safety
    /// The columns exist.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const N: usize>(&mut self, l: L, col: usize) {
        let m = self.shape.m;
        let mut row = 0;
        // SAFETY: the caller ensures the columns, and at least as many rows remain.
        unsafe {
            while row + 4 <= m {
                self.block::<L, 4, N>(l, row, col);
                row += 4;
            }
            while row < m {
                self.block::<L, 1, N>(l, row, col);
                row += 1;
            }
        }
    }

    /// # Safety
    /// `M` rows from `row` on and `16 N` columns from `col` on exist.
    #[inline(always)]
    unsafe fn block<L: Lanes, const M: usize, const N: usize>(&mut self, l: L, row: usize, col: usize) {
        let Matrices { k, lda, ldb, ldc, add, .. } = *self.shape;
        // SAFETY: the block is within the matrices, whose shapes were checked.
        unsafe {
            let a: [*const f32; M] = std::array::from_fn(|i| self.a.as_ptr().add((row + i) * lda));
            let b = self.b.as_ptr().add(col);
            let c: [*mut f32; M] = std::array::from_fn(|i| self.c.as_mut_ptr().add((row + i) * ldc + col));
            let mut acc = [[l.splat(0.0); N]; M];
            if add {
                for i in 0..M {
                    for j in 0..N {
                        acc[i][j] = l.load(array(c[i].add(16 * j)));
                    }
                }
            }
            for i in 0..k {
                let mut vectors = [l.splat(0.0); N];
                for j in 0..N {
                    vectors[j] = B::load(l, b.add(i * ldb + 16 * j));
                }
                for row in 0..M {
                    let a = l.splat(*a[row].add(i));
                    for j in 0..N {
                        acc[row][j] = l.fma(a, vectors[j], acc[row][j]);
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
