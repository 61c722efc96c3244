//! The norm of a product that is added to the residual stream: a block a row.

use super::driver::{Address, Launch};
use super::linear::{self, norm_bytes};
use super::params::{LINEAR_THREADS, PostNormParams};
use super::{Cx, words};
use sterna_program::Norm;

pub const KERNEL: &str = "post_norm";

/// `x[r] += norm(product[r])`, rows of `cols` elements.
pub fn launch(cx: &Cx<'_>, norm: &Norm, product: Address, x: Address, cols: usize) -> Launch {
    let norm = linear::norm(cx, Some(norm));
    let params = PostNormParams { step: cx.tables(), norm, product, x, cols: cols as u32, reserved: 0 };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [cx.shape.rows as u32, 1, 1],
        threads: LINEAR_THREADS,
        shared_bytes: norm_bytes(cols) as u32,
        params: words(&params),
    }
}
