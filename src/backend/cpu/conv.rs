//! A convolution over the rows of each sequence, with gates. A row's output does not depend, to the bit, on
//! how the rows of its sequence are divided into steps.

use super::cx::{Cx, two};
use super::pool::Grid;
use super::states::Window;
use sterna_program::{Act, Conv};

/// Elements of one task.
const CHUNK: usize = 8192;

/// Channels of one task.
const WIDTH: usize = 512;

pub fn run(cx: &mut Cx<'_>, s: &Conv) {
    let Conv { u, before, after, state, w, bias, silu, out } = *s;
    let (step, kernels, pool) = (cx.step, cx.k.real, cx.pool);
    let n = step.rows.len();
    let states = &mut cx.states[state.0 as usize];
    let (channels, taps) = (states.decl.channels(), states.decl.taps);
    let w = cx.weights.vector(w);
    let bias = bias.map(|bias| cx.weights.vector(bias));
    let (product, runs) = (&mut cx.scratch.product, &mut cx.scratch.runs);
    if let Some(before) = before {
        let [u, gate] = [u, before].map(|buf| cx.bufs[buf.0 as usize].rows(n));
        pool.chunks_mut(&mut product[..n * channels], CHUNK, |i, out| {
            let (u, gate) = (&u[i * CHUNK..], &gate[i * CHUNK..]);
            out.iter_mut().zip(u).zip(gate).for_each(|((out, u), gate)| *out = u * gate);
        });
    }

    states.begin(step, runs);
    let (u, to) = two(cx.bufs, u, out);
    let u = if before.is_some() { &product[..n * channels] } else { u.rows(n) };
    let window = Window { u, tails: &states.tails, channels, taps, runs };
    pool.tiles(&mut [((), Grid::new(to.rows_mut(n), channels))], 1, WIDTH, |(), mut tile| {
        let (row, first) = (tile.rows().start, tile.cols().start);
        let out = tile.row_mut(row);
        let rows = window.rows(row, first, out.len());
        for (i, out) in out.iter_mut().enumerate() {
            let (channel, rows) = (first + i, &rows[..taps]);
            let taps = &w[channel * taps..][..taps];
            let start = bias.map_or(0.0, |bias| bias[channel]);
            *out = rows.iter().zip(taps).fold(start, |sum, (row, tap)| sum + row[i] * tap);
        }
        if silu {
            (kernels.act)(Act::Silu, out);
        }
    });
    states.keep_tails(step, runs, u);

    let Some(after) = after else { return };
    let (gate, out) = two(cx.bufs, after, out);
    let gate = gate.rows(n);
    pool.chunks_mut(out.rows_mut(n), CHUNK, |i, out| {
        out.iter_mut().zip(&gate[i * CHUNK..]).for_each(|(out, gate)| *out *= gate);
    });
}
