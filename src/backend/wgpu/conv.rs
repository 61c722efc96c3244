//! A convolution over the rows of each sequence, and then its history.

use super::shader::Kernel;
use super::states::tails_at;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Conv, RowsOf};

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Conv) -> Vec<Dispatch<'a>> {
    let Conv { u, before, after, state, w, bias, silu, out } = *s;
    let (decl, memory) = (cx.p.state_decl(state), cx.memory);
    let channels = decl.channels() as u32;
    let flags = [before.is_some(), after.is_some(), bias.is_some(), silu].map(u32::from);
    let vectors = [cx.constant(w), bias.map_or(0, |bias| cx.constant(bias))];
    let of_state = [channels, decl.taps as u32, tails_at(decl, &cx.p.limits) as u32];
    let params = [&of_state[..], &vectors, &flags].concat();
    // An absent gate is bound to `u`, and not read.
    let [u, before, after, out] =
        [u, before.unwrap_or(u), after.unwrap_or(u), out].map(|buf| &memory.bufs[buf.0 as usize]);
    let states = &memory.states[state.0 as usize];
    let (step, constants) = (&memory.step.buffer, &memory.constants);
    let dispatch = |kernel, buffers: &[_], grid| Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params: params.clone(),
        buffers: [&[step, constants, u, before, after], buffers].concat(),
        grid,
    };
    vec![
        dispatch(Kernel::Conv, &[states, out], Grid::Rows { x: channels, rows: RowsOf::Step }),
        dispatch(Kernel::ConvTail, &[states], Grid::Runs { x: channels }),
    ]
}
