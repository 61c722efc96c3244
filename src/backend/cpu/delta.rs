//! A gated delta net: convolution, recurrence, gated norm.
//!
//! The rows of a sequence are sequential, so tasks are split by head: each owns [`COLUMNS`] elements of a
//! head's values (half as many in heads of other lengths), and the matching part of the state. A row's output
//! does not depend, to the bit, on how the rows of its sequence are divided into steps.

use super::cx::Cx;
use super::pool::Grid;
use super::scratch::delta::Scratch;
use super::states::Window;
use sterna_cpu_kernels::real::{COLUMNS, DeltaRow, HALF_COLUMNS, RealKernels, exp};
use sterna_program::{Act, Delta, StateDecl};

pub fn run(cx: &mut Cx<'_>, s: &Delta) {
    let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = *s;
    let (step, kernels, pool) = (cx.step, cx.k.real, cx.pool);
    let n = step.rows.len();
    let states = &mut cx.states[state.0 as usize];
    // `check` requires values as long as keys.
    let StateDecl { n_heads, n_key_heads, head_dim, key_dim: _, taps } = states.decl;
    let (channels, key_cols, value_cols) =
        (states.decl.channels(), 2 * n_key_heads * head_dim, n_heads * head_dim);
    let [u, z, a, b, out] = [u, z, a, b, out].map(|buf| buf.0 as usize);
    let [conv, decay, dt] = [conv, decay, dt].map(|w| cx.weights.vector(w));
    let norm = cx.weights.norm(norm);
    let (Scratch { keys, values }, runs) = (&mut cx.scratch.delta, &mut cx.scratch.runs);
    let (keys, values) = (&mut keys[..n * key_cols], &mut values[..n * value_cols]);

    states.begin(step, runs);

    // Queries, keys and values are adjacent columns of `u`; the values are written to a buffer of their own.
    let u = cx.bufs[u].rows(n);
    let window = Window { u, tails: &states.tails, channels, taps, runs };
    let mut grids = [(0, Grid::new(&mut *keys, key_cols)), (key_cols, Grid::new(&mut *values, value_cols))];
    pool.tiles(&mut grids, 1, head_dim, |first, mut tile| {
        let (row, cols) = (tile.rows().start, tile.cols());
        let out = tile.row_mut(row);
        let first_channel = first + cols.start;
        let rows = window.rows(row, first_channel, out.len());
        (kernels.convolve)(&rows[..taps], &conv[first_channel * taps..][..out.len() * taps], out);
        if *first == 0 {
            let is_query = cols.start < n_key_heads * head_dim;
            l2(kernels, eps, if is_query { 1.0 / (head_dim as f32).sqrt() } else { 1.0 }, out);
        }
    });
    states.keep_tails(step, runs, u);

    let (keys, runs) = (&*keys, &*runs);
    let [a, b] = [a, b].map(|buf| cx.bufs[buf].rows(n));
    let elems = if head_dim.is_multiple_of(COLUMNS) { COLUMNS } else { HALF_COLUMNS };
    states.advance(step, pool, runs, |matrices, runs| {
        let grid = Grid::new(&mut *values, value_cols);
        pool.tiles_and_pieces(runs, grid, elems, matrices, head_dim * elems, |_, mut tile, state| {
            let head = tile.cols().start / head_dim;
            for row in tile.rows() {
                let of_row = &keys[row * key_cols..][..key_cols];
                let (queries, keys) = of_row.split_at(key_cols / 2);
                let at = head % n_key_heads * head_dim..(head % n_key_heads + 1) * head_dim;
                let of_head = DeltaRow {
                    q: &queries[at.clone()],
                    k: &keys[at],
                    decay: exp(decay[head] * softplus(a[row * n_heads + head] + dt[head])),
                    strength: 1.0 / (1.0 + exp(-b[row * n_heads + head])),
                };
                (kernels.delta)(of_head, state, tile.row_mut(row));
            }
        });
    });

    let (values, rep) = (&*values, n_heads / n_key_heads);
    let [z, out] = cx.bufs.get_disjoint_mut([z, out]).expect("two buffers");
    let z = z.rows(n);
    pool.tiles(&mut [((), Grid::new(out.rows_mut(n), value_cols))], 1, head_dim, |(), mut tile| {
        let row = tile.rows().start;
        let place = tile.cols().start / head_dim;
        let head = if grouped { place % rep * n_key_heads + place / rep } else { place };
        let at = row * value_cols + head * head_dim;
        let out = tile.row_mut(row);
        norm.apply(kernels, &values[at..][..head_dim], out);
        (kernels.gate)(Act::Silu, &z[at..][..head_dim], out);
    });
}

/// `x = x scale / sqrt(sum(x^2) + eps)`.
fn l2(k: &RealKernels, eps: f32, scale: f32, x: &mut [f32]) {
    let factor = scale * (1.0 / ((k.sum_squares)(x, 0.0) + f64::from(eps)).sqrt()) as f32;
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `ln(1 + e^x)`.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
}
