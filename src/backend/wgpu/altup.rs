//! Alternating updates (AltUp): one dispatch per residual stream, because kernels may have at most eight
//! storage buffers, and one workgroup per row for equal magnitudes and for the cutoff of a gate.

use wgpu::Buffer;

use super::linear::ABSENT;
use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{AltUpCorrect, AltUpPredict, Buf, Rescale, RowsOf, STREAMS};

pub fn predict<'a>(cx: &Cx<'a>, s: &AltUpPredict) -> Vec<Dispatch<'a>> {
    let AltUpPredict { c, w, x, active, out, y } = *s;
    let cols = cx.p.buf_decl(y).cols as u32;
    let (memory, of_stream) = (cx.memory, (STREAMS * STREAMS) as u32);
    let [c, x0, x1, x2, x3] = [c, x[0], x[1], x[2], x[3]].map(|buf| &memory.bufs[buf.0 as usize]);
    let streams = out.into_iter().enumerate().chain([(active, y)]);
    let of = |(stream, out): (usize, Buf)| Dispatch {
        kernels: vec![(usize::MAX, Kernel::AltUp("predict"))],
        params: vec![cols, cx.constant(w) + of_stream * stream as u32, stream as u32],
        buffers: vec![
            &memory.step.buffer,
            &memory.constants,
            c,
            x0,
            x1,
            x2,
            x3,
            &memory.bufs[out.0 as usize],
        ],
        grid: Grid::Rows { x: cols, rows: RowsOf::Step },
    };
    streams.map(of).collect()
}

pub fn correct<'a>(cx: &Cx<'a>, s: &AltUpCorrect) -> Vec<Dispatch<'a>> {
    let AltUpCorrect { c, w, y, predicted, active, x, factors, scaled } = *s;
    let cols = cx.p.buf_decl(y).cols as u32;
    let memory = cx.memory;
    let [c, y, scaled] = [c, y, scaled].map(|buf| &memory.bufs[buf.0 as usize]);
    let [predicted, x] = [predicted, x].map(|bufs| bufs.map(|buf| &memory.bufs[buf.0 as usize]));
    let of = |stream: usize| {
        let w = cx.constant(w) + (STREAMS * stream) as u32;
        let (kernel, params, [from, to]) = match stream == active {
            true => ("active", vec![cols, w, cx.constant(factors)], [x[stream], scaled]),
            false => ("correct", vec![cols, w], [predicted[stream], x[stream]]),
        };
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::AltUp(kernel))],
            params,
            buffers: vec![&memory.step.buffer, &memory.constants, c, y, predicted[active], from, to],
            grid: Grid::Rows { x: cols, rows: RowsOf::Step },
        }
    };
    (0..STREAMS).map(of).collect()
}

pub fn rescale<'a>(cx: &Cx<'a>, s: &Rescale) -> Dispatch<'a> {
    let Rescale { like, y, floor, mean } = *s;
    let cols = cx.p.buf_decl(like).cols as u32;
    let bufs = [like].into_iter().chain(y).chain(mean).map(|buf| &cx.memory.bufs[buf.0 as usize]);
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::AltUp(if mean.is_some() { "mean" } else { "rescale" }))],
        params: vec![cols, floor.to_bits()],
        buffers: [&cx.memory.step.buffer].into_iter().chain(bufs).collect(),
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    }
}

/// Subtracts from rows of a gate, `cols` elements each, their mean and `cutoff` standard deviations, replaces
/// what is below 0 by 0, and applies an activation function, in a layer's parameters.
pub fn cut<'a>(cx: &Cx<'a>, gate: &'a Buffer, cols: usize, cutoff: f32, act: Option<u32>) -> Dispatch<'a> {
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::Cut)],
        params: vec![cols as u32, cutoff.to_bits(), act.unwrap_or(ABSENT)],
        buffers: vec![&cx.memory.step.buffer, gate],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    }
}
