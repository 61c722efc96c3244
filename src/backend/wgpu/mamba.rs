//! A Mamba-2 recurrence: one workgroup per head and run of a sequence's rows, then one per group and row.

use super::shader::Kernel;
use super::{Cx, Dispatch, Grid, linear};
use sterna_program::{Mamba, RowsOf, StateDecl};

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Mamba) -> Vec<Dispatch<'a>> {
    let Mamba { c, z, a, state, decay, dt, skip, ref norm, out } = *s;
    let memory = cx.memory;
    // `check` requires a state without a convolution.
    let StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps: _ } = *cx.p.state_decl(state);
    let [c, z, a, out] = [c, z, a, out].map(|buf| &memory.bufs[buf.0 as usize]);
    let mut params = linear::norm(cx, norm.as_ref()).to_vec();
    params.extend([n_heads, n_key_heads, head_dim, key_dim].map(|n| n as u32));
    params.extend([decay, dt, skip].map(|w| cx.constant(w)));
    let (step, constants) = (&memory.step.buffer, &memory.constants);
    let dispatch = |kernel, buffers, grid| Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params: params.clone(),
        buffers,
        grid,
    };
    let states = &memory.states[state.0 as usize];
    vec![
        dispatch(Kernel::Mamba, vec![step, constants, c, a, states, out], Grid::Runs { x: n_heads as u32 }),
        dispatch(
            Kernel::MambaGate,
            vec![step, constants, z, out],
            Grid::Rows { x: n_key_heads as u32, rows: RowsOf::Step },
        ),
    ]
}
