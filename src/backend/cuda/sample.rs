//! A token of each row: the largest logit, by several blocks that meet in one atomic maximum, or a draw from
//! the largest ones, by one block.

use super::driver::Launch;
use super::params::{
    NO_MAILBOX, SAMPLE_MOST, SAMPLE_SHARED_BYTES, SAMPLE_THREADS, SampleParams, StepSampling,
};
use super::{Cx, words};
use crate::device::sampling;
use sterna_program::{Sample, Sampling};

/// Name of the kernel.
pub const KERNEL: &str = "sample";

/// Logits that one thread looks at, about.
const LOGITS_A_THREAD: usize = 16;

const _: () = assert!(SAMPLE_MOST == sampling::MOST);

/// For a row that the kernel picks nothing from: it takes the largest logit, which is not read.
pub fn nothing() -> StepSampling {
    params(&Sampling::GREEDY, NO_MAILBOX)
}

/// Parameters of a row that the kernel picks from: also to which word of the host the token goes.
pub fn params(how: &Sampling, mailbox: u32) -> StepSampling {
    StepSampling {
        temperature: how.temperature,
        top_p: how.top_p,
        min_p: how.min_p,
        top_k: if how.is_greedy() { 1 } else { how.top_k },
        seed: how.seed,
        counter: how.counter,
        mailbox,
        reserved: 0,
    }
}

pub fn launch(cx: &Cx<'_>, s: &Sample) -> Launch {
    let n_vocab = cx.p.buf_decl(s.logits).cols;
    let blocks = n_vocab.div_ceil(SAMPLE_THREADS as usize * LOGITS_A_THREAD) as u32;
    let params = SampleParams {
        step: cx.tables(),
        sampling: cx.memory.step.sampling(),
        logits: cx.memory.bufs[s.logits.0 as usize],
        tokens: cx.memory.tokens,
        picked: cx.memory.picks.newest(),
        mailboxes: cx.memory.picks.mailboxes(),
        best: cx.memory.best,
        arrived: cx.memory.sample_arrived,
        n_vocab: n_vocab as u32,
        reserved: 0,
    };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [blocks.min(cx.resident_blocks()), cx.shape.outputs as u32, 1],
        threads: SAMPLE_THREADS,
        shared_bytes: SAMPLE_SHARED_BYTES,
        params: words(&params),
    }
}
