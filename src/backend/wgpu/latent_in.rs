//! Multi-head latent attention: norm, products of queries, keys and latent vectors, RoPE, KV cache write, and
//! projections of each head's vector by a matrix of its own. The matrices of all heads are one dispatch if
//! they fit in one buffer.

use ggml_types::KvSide;
use wgpu::Buffer;

use super::linear::{self, ABSENT, Input, Layer, Source};
use super::shader::Kernel;
use super::upload::{DeviceWeight, runs};
use super::weight::WeightFormat;
use super::{Cx, Device, Dispatch, Grid, kv};
use sterna_program::{HeadProj, LatentIn, Linear, Program, RopeStyle, RowsOf, Stage};

pub fn missing(cx: &Device<'_>, p: &Program, s: &LatentIn) -> Vec<String> {
    let LatentIn { x: _, norm: _, ref q_latent, ref wq, ref wk, ref wkv, kv_norm: _, rope, kv, q: _ } = *s;
    let linears: Vec<&Linear> = q_latent.iter().map(|(linear, _)| linear).chain([wq, wkv]).collect();
    let mut missing = linear::missing(cx, p, "latent_in", &linears);
    missing.extend(missing_heads(cx, p, wk));
    missing.extend(kv::unsupported(p.kv_decl(kv)));
    let is_rotated = q_latent.is_some() && wq.basis.is_some();
    missing.extend(is_rotated.then(|| "latent vectors of queries in a rotated basis".to_owned()));
    let has_axes = p.ropes[rope.0 as usize].axes.is_some();
    missing.extend(has_axes.then(|| "latent_in__rope_of_several_axes".to_owned()));
    missing
}

/// Missing kernels of the layers of heads.
pub fn missing_heads(cx: &Device<'_>, p: &Program, heads: &[Linear]) -> Vec<String> {
    let (first, ty) = (&heads[0], p.weight_decl(heads[0].w).ty);
    let mut missing = linear::missing(cx, p, "head_proj", &[first]);
    // These have one factor per tensor, which is a parameter of the dispatch.
    if WeightFormat::of(ty).is_some_and(|format| format.ints) {
        missing.push(format!("head_proj__{}", ty.name()));
    }
    let is_alike = |linear: &Linear| {
        p.weight_decl(linear.w).ty.is(ty) && linear.act == first.act && linear.scale == first.scale
    };
    if !heads.iter().all(is_alike) {
        missing.push("heads of different types".to_owned());
    }
    if heads.iter().any(|linear| linear.basis.is_some() || linear.bias.is_some()) {
        missing.push("heads with a bias or in a rotated basis".to_owned());
    }
    missing
}

/// The layers of the heads of all stages.
pub fn all_heads(p: &Program) -> impl Iterator<Item = Vec<&Linear>> {
    p.stages.iter().filter_map(|(_, stage)| match stage {
        Stage::LatentIn(s) => Some(s.wk.iter().collect()),
        Stage::HeadProj(s) => Some(s.w.iter().collect()),
        _ => None,
    })
}

/// Bytes of the inputs of the heads' layers.
pub fn heads_bytes(p: &Program, heads: &[Linear]) -> u64 {
    let rows = linear::padded_rows(p.limits.rows.saturating_mul(heads.len()));
    4 * rows as u64 * linear::act_words(p, &heads[0]) as u64
}

/// Widths of a stage's products, which are in scratch one after the other: keys, the heads' parts of queries,
/// and latent vectors of queries.
struct Widths {
    keys: usize,
    parts: usize,
    latent: usize,
}

impl Widths {
    fn of(p: &Program, s: &LatentIn) -> Self {
        let latent = s.q_latent.as_ref().map_or(0, |(linear, _)| p.weight_decl(linear.w).rows);
        Self { keys: p.kv_decl(s.kv).head_dim, parts: p.weight_decl(s.wq.w).rows, latent }
    }

    /// Elements at which the parts and the latent vectors begin.
    fn begins(&self, p: &Program) -> [usize; 2] {
        [p.limits.rows * self.keys, p.limits.rows * (self.keys + self.parts)]
    }
}

