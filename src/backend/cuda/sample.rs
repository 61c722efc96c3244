//! Picks a token per row: a draw from the largest logits, or the largest. Each block finds the largest of a
//! stretch, and the last block draws.

use super::cx::{Cx, words};
use super::driver::Launch;
use super::params::{
    SAMPLE_CHANGES, SAMPLE_MOST, SAMPLE_SHARED_BYTES, SAMPLE_STRETCH, SAMPLE_THREADS, SampleParams,
};
use crate::device::sampling;
use sterna_program::Sample;

pub const KERNEL: &str = "sample";

/// Maximum number of tokens per row whose logits can be changed.
pub const MOST_CHANGES: usize = SAMPLE_CHANGES as usize;

const _: () = assert!(SAMPLE_MOST == sampling::MOST);

/// Blocks that share a row of logits.
fn stretches(n_vocab: usize) -> usize {
    n_vocab.div_ceil(SAMPLE_STRETCH as usize)
}

/// Bytes of the candidates that the blocks of a row write.
pub fn candidate_bytes(n_vocab: usize) -> u64 {
    8 * (SAMPLE_MOST as usize * stretches(n_vocab)) as u64
}

pub fn launch(cx: &Cx<'_>, s: &Sample) -> Launch {
    let Sample { logits } = *s;
    let n_vocab = cx.p.buf_decl(logits).cols;
    let params = SampleParams {
        step: cx.tables(),
        sampling: cx.memory.step.sampling(),
        changes: cx.memory.step.changes(),
        logits: cx.memory.bufs[logits.0 as usize],
        tokens: cx.memory.tokens,
        picked: cx.memory.picks.newest(),
        mailboxes: cx.memory.picks.mailboxes(),
        largest: cx.memory.candidates,
        arrived: cx.memory.sample_arrived,
        n_vocab: n_vocab as u32,
        reserved: 0,
    };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [stretches(n_vocab) as u32, cx.shape.outputs as u32, 1],
        threads: SAMPLE_THREADS,
        shared_bytes: SAMPLE_SHARED_BYTES,
        params: words(&params),
    }
}
