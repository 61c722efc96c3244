//! Norm, Q, K and V projections, RoPE, KV cache write: the products, then one workgroup per head that applies
//! RoPE and stores it. If the cache is windowed, pages that the step has filled are encoded afterwards.

use ggml_types::KvSide;

use super::kv::KernelForm;
use super::linear::{self, ABSENT, Input, Layer};
use super::shader::{Kernel, page_parts};
use super::{Cx, Device, Dispatch, Grid, gate, kv, proj_add};
use sterna_program::{AttnIn, Linear, Norm, PAGE, Program, QkNorm, RopeStyle, RowsOf};

pub fn missing(cx: &Device<'_>, p: &Program, s: &AttnIn) -> Vec<String> {
    let linears: Vec<&Linear> = [&s.wq].into_iter().chain(&s.wk).chain(&s.wv).collect();
    let mut missing = linear::missing(cx, p, "attn_in", &linears);
    missing.extend(kv::unsupported(p.kv_decl(s.kv)));
    missing
}

/// The layers of queries, keys and values, if they share a dispatch: then queries are stored next to keys and
/// values first, and their own norm is by head.
pub fn together<'a>(p: &Program, s: &'a AttnIn) -> Option<Vec<&'a Linear>> {
    let layers: Vec<&Linear> = [&s.wq].into_iter().chain(&s.wk).chain(&s.wv).collect();
    (s.qk_norm != QkNorm::Rows && linear::share_dispatch(p, &layers)).then_some(layers)
}

/// Bytes of a step's keys and values, and of queries that are stored next to them.
pub fn fresh_bytes(p: &Program, s: &AttnIn) -> u64 {
    let has_queries = s.gate.is_some() || together(p, s).is_some();
    let queries = if has_queries { p.limits.rows * p.weight_decl(s.wq.w).rows } else { 0 };
    4 * (queries_at(p, s) + queries) as u64
}

/// Element at which queries begin, after the values, possibly interleaved with their gates.
fn queries_at(p: &Program, s: &AttnIn) -> usize {
    2 * v_at(p, s)
}

