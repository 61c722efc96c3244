//! Picks a token per row: a draw from the largest logits, or the largest. Each block finds the largest of a
//! stretch, and the last block draws.

use super::cx::{Cx, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{
    SAMPLE_CHANGES, SAMPLE_MAX, SAMPLE_SHARED_BYTES, SAMPLE_STRETCH, SAMPLE_THREADS, SampleParams,
};
use crate::device::sampling;
use sterna_program::{Program, Sample};

pub const KERNEL: KernelName = KernelName::single("sample");

/// Maximum number of tokens per row whose logits can be changed.
pub const MAX_CHANGES: usize = SAMPLE_CHANGES as usize;

const _: () = assert!(SAMPLE_MAX == sampling::MAX_TOP_K);

/// Blocks that share a row of logits.
fn stretches(n_vocab: usize) -> usize {
    n_vocab.div_ceil(SAMPLE_STRETCH as usize)
}

/// Bytes of the candidates that the blocks of a row write.
pub fn candidate_bytes(n_vocab: usize) -> u64 {
    8 * (SAMPLE_MAX as usize * stretches(n_vocab)) as u64
}

impl Op for &Sample {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![KERNEL])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Sample { logits } = **self;
        let n_vocab = cx.p.buf_decl(logits).cols;
        let params = SampleParams {
            step: cx.tables(),
            sampling: cx.memory.step.sampling(),
            changes: cx.memory.step.changes(),
            logits: cx.buf(logits),
            tokens: cx.memory.tokens,
            picked: cx.memory.picks.newest(),
            mailboxes: cx.memory.picks.mailboxes(),
            largest: cx.memory.candidates,
            arrived: cx.memory.sample_arrived,
            n_vocab: n_vocab as u32,
            reserved: 0,
        };
        vec![Launch {
            kernel: cx.kernel(KERNEL),
            grid: [stretches(n_vocab) as u32, cx.shape.outputs as u32, 1],
            threads: SAMPLE_THREADS,
            shared_bytes: SAMPLE_SHARED_BYTES,
            params: words(&params),
        }]
    }
}
