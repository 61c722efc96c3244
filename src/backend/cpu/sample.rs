//! Picks a token from each row of logits.

use super::Cx;
use crate::program::{Sample, sampling};

pub fn run(cx: &mut Cx<'_>, s: &Sample) {
    let logits = &cx.bufs[s.logits.0 as usize];
    let n_vocab = logits.cols;
    let rows = logits.rows(cx.step.sampling.len()).chunks_exact(n_vocab);
    let scratch = &mut cx.scratch.sampling;
    let picked =
        rows.zip(cx.step.sampling).map(|(logits, how)| Some(sampling::pick(logits, how.as_ref()?, scratch)));
    cx.tokens.clear();
    cx.tokens.extend(picked);
    for (output, seq, _) in cx.step.kept_picks() {
        let picks = &mut cx.picks[seq as usize];
        *picks = [cx.tokens[output], picks[0]];
    }
}
