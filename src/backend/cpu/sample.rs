//! Samples a token from each row of logits.

use super::cx::{Cx, Pick};
use super::pool::Grid;
use sterna_program::{Sample, sampling};

pub fn run(cx: &mut Cx<'_>, s: &Sample) {
    let Sample { logits } = *s;
    let logits = &cx.bufs[logits.0 as usize];
    let n_vocab = logits.cols;
    let how = cx.step.sampling;
    cx.tokens.clear();
    cx.tokens.resize(how.len(), None);
    let mut grids = [((), Grid::new(&mut cx.tokens[..], 1))];
    cx.pool.tiles_with(&mut cx.scratch.sampling, &mut grids, 1, 1, |(), mut tile, scratch| {
        let row = tile.rows().start;
        let logits = &logits.rows(row + 1)[row * n_vocab..];
        tile.row_mut(row)[0] = how[row].as_ref().map(|how| Pick {
            token: sampling::pick(logits, how, scratch),
            from_broken: sampling::is_broken(logits),
        });
    });
    for (output, seq, _) in cx.step.kept_picks() {
        let picks = &mut cx.picks[seq as usize];
        *picks = [cx.tokens[output], picks[0]];
    }
}