/// Element at which values begin, after the keys.
fn v_at(p: &Program, s: &AttnIn) -> usize {
    let kv = p.kv_decl(s.kv);
    p.limits.rows * kv.n_kv_heads * kv.head_dim
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a AttnIn) -> Vec<Dispatch<'a>> {
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
        q: q_buf,
        gate,
    } = *s;
    let (decl, memory) = (cx.p.kv_decl(kv), cx.memory);
    let (q, kv_cols, v_at) = (&memory.bufs[q_buf.0 as usize], decl.n_kv_heads * decl.head_dim, v_at(cx.p, s));
    let q_cols = cx.p.buf_decl(q_buf).cols;
    let layer = |linear, out, out_cols, out_at| Layer { linear, out, out_cols, out_at, what: 0 };
    let of_queries = |is_fresh: bool| match gate {
        Some(_) => layer(wq, &memory.fresh, 2 * q_cols, queries_at(cx.p, s)),
        None if is_fresh => layer(wq, &memory.fresh, q_cols, queries_at(cx.p, s)),
        None => layer(wq, q, q_cols, 0),
    };
    let layers = |is_fresh| {
        let keys_and_values = [(wk, 0), (wv, v_at)].into_iter();
        let keys_and_values = keys_and_values
            .filter_map(|(linear, at)| Some(layer(linear.as_ref()?, &memory.fresh, kv_cols, at)));
        [of_queries(is_fresh)].into_iter().chain(keys_and_values).collect::<Vec<_>>()
    };
    let input = Input { x, norm: norm.as_ref(), rows: RowsOf::Step };
    let together = together(cx.p, s).and_then(|_| linear::together(cx, input, layers(true)));
    let is_fresh = together.is_some() && gate.is_none();
    // Products that are stored unchanged use the kernel of the logits.
    let mut all = together.unwrap_or_else(|| linear::dispatches(cx, "logits", input, layers(false)));
    all.extend(gate.map(|gate| gate::split(cx, queries_at(cx.p, s), q_buf, gate, decl.head_dim)));

    let rope = rope.map(|rope| (&cx.p.ropes[rope.0 as usize], &memory.ropes[rope.0 as usize]));
    let n_heads = q_cols / decl.head_dim;
    let [keys, values] = &memory.kvs[kv.0 as usize];
    let of_rows = qk_norm == QkNorm::Rows;
    if of_rows {
        for (norm, x, cols) in [(q_norm, q, q_cols), (k_norm, &memory.fresh, kv_cols)] {
            all.extend(norm.as_ref().map(|norm| proj_add::norm_rows(cx, norm, x, cols)));
        }
    }
    let of_heads = |norm: &'a Option<Norm>| norm.as_ref().filter(|_| !of_rows);
    let norms = [of_heads(q_norm), of_heads(k_norm), v_norm.as_ref()];
    let norms: Vec<u32> = norms.into_iter().flat_map(|norm| linear::norm(cx, norm)).collect();
    // Values without a product of their own are the products of the keys.
    let v_at = if wv.is_some() { v_at } else { 0 };
    for sides in kv::sides_alike(decl) {
        let side_params = kv::side_params(decl, sides[0], &cx.p.limits);
        if wk.is_none() && sides[0] != KvSide::Keys {
            continue;
        }
        // Queries are handled together with the keys.
        let first = if sides[0] == KvSide::Keys { 0 } else { n_heads + decl.n_kv_heads };
        let of_cache = if wk.is_some() { sides.len() * decl.n_kv_heads } else { 0 };
        let heads = of_cache + if first == 0 { n_heads } else { 0 };
        let mut params = [&norms[..], &kv::params(decl, &cx.p.limits), &side_params].concat();
        params.extend([
            n_heads as u32,
            v_at as u32,
            rope.map_or(0, |(rope, _)| rope.inv_freq.len() as u32),
            u32::from(rope.is_some_and(|(rope, _)| rope.style == RopeStyle::Adjacent)),
            first as u32,
            q_scale.map_or(0.0, |scale| scale.factor).to_bits(),
            q_scale.map_or(0, |scale| scale.period),
            u32::from(qk_norm == QkNorm::Rotated),
            kv::shrink(decl, sides[0]).to_bits(),
            cx.bases(kv),
            if is_fresh { queries_at(cx.p, s) as u32 } else { ABSENT },
            rope.filter(|(rope, _)| rope.axes.is_some())
                .map_or(ABSENT, |(rope, _)| (cx.p.limits.pages * PAGE * 2 * rope.inv_freq.len()) as u32),
        ]);
        all.push(Dispatch {
            kernels: vec![(usize::MAX, Kernel::AttnIn(kv::codec(decl, sides[0]).codec))],
            params,
            buffers: vec![
                &memory.step.buffer,
                &memory.constants,
                rope.map_or(&memory.constants, |(_, table)| table),
                &memory.fresh,
                q,
                keys,
                values,
                &memory.clamped,
            ],
            grid: Grid::Rows { x: heads as u32, rows: RowsOf::Step },
        });
    }
    for sides in kv::sides_alike(decl) {
        let codec = kv::codec(decl, sides[0]);
        if wk.is_some() && codec.form.is_windowed() {
            let mut params = kv::params(decl, &cx.p.limits);
            params.extend(kv::side_params(decl, sides[0], &cx.p.limits));
            params.extend([sides.len() as u32, u32::from(sides[0] == KvSide::Values)]);
            if !codec.form.trellises().is_empty() {
                // Tables begin at a multiple of 16 bytes.
                params.resize(params.len().next_multiple_of(4), 0);
                params.extend(kv::trellis_table(decl, sides[0]));
            }
            if codec.form == KernelForm::TrellisSplit {
                params.extend(kv::scale_steps());
            }
            all.push(Dispatch {
                kernels: vec![(usize::MAX, Kernel::Append(codec.codec))],
                params,
                buffers: vec![&memory.step.buffer, keys, values, &memory.clamped],
                grid: Grid::Filled { x: (sides.len() * decl.n_kv_heads * page_parts(codec.form)) as u32 },
            });
        }
    }
    all
}
