//! A gated delta net: a block a head of a sequence's rows.

use super::alloc::Allocator;
use super::driver::{Address, Launch};
use super::params::{DELTA_TAPS, DeltaParams};
use super::{Cx, linear, words};
use crate::memory::STATES_PART;
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{Delta, Limits, Program, Stage, StateDecl};

/// Lengths of heads that there are kernels for.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// Where one layer's states lie.
#[derive(Clone, Copy)]
pub struct States {
    /// `[slots, n_heads, head_dim, head_dim]`, transposed.
    matrices: Address,
    /// `[slots, taps - 1, channels]`.
    tails: Address,
}

impl States {
    pub fn new<A: Allocator + ?Sized>(
        on: &mut A,
        decl: &StateDecl,
        limits: &Limits,
    ) -> Result<Self, BackendError> {
        let mut room = |elems: usize| {
            let bytes = (limits.states as u64).saturating_mul(4 * elems as u64);
            on.alloc_for(MemoryKind::Kv, STATES_PART, bytes)
        };
        Ok(Self { matrices: room(decl.matrix_elems())?, tails: room(decl.tail_elems())? })
    }

    /// Where a slot lies, and its bytes; nothing if the page is not of states.
    pub fn stretches(&self, decl: &StateDecl, page: KvPage) -> Vec<(Address, usize)> {
        let KvPage::State(slot) = page else { return Vec::new() };
        let of = |at: Address, elems: usize| (at + u64::from(slot) * 4 * elems as u64, 4 * elems);
        vec![of(self.matrices, decl.matrix_elems()), of(self.tails, decl.tail_elems())]
    }
}

/// All of them.
pub fn kernel_names() -> impl Iterator<Item = String> {
    HEAD_DIMS.into_iter().map(kernel)
}

fn kernel(head_dim: usize) -> String {
    format!("delta__{head_dim}")
}

pub fn kernels(p: &Program, s: &Delta) -> Result<Vec<String>, String> {
    let decl = p.state_decl(s.state);
    if decl.taps != DELTA_TAPS as usize {
        return Err(format!("delta of {} taps", decl.taps));
    }
    if !HEAD_DIMS.contains(&decl.head_dim) {
        return Err(format!("delta with heads of {}", decl.head_dim));
    }
    Ok(vec![kernel(decl.head_dim)])
}

/// Bytes of how many heads of each key have come, of each sequence.
pub fn arrived_bytes(p: &Program) -> u64 {
    let of_stage = |(_, stage): &(String, Stage)| match stage {
        Stage::Delta(s) => 4 * p.limits.seqs * p.state_decl(s.state).n_key_heads,
        _ => 0,
    };
    p.stages.iter().map(of_stage).max().unwrap_or(0) as u64
}

pub fn launch(cx: &Cx<'_>, s: &Delta) -> Launch {
    let decl = cx.p.state_decl(s.state);
    let states = &cx.memory.states[s.state.0 as usize];
    let [u, z, a, b, out] = [s.u, s.z, s.a, s.b, s.out].map(|buf| cx.memory.bufs[buf.0 as usize]);
    let [conv, decay, dt] = [s.conv, s.decay, s.dt].map(|w| cx.weights[w.0 as usize].data);
    let params = DeltaParams {
        step: cx.tables(),
        runs: cx.memory.step.runs(),
        u,
        z,
        a,
        b,
        conv,
        decay,
        dt,
        norm: linear::norm(cx, Some(&s.norm)),
        out,
        matrices: states.matrices,
        tails: states.tails,
        arrived: cx.memory.delta_arrived,
        eps: s.eps,
        n_heads: decl.n_heads as u32,
        n_key_heads: decl.n_key_heads as u32,
        grouped: u32::from(s.grouped),
    };
    let runs = cx.p.limits.seqs.min(cx.shape.rows);
    Launch {
        kernel: cx.kernel(&kernel(decl.head_dim)),
        grid: [decl.n_heads as u32, runs as u32, 1],
        threads: 4 * decl.head_dim as u32,
        shared_bytes: 0,
        params: words(&params),
    }
}
