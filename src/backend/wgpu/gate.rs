//! Gates: the gate part of attention's query projection, and multiplication by a gate or a function of it;
//! and xIELU, which is applied in place, too.

use wgpu::Buffer;

pub use super::shader::By;
use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Buf, RowsOf, Xielu};

/// Multiplies rows of `x`, `cols` elements each, by a gate.
pub fn dispatch<'a>(cx: &Cx<'a>, gate: &'a Buffer, x: &'a Buffer, cols: usize, by: By) -> Dispatch<'a> {
    over(cx, Kernel::Gate { by }, vec![cols as u32], vec![gate, x], cols)
}

/// Multiplies rows of `x`, `cols` elements each, by the softplus of a gate, each of whose elements is for
/// `each` of `x`.
pub fn softplus<'a>(cx: &Cx<'a>, gate: &'a Buffer, x: &'a Buffer, cols: usize, each: usize) -> Dispatch<'a> {
    let params = [cols, each].map(|n| n as u32).to_vec();
    over(cx, Kernel::Gate { by: By::Softplus }, params, vec![gate, x], cols)
}

/// Applies xIELU to rows of `x`, `cols` elements each.
pub fn xielu<'a>(cx: &Cx<'a>, x: &'a Buffer, cols: usize, of: Xielu) -> Dispatch<'a> {
    let Xielu { positive, negative, beta, eps } = of;
    let numbers = [positive, negative, beta, eps].map(f32::to_bits);
    let params = [cols as u32].into_iter().chain(numbers).collect();
    over(cx, Kernel::Gate { by: By::Xielu }, params, vec![x], cols)
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
