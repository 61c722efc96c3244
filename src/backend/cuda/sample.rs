//! Picks a token per row: a draw from the largest logits, or the largest. Each block finds the largest of a
//! stretch, and the last block draws.

use super::driver::Launch;
use super::params::{
    NO_MAILBOX, SAMPLE_CHANGES, SAMPLE_MOST, SAMPLE_SHARED_BYTES, SAMPLE_STRETCH, SAMPLE_THREADS,
    SampleParams, StepSampling,
};
use super::{Cx, words};
use crate::device::sampling;
use sterna_program::{Sample, Sampling};

pub const KERNEL: &str = "sample";

/// Maximum number of tokens per row whose logits can be changed.
pub const MOST_CHANGES: usize = SAMPLE_CHANGES as usize;

const _: () = assert!(SAMPLE_MOST == sampling::MOST);

/// Parameters of a row that the kernel picks nothing for: it takes the largest logit, which is not read.
pub fn nothing() -> StepSampling {
    params(&Sampling::GREEDY, NO_MAILBOX, 0)
}

/// Parameters of a row that the kernel picks a token for, including the word of host memory that receives the
/// token, and the number of changed logits.
pub fn params(how: &Sampling, mailbox: u32, changes: u32) -> StepSampling {
    StepSampling {
        temperature: how.temperature,
        top_p: how.top_p,
        min_p: how.min_p,
        top_k: if how.is_greedy() { 1 } else { how.top_k },
        seed: how.seed,
        counter: how.counter,
        mailbox,
        changes,
        repeat_penalty: how.repeat_penalty,
        presence_penalty: how.presence_penalty,
        frequency_penalty: how.frequency_penalty,
        reserved: 0,
    }
}

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
