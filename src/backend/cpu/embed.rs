//! Embeddings of tokens, positions and token types.

use super::cx::Cx;
use super::linear::CpuWeight;
use super::weights::StoredWeight;
use crate::BackendError;
use sterna_program::{Embed, Row, Weight};

pub fn run(cx: &mut Cx<'_>, s: &Embed) -> Result<(), BackendError> {
    let Embed { table, stride, first, basis, scale: factor, positions, types, ref lora, x } = *s;
    let rows = cx.step.rows;
    let table = cx.weights.get(table);
    let x = &mut cx.bufs[x.0 as usize];
    let dim = x.cols;
    let picks = &*cx.picks;
    // Row of the table for a row of the step.
    let token = |row: &Row| {
        let token = match row.token {
            Row::PICKED => picks[row.seq as usize][0].expect("a pick for the row's slot").token,
            id => id,
        };
        stride * token + first
    };
    let basis = basis.map(|basis| &cx.bases[basis.0 as usize]);
    let scale = |x: &mut [f32]| {
        if let Some(basis) = basis {
            basis.rotate_back(x);
        }
        if factor != 1.0 {
            x.iter_mut().for_each(|x| *x *= factor);
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
    let mut add = |table: Weight, at: &dyn Fn(&Row) -> u32| {
        let (table, added) = (cx.weights.get(table), &mut cx.scratch.added[..dim]);
        for (row, x) in rows.iter().zip(x.rows_mut(rows.len()).chunks_exact_mut(dim)) {
            match table {
                StoredWeight::Memory(table) => decode_row(table, at(row), added),
                StoredWeight::File(table) => table.decode_row(at(row) as usize, cx.file_row, added)?,
            }
            x.iter_mut().zip(&*added).for_each(|(x, added)| *x += added);
        }
        Ok::<(), BackendError>(())
    };
    positions.map_or(Ok(()), |positions| add(positions, &|row| row.pos))?;
    let pages = cx.step.pages;
    types.map_or(Ok(()), |types| add(types, &|row| pages.token_type(row.seq, row.pos)))?;
    let (tools, x) = ((cx.k, cx.pool, cx.weights), x.rows_mut(rows.len()));
    cx.layers.adapters.add_rows(tools, lora, rows.len(), x, |a, i, to| decode_row(a, token(&rows[i]), to));
    Ok(())
}

fn decode_row(w: &CpuWeight, row: u32, out: &mut [f32]) {
    let decoded = w.ty.decode_row(&w.bytes, w.rows, row as usize, out);
    decoded.expect("the weight's bytes were counted, and the step was checked");
}