/// Bytes of a step's products.
pub fn fresh_bytes(p: &Program, s: &LatentIn) -> u64 {
    let Widths { keys, parts, latent } = Widths::of(p, s);
    4 * p.limits.rows.saturating_mul(keys + parts + latent) as u64
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a LatentIn) -> Vec<Dispatch<'a>> {
    let LatentIn { x, ref norm, ref q_latent, ref wq, ref wk, ref wkv, ref kv_norm, rope, kv, q } = *s;
    let (memory, decl, n_heads) = (cx.memory, cx.p.kv_decl(kv), wk.len());
    let widths = Widths::of(cx.p, s);
    let [parts_at, latent_at] = widths.begins(cx.p);
    let (fresh, q, q_cols) = (&memory.fresh, &memory.bufs[q.0 as usize], cx.p.buf_decl(q).cols);
    let layer = |linear, out_cols, out_at| Layer { linear, out: fresh, out_cols, out_at, what: 0 };
    let of_queries = match q_latent {
        Some((wa, _)) => layer(wa, widths.latent, latent_at),
        None => layer(wq, widths.parts, parts_at),
    };
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    // Products that are stored unchanged use the kernel of the logits.
    let mut all = linear::dispatches(cx, "logits", input, vec![of_queries, layer(wkv, widths.keys, 0)]);
    if let Some((_, norm)) = q_latent {
        let source = Source {
            x: fresh,
            norm: Some(norm),
            first_at: latent_at,
            pitch: widths.latent,
            each: 1,
            rows: RowsOf::Step,
        };
        all.push(linear::source_dispatch(cx, &source, wq));
        let of_queries = layer(wq, widths.parts, parts_at);
        all.extend(linear::products(cx, "logits", RowsOf::Step, &of_queries, &memory.acts));
        all.extend(linear::adapters_after(cx, &source, &of_queries));
    }

    let first = cx.p.weight_decl(wk[0].w);
    let (rank, plain, part) = (first.rows, first.cols, widths.parts / n_heads);
    let (of_rope, table) = (&cx.p.ropes[rope.0 as usize], &memory.ropes[rope.0 as usize]);
    let mut params = linear::norm(cx, Some(kv_norm)).to_vec();
    params.extend(kv::params(decl, &cx.p.limits));
    params.extend(kv::side_params(decl, KvSide::Keys, &cx.p.limits));
    params.extend([n_heads, rank, part, plain, parts_at, of_rope.inv_freq.len()].map(|n| n as u32));
    params.push(u32::from(of_rope.style == RopeStyle::Adjacent));
    all.push(Dispatch {
        kernels: vec![(usize::MAX, Kernel::LatentIn(kv::codec(decl, KvSide::Keys).codec))],
        params,
        buffers: vec![&memory.step.buffer, &memory.constants, table, fresh, q, &memory.kvs[kv.0 as usize][0]],
        grid: Grid::Rows { x: n_heads as u32 + 1, rows: RowsOf::Step },
    });
    all.extend(heads(cx, wk, (fresh, parts_at, part), (q, q_cols)));
    all
}

pub fn head_proj<'a>(cx: &Cx<'a>, s: &'a HeadProj) -> Vec<Dispatch<'a>> {
    let HeadProj { x, ref w, out } = *s;
    let [(x, x_cols), (out, out_cols)] =
        [x, out].map(|buf| (&cx.memory.bufs[buf.0 as usize], cx.p.buf_decl(buf).cols));
    heads(cx, w, (x, 0, x_cols / w.len()), (out, out_cols))
}

/// The products of the heads' parts of each row with a matrix each. `x` is a buffer, the element of its first
/// part, and the distance between parts; `out` has `out_cols` columns.
fn heads<'a>(
    cx: &Cx<'a>,
    layers: &'a [Linear],
    (x, first_at, pitch): (&'a Buffer, usize, usize),
    (out, out_cols): (&'a Buffer, usize),
) -> Vec<Dispatch<'a>> {
    let (memory, n_heads, first) = (cx.memory, layers.len(), &layers[0]);
    let source = Source { x, norm: None, first_at, pitch, each: n_heads, rows: RowsOf::Step };
    let is_direct = linear::is_stored_form(cx, &source, first) && x != out;
    let acts = if is_direct { x } else { &memory.acts };
    let mut all = Vec::new();
    all.extend((!is_direct).then(|| linear::source_dispatch(cx, &source, first)));
    let weights: Vec<&DeviceWeight> = layers.iter().map(|linear| &cx.weights[linear.w.0 as usize]).collect();
    let ty = WeightFormat::of(weights[0].ty).expect("it was uploaded").kernels.name();
    for part in 0..weights[0].parts.len() {
        for run in runs(&weights, part) {
            let at = &weights[run.start].parts[part];
            let mut params = weights[run.start].params(at).to_vec();
            params.extend([
                linear::act_words(cx.p, first) as u32 / 4,
                0,
                first.scale.to_bits(),
                ABSENT,
                out_cols as u32,
                0,
                0,
                (at.at / 16) as u32,
                (at.bytes / 16) as u32,
                run.start as u32,
                n_heads as u32,
                (out_cols / n_heads) as u32,
            ]);
            all.push(Dispatch {
                kernels: Kernel::by_rows(|rows| Kernel::HeadProj { ty, rows }),
                params,
                buffers: vec![&memory.step.buffer, &memory.constants, &at.buffer, acts, &memory.quants, out],
                grid: Grid::Experts {
                    of_weight: at.rows.len() as u32,
                    experts: run.len() as u32,
                    chosen: [1, 1],
                },
            });
        }
    }
    all
}
