//! A gated delta net: one block per head and sequence, or three launches for the rows of a prompt.

use super::cx::{Cx, Shape, words};
use super::driver::{self, Launch};
use super::kernel_name::KernelName;
use super::linear;
use super::op::Op;
use super::params::{DELTA_COLS, DELTA_ROWS, DELTA_SCAN_THREADS, DELTA_TAPS, DELTA_THREADS, DeltaParams};
use sterna_program::{Delta, Limits, Program, StateDecl};

/// Head lengths for which there are kernels.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// All kernels of the stage.
pub fn all_kernels() -> impl Iterator<Item = KernelName> {
    HEAD_DIMS.into_iter().flat_map(of_heads)
}

/// The kernel for a few rows of each sequence, and those for prompts.
fn of_heads(head_dim: usize) -> [KernelName; 4] {
    ["delta", "delta_convolve", "delta_scan", "delta_gate"]
        .map(|stage| KernelName::single(stage).of_heads(head_dim))
}

/// True if steps of a shape are prompts, where sequences have several rows each.
pub fn is_of_prompts(shape: Shape, limits: &Limits) -> bool {
    shape.rows > DELTA_ROWS as usize && (shape.tiled || shape.rows > 2 * limits.seqs)
}

impl Op for &Delta {
    fn kernels(&self, p: &Program, _: driver::Limits) -> Result<Vec<KernelName>, String> {
        let decl = p.state_decl(self.state);
        if decl.taps != DELTA_TAPS as usize {
            return Err(format!("delta of {} taps", decl.taps));
        }
        if !HEAD_DIMS.contains(&decl.head_dim) {
            return Err(format!("delta with heads of {}", decl.head_dim));
        }
        Ok(of_heads(decl.head_dim).to_vec())
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = **self;
        let decl = cx.p.state_decl(state);
        // `kernels` accepts only one number of taps, and `check` only values as long as keys.
        let StateDecl { n_heads, n_key_heads, head_dim, key_dim: _, taps: _ } = *decl;
        let (states, scratch) = (&cx.memory.states[state.0 as usize], &cx.memory.delta);
        let [u, z, a, b, out] = [u, z, a, b, out].map(|buf| cx.buf(buf));
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
        let of = |kernel: KernelName, x: usize, y: usize, threads: usize| Launch {
            kernel: cx.kernel(kernel),
            grid: [x as u32, y as u32, 1],
            threads: threads as u32,
            shared_bytes: 0,
            params: words(&params),
        };
        let [few, convolve, scan, gate] = of_heads(head_dim);
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
}
