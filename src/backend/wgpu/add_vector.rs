//! A vector that is added to the residual stream.

use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{AddVector, RowsOf};

pub fn dispatch<'a>(cx: &Cx<'a>, s: &AddVector) -> Dispatch<'a> {
    let AddVector { x, v } = *s;
    let dim = cx.p.buf_decl(x).cols as u32;
    let memory = cx.memory;
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::AddVector)],
        params: vec![dim, cx.constant(v)],
        buffers: vec![&memory.step.buffer, &memory.constants, &memory.bufs[x.0 as usize]],
        grid: Grid::Rows { x: dim, rows: RowsOf::Step },
    }
}
