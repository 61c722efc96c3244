//! Bounds of linear layers: one launch before the products normalises and clamps the input, and another one
//! clamps the output in place. Such layers are never fused with the rest of their stage, so that the kernels
//! of other layers know nothing of bounds.

use super::cx::{Cx, Place, words};
use super::driver::Launch;
use super::input::{self, Input};
use super::kernel_name::KernelName;
use super::params::{ClampParams, LINEAR_HEADER_BYTES, LINEAR_THREADS, NormParams};
use sterna_program::{Linear, RowsOf};

pub const KERNEL: KernelName = KernelName::single("clamp");

/// The kernel for a layer that may have bounds.
///
/// # Errors
/// The missing feature, for a message.
pub fn kernel(linear: &Linear, input: &Input<'_>) -> Result<Option<KernelName>, String> {
    if linear.clamp.is_none() {
        return Ok(None);
    }
    let others = [
        (input.rows == RowsOf::Outputs, "for the rows of outputs"),
        (linear.basis.is_some(), "with a rotated basis"),
        (linear.norm.is_some() && input.norm.is_some(), "with a second norm"),
        (!linear.lora.is_empty(), "with adapters"),
    ];
    match others.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, what)) => Err(format!("bounds of a layer {what}")),
        None => Ok(Some(KERNEL)),
    }
}

/// Normalises and clamps an input, and writes the result to `Bases::prepared`.
pub fn of_input(cx: &Cx<'_>, bounds: [f32; 2], input: &Input<'_>) -> Launch {
    let cols = cx.p.buf_decl(input.x).cols;
    let norm = input::norm(cx, input.norm);
    launch(cx, bounds, norm, [cx.buf(input.x), cx.memory.bases.prepared], cols)
}

/// Clamps the output of a layer, of `cols` elements per row of the step.
pub fn of_output(cx: &Cx<'_>, bounds: [f32; 2], place: Place, cols: usize) -> Launch {
    launch(cx, bounds, input::norm(cx, None), [cx.address(place); 2], cols)
}

fn launch(cx: &Cx<'_>, bounds: [f32; 2], norm: NormParams, [x, to]: [u64; 2], cols: usize) -> Launch {
    let [lower, upper] = bounds;
    let params = ClampParams { step: cx.tables(), norm, x, to, cols: cols as u32, lower, upper, reserved: 0 };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [cx.shape.rows as u32, 1, 1],
        threads: LINEAR_THREADS,
        shared_bytes: LINEAR_HEADER_BYTES,
        params: words(&params),
    }
}
