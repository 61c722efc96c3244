//! Gates: the gate part of attention's query projection, and multiplication by a gate or its sigmoid.

use wgpu::Buffer;

pub use super::shader::By;
use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Buf, RowsOf};

/// Multiplies rows of `x`, `cols` elements each, by a gate.
pub fn dispatch<'a>(cx: &Cx<'a>, gate: &'a Buffer, x: &'a Buffer, cols: usize, by: By) -> Dispatch<'a> {
    over(cx, Kernel::Gate { by }, vec![cols as u32], vec![gate, x], cols)
}

/// Separates queries and gates, which are interleaved by head in `fresh` from element `from_at` on.
pub fn split<'a>(cx: &Cx<'a>, from_at: usize, q: Buf, gate: Buf, head_dim: usize) -> Dispatch<'a> {
    let cols = cx.p.buf_decl(q).cols;
    let [q, gate] = [q, gate].map(|buf| &cx.memory.bufs[buf.0 as usize]);
    let params = [cols, head_dim, from_at].map(|n| n as u32).to_vec();
    over(cx, Kernel::SplitGate, params, vec![&cx.memory.fresh, q, gate], cols)
}

fn over<'a>(
    cx: &Cx<'a>,
    kernel: Kernel,
    params: Vec<u32>,
    buffers: Vec<&'a Buffer>,
    cols: usize,
) -> Dispatch<'a> {
    Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params,
        buffers: [&cx.memory.step.buffer].into_iter().chain(buffers).collect(),
        grid: Grid::Rows { x: cols as u32, rows: RowsOf::Step },
    }
}
