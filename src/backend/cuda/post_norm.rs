//! A product added to the residual stream after one of the two is normalised, and norms of whole rows: one
//! block per row.

use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::linear;
use super::linear::shared::norm_bytes;
use super::op::Op;
use super::params::{LINEAR_THREADS, PostNormParams};
use sterna_program::{Buf, Norm, Program};

/// The kernel that normalises the product only, the one that also normalises the residual, and the one that
/// normalises rows in place.
pub const KERNELS: [KernelName; 3] = [
    KernelName::single("post_norm"),
    KernelName::single("post_norm").of_kind("residual"),
    KernelName::single("post_norm").of_kind("rows"),
];

/// `x[r] = scale * (residual(x[r]) + norm(product[r]))`, rows of `cols` elements.
pub struct PostNorm<'a> {
    /// Norms of the product and of the residual.
    pub norms: [Option<&'a Norm>; 2],
    pub product: Place,
    pub x: Buf,
    pub cols: usize,
    pub scale: f32,
}

impl PostNorm<'_> {
    fn kernel(&self) -> KernelName {
        KERNELS[usize::from(self.norms[1].is_some())]
    }
}

impl Op for PostNorm<'_> {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![self.kernel()])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let [norm, residual] = self.norms.map(|norm| linear::norm(cx, norm));
        let (step, product, x) = (cx.tables(), cx.address(self.product), cx.buf(self.x));
        let params =
            PostNormParams { step, norm, residual, product, x, cols: self.cols as u32, scale: self.scale };
        vec![Launch {
            kernel: cx.kernel(self.kernel()),
            grid: [cx.shape.rows as u32, 1, 1],
            threads: LINEAR_THREADS,
            shared_bytes: norm_bytes(self.cols) as u32,
            params: words(&params),
        }]
    }
}

/// `x[r] = norm(x[r])`, rows of `cols` elements.
pub struct RowNorm<'a> {
    pub norm: &'a Norm,
    pub x: Place,
    pub cols: usize,
}

impl Op for RowNorm<'_> {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![KERNELS[2]])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let norm = linear::norm(cx, Some(self.norm));
        let (step, x, residual) = (cx.tables(), cx.address(self.x), linear::norm(cx, None));
        let params =
            PostNormParams { step, norm, residual, product: x, x, cols: self.cols as u32, scale: 1.0 };
        vec![Launch {
            kernel: cx.kernel(KERNELS[2]),
            grid: [cx.shape.rows as u32, 1, 1],
            threads: LINEAR_THREADS,
            shared_bytes: norm_bytes(self.cols) as u32,
            params: words(&params),
        }]
    }
}
