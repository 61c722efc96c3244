//! Picks a token per row: several workgroups find the largest logits of parts of the row, and one compares
//! these or draws.

use super::shader::{Kernel, LANES};
use super::{Cx, Dispatch, Grid};
use sterna_program::{Sample, Sampling, sampling};

/// Words of a row's sampling parameters.
pub const HOW: usize = 8;

/// Placeholder for a slot if no later step reads the pick as its input.
pub const NO_SLOT: u32 = u32::MAX;

/// Lists of logits per workgroup: one per slot of its 256 threads.
const LISTS: usize = 256 / LANES as usize;

/// Logits per thread (about), times threads of a workgroup.
const LOGITS_A_BLOCK: usize = 16 * 256;

/// Workgroups that search a row for the largest logits.
fn blocks(n_vocab: usize) -> usize {
    n_vocab.div_ceil(LOGITS_A_BLOCK)
}

/// Lists of a row's logits, whose largest are found first.
pub fn lists(n_vocab: usize) -> usize {
    blocks(n_vocab) * LISTS
}

/// Parameters of a row that the host samples: the kernel picks the largest logit, and nothing reads it.
pub fn nothing() -> [u32; HOW] {
    params(&Sampling::GREEDY, NO_SLOT)
}

/// Parameters of a row that the kernel samples: `How` in shaders/sample.wgsl. The random number is computed
/// here, because the kernel has no 64-bit integers.
///
/// `slot` is the slot that stores the pick, or [`NO_SLOT`].
pub fn params(how: &Sampling, slot: u32) -> [u32; HOW] {
    let drawn = sampling::uniform(how.seed, how.counter);
    let high = drawn as f32;
    let low = (drawn - f64::from(high)) as f32;
    let least = how.min_p.min(1.0).ln();
    [
        if how.is_greedy() { 1 } else { how.top_k },
        u32::from(how.min_p > 0.0),
        how.temperature.to_bits(),
        how.top_p.to_bits(),
        least.to_bits(),
        high.to_bits(),
        low.to_bits(),
        slot,
    ]
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &Sample) -> Vec<Dispatch<'a>> {
    let Sample { logits } = *s;
    let (memory, n_vocab) = (cx.memory, cx.p.buf_decl(logits).cols);
    let logits = &memory.bufs[logits.0 as usize];
    let blocks = blocks(n_vocab) as u32;
    let params = vec![n_vocab as u32, blocks];
    vec![
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::SampleBest)],
            params: params.clone(),
            buffers: vec![&memory.step.buffer, logits, &memory.best],
            grid: Grid::Sampled { x: blocks },
        },
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::Sample)],
            params,
            buffers: vec![&memory.step.buffer, logits, &memory.best, &memory.tokens, &memory.picks.newest],
            grid: Grid::Sampled { x: 1 },
        },
    ]
}
