//! Picks a token from each row of logits.

use super::Cx;
use super::pool::Grid;
use crate::program::{Sample, sampling};

pub fn run(cx: &mut Cx<'_>, s: &Sample) {
    let logits = &cx.bufs[s.logits.0 as usize];
    let n_vocab = logits.cols;
    let sampling = cx.step.sampling;
    let mut grids = [((), Grid::new(&mut cx.tokens[..sampling.len()], 1))];
    cx.pool.tiles_with(&mut cx.scratch.sampling, &mut grids, 1, 1, |(), mut tile, scratch| {
        let row = tile.rows().start;
        let logits = &logits.rows(row + 1)[row * n_vocab..];
        tile.row_mut(row)[0] = sampling::pick(logits, &sampling[row], scratch);
    });
    for (output, seq) in cx.step.kept_picks() {
        let picks = &mut cx.picks[seq as usize];
        *picks = [Some(cx.tokens[output]), picks[0]];
    }
}
