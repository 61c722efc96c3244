//! Token (and position) embedding.

use super::Cx;
use super::linear::CpuWeight;
use crate::program::{Embed, Row};

pub fn run(cx: &mut Cx<'_>, s: &Embed) {
    let rows = cx.step.rows;
    let table = cx.weights.get(s.table);
    let positions = s.positions.map(|positions| cx.weights.get(positions));
    let x = &mut cx.bufs[s.x.0 as usize];
    let dim = x.cols;
    let picks = &*cx.picks;
    let token = |row: &Row| match row.token {
        Row::PICKED => picks[row.seq as usize][0].expect("a pick for the row's slot"),
        id => id,
    };
    cx.pool.chunks_mut(x.rows_mut(rows.len()), dim, |i, x| {
        decode_row(table, token(&rows[i]), x);
        if s.scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= s.scale);
        }
    });
    if let Some(positions) = positions {
        let position = &mut cx.scratch.position[..dim];
        for (row, x) in rows.iter().zip(x.rows_mut(rows.len()).chunks_exact_mut(dim)) {
            decode_row(positions, row.pos, position);
            x.iter_mut().zip(&*position).for_each(|(x, p)| *x += p);
        }
    }
}

fn decode_row(w: &CpuWeight, row: u32, out: &mut [f32]) {
    let decoded = w.ty.decode_row(&w.bytes, w.rows, row as usize, out);
    decoded.expect("the weight's bytes were counted, and the step was checked");
}
