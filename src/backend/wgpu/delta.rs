//! A gated delta net: one workgroup per head and run of a sequence's rows, and then the convolution's
//! history.

use super::shader::{Kernel, MAX_STATE_DIM};
use super::states::tails_at;
use super::{Cx, Dispatch, Grid, linear};
use sterna_program::{Delta, Program, StateDecl};

pub fn missing(p: &Program, s: &Delta) -> Option<String> {
    let head_dim = p.state_decl(s.state).head_dim;
    (head_dim > MAX_STATE_DIM).then(|| format!("delta with heads of {head_dim}"))
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Delta) -> Vec<Dispatch<'a>> {
    let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = *s;
    let (decl, memory) = (cx.p.state_decl(state), cx.memory);
    // `check` requires values as long as keys.
    let StateDecl { n_heads, n_key_heads, head_dim, key_dim: _, taps } = *decl;
    let [u, z, a, b, out] = [u, z, a, b, out].map(|buf| &memory.bufs[buf.0 as usize]);
    let states = &memory.states[state.0 as usize];
    let mut params = linear::norm(cx, Some(norm)).to_vec();
    params.extend([n_heads, n_key_heads, head_dim, taps].map(|n| n as u32));
    params.extend([conv, decay, dt].map(|w| cx.constant(w)));
    params.extend([eps.to_bits(), tails_at(decl, &cx.p.limits) as u32, u32::from(grouped)]);
    let (step, constants) = (&memory.step.buffer, &memory.constants);
    let dispatch = |kernel, buffers, x: usize| Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params: params.clone(),
        buffers,
        grid: Grid::Runs { x: x as u32 },
    };
    vec![
        dispatch(Kernel::Delta, vec![step, constants, u, z, a, b, states, out], n_heads),
        dispatch(Kernel::DeltaTail, vec![step, constants, u, states], decl.channels()),
    ]
}
