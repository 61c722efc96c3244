//! A product added to the residual stream after one of the two is normalised: one block per row.

use super::cx::{Cx, words};
use super::driver::{Address, Launch};
use super::linear;
use super::linear::geometry::norm_bytes;
use super::params::{LINEAR_THREADS, PostNormParams};
use sterna_program::Norm;

/// The kernel that normalises the product only, and the one that also normalises the residual.
pub const KERNELS: [&str; 2] = ["post_norm", "post_norm__residual"];

/// The kernel for a stage.
pub fn kernel(norms_residual: bool) -> &'static str {
    KERNELS[usize::from(norms_residual)]
}

/// The norms of the product and of the residual.
pub type Norms<'a> = [Option<&'a Norm>; 2];

/// `x[r] = residual(x[r]) + norm(product[r])`, rows of `cols` elements.
pub fn launch(cx: &Cx<'_>, norms: Norms<'_>, product: Address, x: Address, cols: usize) -> Launch {
    let name = kernel(norms[1].is_some());
    let [norm, residual] = norms.map(|norm| linear::norm(cx, norm));
    let step = cx.tables();
    let params = PostNormParams { step, norm, residual, product, x, cols: cols as u32, reserved: 0 };
    Launch {
        kernel: cx.kernel(name),
        grid: [cx.shape.rows as u32, 1, 1],
        threads: LINEAR_THREADS,
        shared_bytes: norm_bytes(cols) as u32,
        params: words(&params),
    }
}
