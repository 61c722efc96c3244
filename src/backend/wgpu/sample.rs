//! A token of each row: workgroups that find the largest logit of a stretch each, and one that compares these
//! or draws.

use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Sample, Sampling, sampling};

/// Words of a row's sampling.
pub const HOW: usize = 8;

/// In place of a slot: no later step is fed with this pick.
pub const NO_SLOT: u32 = u32::MAX;

/// Logits that one thread looks at, about, and threads of a workgroup.
const LOGITS_A_BLOCK: usize = 16 * 256;

/// Workgroups that look for the largest logit.
pub fn blocks(n_vocab: usize) -> usize {
    n_vocab.div_ceil(LOGITS_A_BLOCK)
}

/// For a row that the kernel picks nothing from: it takes the largest logit, which is not read.
pub fn nothing() -> [u32; HOW] {
    params(&Sampling::GREEDY, NO_SLOT)
}

/// Parameters of a row that the kernel picks from: `How` in shaders/sample.wgsl. The random number is made
/// here, where there are 64-bit integers.
///
/// `slot` is the slot that keeps the pick, or [`NO_SLOT`].
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
