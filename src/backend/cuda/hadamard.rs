//! Rotated bases (Hadamard): rows are normalised and rotated into a basis by a separate launch before the
//! products, and the rows of an embedding are rotated back. A block has one run or several. For a layer that
//! normalises its input a second time, this launch applies the first norm, without a basis.

use super::cx::{Cx, words};
use super::driver::Launch;
use super::input::{self, Input};
use super::kernel_name::KernelName;
use super::params::{HADAMARD_COLS, HADAMARD_MAX_COLS, HadamardParams, LINEAR_HEADER_BYTES, LINEAR_THREADS};
use sterna_program::{Basis, BasisId, Buf, Linear, Program, RowsOf};

pub const KERNEL: KernelName = KernelName::single("hadamard");

/// The kernel for a layer whose input may need this pass; `is_normed` if another norm comes first.
///
/// # Errors
/// The missing feature, for a message.
pub fn kernel(p: &Program, linear: &Linear, is_normed: bool) -> Result<Option<KernelName>, String> {
    let cols = p.weight_decl(linear.w).cols;
    match linear.norm.as_ref().filter(|_| is_normed) {
        Some(_) if !cols.is_multiple_of(4) => Err(format!("a second norm over {cols} columns")),
        Some(_) => Ok(Some(KERNEL)),
        None => basis_kernel(p, linear.basis),
    }
}

/// The kernel for a basis, if there is one.
///
/// # Errors
/// The missing feature, for a message.
pub fn basis_kernel(p: &Program, basis: Option<BasisId>) -> Result<Option<KernelName>, String> {
    let Some(basis) = basis else { return Ok(None) };
    let Basis { block, signs } = &p.bases[basis.0 as usize];
    if *block > HADAMARD_MAX_COLS as usize || !signs.len().is_multiple_of(4) {
        return Err(format!("a rotated basis of {} elements in runs of {block}", signs.len()));
    }
    Ok(Some(KERNEL))
}

/// Rotates an input into a basis, or only normalises it, and writes the result to `Bases::prepared`.
pub fn launch(cx: &Cx<'_>, basis: Option<BasisId>, input: &Input<'_>) -> Launch {
    let norm = input::norm(cx, input.norm);
    let of_outputs = u32::from(input.rows == RowsOf::Outputs);
    let x = cx.buf(input.x);
    let params = params(cx, basis, cx.p.buf_decl(input.x).cols);
    rotate(cx, HadamardParams { norm, x, to: cx.memory.bases.prepared, of_outputs, ..params })
}

/// Rotates the rows of a buffer back out of a basis.
pub fn back(cx: &Cx<'_>, basis: BasisId, x: Buf) -> Launch {
    let params = params(cx, Some(basis), cx.p.buf_decl(x).cols);
    let x = cx.buf(x);
    rotate(cx, HadamardParams { x, to: x, back: 1, ..params })
}

fn params(cx: &Cx<'_>, basis: Option<BasisId>, cols: usize) -> HadamardParams {
    let block = basis.map_or(1, |basis| cx.p.bases[basis.0 as usize].block);
    HadamardParams {
        step: cx.tables(),
        norm: input::norm(cx, None),
        x: 0,
        to: 0,
        signs: basis.map_or(0, |basis| cx.memory.bases.signs[basis.0 as usize]),
        cols: cols as u32,
        block: block as u32,
        factor: (1.0 / (block as f64).sqrt()) as f32,
        of_outputs: 0,
        back: 0,
        reserved: 0,
    }
}

fn rotate(cx: &Cx<'_>, params: HadamardParams) -> Launch {
    let rows = if params.of_outputs == 0 { cx.shape.rows } else { cx.shape.outputs };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [rows as u32, params.cols.div_ceil(params.block.max(HADAMARD_COLS)), 1],
        threads: LINEAR_THREADS,
        shared_bytes: LINEAR_HEADER_BYTES,
        params: words(&params),
    }
}
