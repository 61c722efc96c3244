//! A Mamba-2 recurrence: row by row, then the gate and the norm.
//!
//! The rows of a sequence are sequential, so tasks are split by head: each owns the values of a head and its
//! part of the state. A row's output does not depend, to the bit, on how the rows of its sequence are divided
//! into steps.

use super::cx::{Cx, two};
use super::delta::softplus;
use super::norm::RowNorm;
use super::pool::Grid;
use sterna_cpu_kernels::real::exp;
use sterna_program::{Act, Mamba, StateDecl};

pub fn run(cx: &mut Cx<'_>, s: &Mamba) {
    let Mamba { c, z, a, state, decay, dt, skip, ref norm, out } = *s;
    let (step, kernels, pool) = (cx.step, cx.k.real, cx.pool);
    let n = step.rows.len();
    let states = &mut cx.states[state.0 as usize];
    // `check` requires a state without a convolution.
    let StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps: _ } = states.decl;
    let (channels, value_cols, per_group) =
        (states.decl.channels(), n_heads * head_dim, n_heads / n_key_heads);
    let [decay, dt, skip] = [decay, dt, skip].map(|w| cx.weights.vector(w));
    let runs = &mut cx.scratch.runs;
    states.begin(step, runs);

    let bufs = [c, a, out].map(|buf| buf.0 as usize);
    let [c, a, to] = cx.bufs.get_disjoint_mut(bufs).expect("three buffers");
    let (c, a) = (c.rows(n), a.rows(n));
    let (to, runs, piece) = (to.rows_mut(n), &*runs, head_dim * key_dim);
    states.advance(step, pool, runs, |matrices, runs| {
        let grid = Grid::new(&mut *to, value_cols);
        pool.tiles_and_pieces(runs, grid, head_dim, matrices, piece, |_, mut tile, state| {
            let head = tile.cols().start / head_dim;
            for row in tile.rows() {
                let of_row = &c[row * channels..][..channels];
                let x = &of_row[head * head_dim..][..head_dim];
                let (keys, queries) = of_row[value_cols..].split_at(n_key_heads * key_dim);
                let of_group = head / per_group * key_dim..(head / per_group + 1) * key_dim;
                let size = softplus(a[row * n_heads + head] + dt[head]);
                let factor = exp(decay[head] * size);
                let y = tile.row_mut(row);
                y.iter_mut().zip(x).for_each(|(y, x)| *y = skip[head] * x);
                let of_keys = keys[of_group.clone()].iter().zip(&queries[of_group]);
                for (state, (key, query)) in state.chunks_exact_mut(head_dim).zip(of_keys) {
                    let write = size * key;
                    for ((state, x), y) in state.iter_mut().zip(x).zip(&mut *y) {
                        *state = factor * *state + write * x;
                        *y += *state * query;
                    }
                }
            }
        });
    });

    let norm = norm.as_ref().map(|norm| cx.weights.norm(norm));
    let (z, out) = two(cx.bufs, z, out);
    let z = z.rows(n);
    let mut grids = [((), Grid::new(out.rows_mut(n), value_cols))];
    pool.tiles(&mut grids, 1, per_group * head_dim, |(), mut tile| {
        let (row, first) = (tile.rows().start, tile.cols().start);
        let out = tile.row_mut(row);
        (kernels.gate)(Act::Silu, &z[row * value_cols + first..][..out.len()], out);
        if let Some(norm) = norm {
            RowNorm { weight: &norm.weight[first..][..out.len()], ..norm }.apply_in_place(kernels, out);
        }
    });
}
