//! A gated delta net: one block per head and sequence, or three launches for the rows of a prompt.

use super::alloc::Allocator;
use super::driver::{Address, Launch};
use super::params::{DELTA_COLS, DELTA_ROWS, DELTA_SCAN_THREADS, DELTA_TAPS, DELTA_THREADS, DeltaParams};
use super::{Cx, Shape, linear, words};
use crate::memory::STATES_PART;
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{Delta, Limits, Program, StateDecl};

/// Head lengths for which there are kernels.
const HEAD_DIMS: [usize; 2] = [64, 128];

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

    /// Addresses and bytes of a slot; empty if the page is not a state.
    pub fn stretches(&self, decl: &StateDecl, page: KvPage) -> Vec<(Address, usize)> {
        let KvPage::State(slot) = page else { return Vec::new() };
        let of = |at: Address, elems: usize| (at + u64::from(slot) * 4 * elems as u64, 4 * elems);
        vec![of(self.matrices, decl.matrix_elems()), of(self.tails, decl.tail_elems())]
    }
}

pub fn kernel_names() -> impl Iterator<Item = String> {
    HEAD_DIMS.into_iter().flat_map(of_heads)
}

/// The kernel for a few rows of each sequence, and those for prompts.
fn of_heads(head_dim: usize) -> [String; 4] {
    ["delta", "delta_convolve", "delta_scan", "delta_gate"].map(|kernel| format!("{kernel}__{head_dim}"))
}

pub fn kernels(p: &Program, s: &Delta) -> Result<Vec<String>, String> {
    let decl = p.state_decl(s.state);
    if decl.taps != DELTA_TAPS as usize {
        return Err(format!("delta of {} taps", decl.taps));
    }
    if !HEAD_DIMS.contains(&decl.head_dim) {
        return Err(format!("delta with heads of {}", decl.head_dim));
    }
    Ok(of_heads(decl.head_dim).to_vec())
}

/// Scratch memory that the delta nets of a program use one after the other.
pub struct Scratch {
    /// `[seqs, n_key_heads]`.
    arrived: Address,
    /// `[rows, channels]`, for prompts.
    convolved: Address,
    /// `[rows, n_heads, 2]`, for prompts.
    gates: Address,
}

impl Scratch {
    pub fn new<A: Allocator + ?Sized>(on: &mut A, p: &Program) -> Result<Self, BackendError> {
        let mut room = |elems: fn(&StateDecl, &Limits) -> usize| {
            let most = p.states.iter().map(|decl| elems(decl, &p.limits)).max().unwrap_or(0);
            on.buffer("delta nets", 4 * most as u64)
        };
        Ok(Self {
            arrived: room(|decl, limits| limits.seqs * decl.n_key_heads)?,
            convolved: room(|decl, limits| limits.rows * decl.channels())?,
            gates: room(|decl, limits| 2 * limits.rows * decl.n_heads)?,
        })
    }
}

/// True if steps of a shape are prompts, where sequences have several rows each.
fn is_of_prompts(shape: Shape, limits: &Limits) -> bool {
    shape.rows > DELTA_ROWS as usize && (shape.tiled || shape.rows > 2 * limits.seqs)
}

pub fn launches(cx: &Cx<'_>, s: &Delta) -> Vec<Launch> {
    let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = *s;
    let decl = cx.p.state_decl(state);
    // `kernels` accepts only one number of taps.
    let StateDecl { n_heads, n_key_heads, head_dim, taps: _ } = *decl;
    let (states, scratch) = (&cx.memory.states[state.0 as usize], &cx.memory.delta);
    let [u, z, a, b, out] = [u, z, a, b, out].map(|buf| cx.memory.bufs[buf.0 as usize]);
    let [conv, decay, dt] = [conv, decay, dt].map(|w| cx.weights[w.0 as usize].data);
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
        norm: linear::norm(cx, Some(norm)),
        out,
        matrices: states.matrices,
        tails: states.tails,
        arrived: scratch.arrived,
        convolved: scratch.convolved,
        gates: scratch.gates,
        eps,
        n_heads: n_heads as u32,
        n_key_heads: n_key_heads as u32,
        grouped: u32::from(grouped),
    };
    let rows = cx.shape.rows;
    let runs = cx.p.limits.seqs.min(rows);
    let of = |kernel: &String, x: usize, y: usize, threads: usize| Launch {
        kernel: cx.kernel(kernel),
        grid: [x as u32, y as u32, 1],
        threads: threads as u32,
        shared_bytes: 0,
        params: words(&params),
    };
    let [few, convolve, scan, gate] = &of_heads(head_dim);
    if !is_of_prompts(cx.shape, &cx.p.limits) {
        return vec![of(few, n_heads, runs, 4 * head_dim)];
    }
    let warps = DELTA_THREADS as usize / 32;
    let shares = head_dim / (DELTA_COLS * DELTA_SCAN_THREADS / 32) as usize;
    vec![
        of(
            convolve,
            decl.channels() / head_dim,
            rows.div_ceil(warps * DELTA_ROWS as usize),
            DELTA_THREADS as usize,
        ),
        of(scan, n_heads * shares, runs, DELTA_SCAN_THREADS as usize),
        of(gate, n_heads.div_ceil(warps), rows, DELTA_THREADS as usize),
    ]
}
