//! A Mamba-2 recurrence: one block per head and sequence, then one per group of heads and row.

use super::cx::{Cx, words};
use super::driver::{self, Launch};
use super::kernel_name::KernelName;
use super::linear;
use super::op::Op;
use super::params::{
    MAMBA_GATE_THREADS, MAMBA_MAX_DIM, MAMBA_MAX_KEYS, MAMBA_PART, MAMBA_THREADS, MambaParams,
};
use sterna_program::{Mamba, Program, StateDecl};

pub const KERNELS: [KernelName; 2] = [KernelName::single("mamba_scan"), KernelName::single("mamba_gate")];

/// Threads that each own a column of a head's values and a part of its keys.
fn threads(decl: &StateDecl) -> usize {
    decl.head_dim * decl.key_dim.div_ceil(MAMBA_PART as usize)
}

impl Op for &Mamba {
    fn kernels(&self, p: &Program, _: driver::Limits) -> Result<Vec<KernelName>, String> {
        let decl = p.state_decl(self.state);
        let fits = decl.head_dim <= MAMBA_MAX_DIM as usize
            && decl.key_dim <= MAMBA_MAX_KEYS as usize
            && threads(decl) <= MAMBA_THREADS as usize;
        match fits {
            true => Ok(KERNELS.to_vec()),
            false => Err(format!("mamba with heads of {} and keys of {}", decl.head_dim, decl.key_dim)),
        }
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Mamba { c, z, a, state, decay, dt, skip, ref norm, out } = **self;
        let decl = cx.p.state_decl(state);
        // `check` requires a state without a convolution.
        let StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps: _ } = *decl;
        let [c, z, a, out] = [c, z, a, out].map(|buf| cx.buf(buf));
        let [decay, dt, skip] = [decay, dt, skip].map(|w| cx.weights[w.0 as usize].data);
        let params = MambaParams {
            step: cx.tables(),
            runs: cx.memory.step.runs(),
            c,
            z,
            a,
            decay,
            dt,
            skip,
            norm: linear::norm(cx, norm.as_ref()),
            out,
            matrices: cx.memory.states[state.0 as usize].matrices,
            n_heads: n_heads as u32,
            n_groups: n_key_heads as u32,
            head_dim: head_dim as u32,
            key_dim: key_dim as u32,
        };
        let rows = cx.shape.rows;
        let of = |kernel: KernelName, x: usize, y: usize, threads: u32| Launch {
            kernel: cx.kernel(kernel),
            grid: [x as u32, y as u32, 1],
            threads,
            shared_bytes: 0,
            params: words(&params),
        };
        let [scan, gate] = KERNELS;
        let threads = threads(decl).next_multiple_of(32) as u32;
        vec![
            of(scan, n_heads, cx.p.limits.seqs.min(rows), threads),
            of(gate, n_key_heads, rows, MAMBA_GATE_THREADS),
        ]
    }
}
