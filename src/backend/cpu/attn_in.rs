//! Norm, Q, K and V projections, RoPE, the codec's rotation, KV write.

use ggml_types::turboquant::{KeyBasis, Rotation};

use super::cx::{Cx, two};
use super::norm::{RowNorm, norm_or_copy};
use super::pool::Grid;
use super::rope::RopeTable;
use crate::BackendError;
use sterna_program::{AttnIn, QkNorm, QueryScale};

/// Processing of each head of queries, keys or values after its projection.
#[derive(Clone, Copy, Default)]
struct HeadSteps<'a> {
    /// Norm of all heads of a row together.
    row_norm: Option<RowNorm<'a>>,
    norm: Option<RowNorm<'a>>,
    rope: Option<&'a RopeTable>,
    /// Norm of each head after RoPE.
    rotated_norm: Option<RowNorm<'a>>,
    scale: Option<QueryScale>,
    rotation: Option<Transform<'a>>,
}

/// Transform of a codec.
#[derive(Clone, Copy)]
enum Transform<'a> {
    /// The same for each head.
    Rotation(&'a Rotation),
    /// The basis of each KV head.
    Keys(&'a [KeyBasis]),
    /// The inverse basis of the KV head that `group` query heads read.
    Queries { bases: &'a [KeyBasis], group: usize },
}

impl Transform<'_> {
    /// Transforms a head.
    fn apply(self, head: usize, x: &mut [f32]) {
        match self {
            Transform::Rotation(rotation) => rotation.apply(x),
            Transform::Keys(bases) => bases[head].apply_to_key(x),
            Transform::Queries { bases, group } => bases[head / group].apply_to_query(x),
        }
    }
}

pub fn run<'a>(cx: &mut Cx<'a>, s: &AttnIn) -> Result<(), BackendError> {
    let AttnIn {
        x,
        ref norm,
        ref wq,
        ref wk,
        ref wv,
        ref q_norm,
        ref k_norm,
        qk_norm,
        ref v_norm,
        rope,
        q_scale,
        kv,
        q,
        gate,
    } = *s;
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

    let norm = norm.as_ref().map(|norm| weights.norm(norm));
    let input = |row: usize, out: &mut [f32]| norm_or_copy(kernels, norm, &x[row * x_cols..][..x_cols], out);
    let mut products = |to_q: &mut [f32]| match (wk, wv) {
        (Some(wk), Some(wv)) => cx.layers.run(n, input, false, [(wq, to_q), (wk, &mut *k), (wv, &mut *v)]),
        (Some(wk), None) => {
            cx.layers.run(n, input, false, [(wq, to_q), (wk, &mut *k)])?;
            v.copy_from_slice(k);
            Ok(())
        }
        (None, _) => cx.layers.run(n, input, false, [(wq, to_q)]),
    };
    match gate {
        None => products(&mut *q)?,
        Some(gate) => {
            let gated = &mut cx.scratch.gated[..n * 2 * q_cols];
            products(&mut *gated)?;
            let heads = gated.chunks_exact(2 * head_dim).map(|head| head.split_at(head_dim));
            let to = q.chunks_exact_mut(head_dim).zip(gate.chunks_exact_mut(head_dim));
            for ((q, gate), (from_q, from_gate)) in to.zip(heads) {
                q.copy_from_slice(from_q);
                gate.copy_from_slice(from_gate);
            }
        }
    }

    let rope = rope.map(|rope| &cx.ropes[rope.0 as usize]);
    let norms = [q_norm, k_norm, v_norm].map(|norm| norm.as_ref().map(|norm| weights.norm(norm)));
    let steps = |norm: Option<RowNorm<'a>>, rotation, scale| {
        let (row_norm, norm, rotated_norm) = match qk_norm {
            QkNorm::Rows => (norm, None, None),
            QkNorm::Heads => (None, norm, None),
            QkNorm::Rotated => (None, None, norm),
        };
        HeadSteps { row_norm, norm, rope, rotated_norm, scale, rotation }
    };
    let rotation = kv.key_rotation().map(Transform::Rotation);
    let group = q_cols / kv_cols;
    let of_q = kv.key_bases().map(|bases| Transform::Queries { bases, group }).or(rotation);
    let of_k = kv.key_bases().map(Transform::Keys).or(rotation);
    let (q_steps, k_steps) = (steps(norms[0], of_q, q_scale), steps(norms[1], of_k, None));
    let rotation = kv.value_rotation().map(Transform::Rotation);
    let v_steps = HeadSteps { norm: norms[2], rotation, ..HeadSteps::default() };
    let mut grids =
        [(q_steps, Grid::new(q, q_cols)), (k_steps, Grid::new(k, kv_cols)), (v_steps, Grid::new(v, kv_cols))];
    let n_grids = match wk {
        None => 1,
        Some(_) if v_steps.norm.is_none() && v_steps.rotation.is_none() => 2,
        Some(_) => 3,
    };
    cx.pool.tiles(&mut grids[..n_grids], 1, q_cols.max(kv_cols), |steps, mut tile| {
        let at = tile.rows().start;
        let first = tile.cols().start / head_dim;
        let row = tile.row_mut(at);
        if let Some(norm) = steps.row_norm {
            norm.apply_in_place(kernels, row);
        }
        for (i, head) in row.chunks_exact_mut(head_dim).enumerate() {
            if let Some(norm) = steps.norm {
                norm.apply_in_place(kernels, head);
            }
            if let Some(rope) = steps.rope {
                rope.rotate(at, head);
            }
            if let Some(norm) = steps.rotated_norm {
                norm.apply_in_place(kernels, head);
            }
            if let Some(scale) = steps.scale {
                let by = scale.at(rows[at].pos);
                head.iter_mut().for_each(|x| *x *= by);
            }
            if let Some(rotation) = steps.rotation {
                rotation.apply(first + i, head);
            }
        }
    });
    if wk.is_some() {
        let of_rows = [&cx.scratch.k[..n * kv_cols], &cx.scratch.v[..n * kv_cols]];
        kv.put(kernels, cx.pool, rows, cx.step.pages, of_rows);
    }
    Ok(())
}
