//! Norm, Q, K and V projections, RoPE, the codec's rotation, KV write.

use ggml_types::turboquant::Rotation;

use super::cx::{Cx, two};
use super::norm::RowNorm;
use super::pool::Grid;
use super::rope::RopeTable;
use crate::BackendError;
use sterna_program::AttnIn;

/// Processing of each head of queries, keys or values after its projection.
#[derive(Clone, Copy)]
struct HeadSteps<'a> {
    norm: Option<RowNorm<'a>>,
    rope: Option<&'a RopeTable>,
    rotation: Option<&'a Rotation>,
}

pub fn run(cx: &mut Cx<'_>, s: &AttnIn) -> Result<(), BackendError> {
    let AttnIn { x, ref norm, ref wq, ref wk, ref wv, ref q_norm, ref k_norm, rope, kv, q, gate } = *s;
    let rows = cx.step.rows;
    let n = rows.len();
    let (kernels, weights) = (cx.k.real, cx.weights);
    let kv = &mut cx.kvs[kv.0 as usize];
    let (head_dim, kv_cols) = (kv.head_dim(), kv.n_kv_heads() * kv.head_dim());
    let (x, q, gate) = match gate {
        None => {
            let (x, q) = two(cx.bufs, x, q);
            (x, q, None)
        }
        Some(gate) => {
            let bufs = [x, q, gate].map(|buf| buf.0 as usize);
            let [x, q, gate] = cx.bufs.get_disjoint_mut(bufs).expect("three buffers");
            (&*x, q, Some(gate.rows_mut(n)))
        }
    };
    let (x_cols, q_cols) = (x.cols, q.cols);
    let (x, q) = (x.rows(n), q.rows_mut(n));
    let (k, v) = (&mut cx.scratch.k[..n * kv_cols], &mut cx.scratch.v[..n * kv_cols]);

    let norm = weights.norm(norm);
    let input = |row: usize, out: &mut [f32]| norm.apply(kernels, &x[row * x_cols..][..x_cols], out);
    match gate {
        None => cx.layers.run(n, input, false, [(wq, &mut *q), (wk, &mut *k), (wv, &mut *v)])?,
        Some(gate) => {
            let gated = &mut cx.scratch.gated[..n * 2 * q_cols];
            let layers = [(wq, &mut *gated), (wk, &mut *k), (wv, &mut *v)];
            cx.layers.run(n, input, false, layers)?;
            let heads = gated.chunks_exact(2 * head_dim).map(|head| head.split_at(head_dim));
            let to = q.chunks_exact_mut(head_dim).zip(gate.chunks_exact_mut(head_dim));
            for ((q, gate), (from_q, from_gate)) in to.zip(heads) {
                q.copy_from_slice(from_q);
                gate.copy_from_slice(from_gate);
            }
        }
    }

    let rope = rope.map(|rope| &cx.ropes[rope.0 as usize]);
    let norms = [q_norm, k_norm].map(|norm| norm.as_ref().map(|norm| weights.norm(norm)));
    let steps = |norm, rotation| HeadSteps { norm, rope, rotation };
    let (q_steps, k_steps) = (steps(norms[0], kv.key_rotation()), steps(norms[1], kv.key_rotation()));
    let v_steps = HeadSteps { norm: None, rope: None, rotation: kv.value_rotation() };
    let mut grids =
        [(q_steps, Grid::new(q, q_cols)), (k_steps, Grid::new(k, kv_cols)), (v_steps, Grid::new(v, kv_cols))];
    let n_grids = if v_steps.rotation.is_some() { 3 } else { 2 };
    cx.pool.tiles(&mut grids[..n_grids], 1, q_cols.max(kv_cols), |steps, mut tile| {
        let row = tile.rows().start;
        for head in tile.row_mut(row).chunks_exact_mut(head_dim) {
            if let Some(norm) = steps.norm {
                norm.apply_in_place(kernels, head);
            }
            if let Some(rope) = steps.rope {
                rope.rotate(row, head);
            }
            if let Some(rotation) = steps.rotation {
                rotation.apply(head);
            }
        }
    });
    kv.put(cx.pool, rows, cx.step.pages, &cx.scratch.k[..n * kv_cols], &cx.scratch.v[..n * kv_cols]);
    Ok(())
}
