//! A gated delta net: one workgroup per head and run of a sequence's rows, and then the convolution's
//! history.

use super::alloc::Allocator;
use super::shader::{Kernel, MAX_STATE_DIM};
use super::{Cx, Dispatch, Grid, linear};
use crate::memory::STATES_PART;
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{Delta, Limits, Program, StateDecl};

pub fn missing(p: &Program, s: &Delta) -> Option<String> {
    let head_dim = p.state_decl(s.state).head_dim;
    (head_dim > MAX_STATE_DIM).then(|| format!("delta with heads of {head_dim}"))
}

/// Allocates the states of a layer: all matrices, then all tails.
pub fn alloc<A: Allocator>(on: &mut A, decl: &StateDecl, limits: &Limits) -> Result<A::Buffer, BackendError> {
    let bytes = (limits.states as u64).saturating_mul(decl.bytes() as u64);
    on.storage(&format_args!("{} states", limits.states), &[(MemoryKind::Kv, STATES_PART, bytes)])
}

/// Byte offsets and sizes of a slot; empty if the page is not a state.
pub fn stretches(decl: &StateDecl, limits: &Limits, page: KvPage) -> Vec<(u64, usize)> {
    let KvPage::State(slot) = page else { return Vec::new() };
    let of = |at: usize, elems: usize| (4 * (at + slot as usize * elems) as u64, 4 * elems);
    vec![of(0, decl.matrix_elems()), of(tails_at(decl, limits), decl.tail_elems())]
}

fn tails_at(decl: &StateDecl, limits: &Limits) -> usize {
    limits.states * decl.matrix_elems()
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Delta) -> Vec<Dispatch<'a>> {
    let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = *s;
    let (decl, memory) = (cx.p.state_decl(state), cx.memory);
    let StateDecl { n_heads, n_key_heads, head_dim, taps } = *decl;
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
