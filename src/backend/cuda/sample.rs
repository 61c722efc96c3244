//! The largest logit of each row, by several blocks that meet in one atomic maximum.

use super::driver::Launch;
use super::params::{SAMPLE_THREADS, SampleParams};
use super::{Cx, words};
use crate::program::Sample;

/// Name of the kernel.
pub const KERNEL: &str = "sample";

/// Logits that one thread looks at, about.
const LOGITS_A_THREAD: usize = 16;

pub fn launch(cx: &Cx<'_>, s: &Sample) -> Launch {
    let n_vocab = cx.p.buf_decl(s.logits).cols;
    let blocks = n_vocab.div_ceil(SAMPLE_THREADS as usize * LOGITS_A_THREAD) as u32;
    let params = SampleParams {
        step: cx.memory.step.tables(),
        logits: cx.memory.bufs[s.logits.0 as usize],
        tokens: cx.memory.tokens,
        best: cx.memory.best,
        arrived: cx.memory.sample_arrived,
        n_vocab: n_vocab as u32,
        reserved: 0,
    };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [blocks.min(cx.resident_blocks()), cx.shape.outputs as u32, 1],
        threads: SAMPLE_THREADS,
        // One candidate a warp.
        shared_bytes: SAMPLE_THREADS / 32 * 8,
        params: words(&params),
    }
}
