//! Picks a token from each row of logits.

use super::Cx;
use crate::program::{Sample, sampling};

pub fn run(cx: &mut Cx<'_>, s: &Sample) {
    let logits = &cx.bufs[s.logits.0 as usize];
    let n_vocab = logits.cols;
    let rows = logits.rows(cx.step.sampling.len()).chunks_exact(n_vocab);
    for ((logits, how), token) in rows.zip(cx.step.sampling).zip(&mut *cx.tokens) {
        *token = sampling::pick(logits, how, &mut cx.scratch.sampling);
    }
    for (output, seq) in cx.step.kept_picks() {
        let picks = &mut cx.picks[seq as usize];
        *picks = [Some(cx.tokens[output]), picks[0]];
    }
}
