//! Token (and position) embedding.

use super::linear::CpuWeight;
use super::{Cx, StoredWeight};
use crate::BackendError;
use sterna_program::{Embed, Row};

pub fn run(cx: &mut Cx<'_>, s: &Embed) -> Result<(), BackendError> {
    let rows = cx.step.rows;
    let table = cx.weights.get(s.table);
    let positions = s.positions.map(|positions| cx.weights.get(positions));
    let x = &mut cx.bufs[s.x.0 as usize];
    let dim = x.cols;
    let picks = &*cx.picks;
    let token = |row: &Row| match row.token {
        Row::PICKED => picks[row.seq as usize][0].expect("a pick for the row's slot").token,
        id => id,
    };
    let basis = s.basis.map(|basis| &cx.bases[basis.0 as usize]);
    let scale = |x: &mut [f32]| {
        if let Some(basis) = basis {
            basis.turn_back(x);
        }
        if s.scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= s.scale);
        }
    };
    match table {
        StoredWeight::Memory(table) => cx.pool.chunks_mut(x.rows_mut(rows.len()), dim, |i, x| {
            decode_row(table, token(&rows[i]), x);
            scale(x);
        }),
        StoredWeight::File(table) => {
            for (row, x) in rows.iter().zip(x.rows_mut(rows.len()).chunks_exact_mut(dim)) {
                table.decode_row(token(row) as usize, cx.file_row, x)?;
                scale(x);
            }
        }
    }
    if let Some(positions) = positions {
        let position = &mut cx.scratch.position[..dim];
        for (row, x) in rows.iter().zip(x.rows_mut(rows.len()).chunks_exact_mut(dim)) {
            match positions {
                StoredWeight::Memory(positions) => decode_row(positions, row.pos, position),
                StoredWeight::File(positions) => {
                    positions.decode_row(row.pos as usize, cx.file_row, position)?;
                }
            }
            x.iter_mut().zip(&*position).for_each(|(x, p)| *x += p);
        }
    }
    Ok(())
}

fn decode_row(w: &CpuWeight, row: u32, out: &mut [f32]) {
    let decoded = w.ty.decode_row(&w.bytes, w.rows, row as usize, out);
    decoded.expect("the weight's bytes were counted, and the step was checked");
}
