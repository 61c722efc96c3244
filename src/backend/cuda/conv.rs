//! A convolution over the rows of each sequence: one launch, or two for the rows of a prompt.

use super::cx::{Cx, words};
use super::delta::is_of_prompts;
use super::driver::{self, Launch};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{CONV_ROWS, CONV_THREADS, ConvParams};
use sterna_program::{Conv, Program};

/// The kernel for a few rows of each sequence, and those for prompts.
pub const KERNELS: [KernelName; 3] =
    [KernelName::single("conv"), KernelName::single("conv_rows"), KernelName::single("conv_tail")];

impl Op for &Conv {
    fn kernels(&self, _: &Program, _: driver::Limits) -> Result<Vec<KernelName>, String> {
        Ok(KERNELS.to_vec())
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Conv { u, before, after, state, w, bias, silu, out } = **self;
        let decl = cx.p.state_decl(state);
        let channels = decl.channels();
        let vector = |w: sterna_program::Weight| cx.weights[w.0 as usize].data;
        let params = ConvParams {
            step: cx.tables(),
            runs: cx.memory.step.runs(),
            u: cx.buf(u),
            before: before.map_or(0, |buf| cx.buf(buf)),
            after: after.map_or(0, |buf| cx.buf(buf)),
            w: vector(w),
            bias: bias.map_or(0, vector),
            out: cx.buf(out),
            tails: cx.memory.states[state.0 as usize].tails,
            channels: channels as u32,
            taps: decl.taps as u32,
            silu: u32::from(silu),
            reserved: 0,
        };
        let (rows, seqs) = (cx.shape.rows, cx.p.limits.seqs);
        let of = |kernel: KernelName, y: usize| Launch {
            kernel: cx.kernel(kernel),
            grid: [channels.div_ceil(CONV_THREADS as usize) as u32, y as u32, 1],
            threads: CONV_THREADS,
            shared_bytes: 0,
            params: words(&params),
        };
        let ([few, of_rows, tail], runs) = (KERNELS, seqs.min(rows));
        match is_of_prompts(cx.shape, &cx.p.limits) {
            true => vec![of(of_rows, rows.div_ceil(CONV_ROWS as usize)), of(tail, runs)],
            false => vec![of(few, runs)],
        }
    }
}
