//! Causal attention: a workgroup a row, tile of query heads, and split of the pages; then the splits are merged.

use super::shader::{Kernel, THREADS};
use super::{Cx, Dispatch, Grid, kv};
use crate::program::{Attend, Program, RowsOf};

/// Query heads that a workgroup has.
const HEADS: usize = 4;

/// Workgroups that keep a large device busy; fewer are made of few pages, and more of many rows.
const ENOUGH: usize = 256;

/// Query heads of one KV head, and workgroups that these take.
fn group_and_tiles(p: &Program, s: &Attend) -> (usize, usize) {
    let kv = p.kv_decl(s.kv);
    let group = p.buf_decl(s.q).cols / (kv.n_kv_heads * kv.head_dim);
    (group, group.div_ceil(HEADS))
}

/// Splits of the pages where a row has `blocks` workgroups.
pub fn splits(rows: usize, blocks: usize, pages: usize) -> usize {
    ENOUGH.div_ceil(rows * blocks).min(pages)
}

/// Bytes of the splits' parts.
pub fn partial_bytes(p: &Program, s: &Attend) -> u64 {
    let kv = p.kv_decl(s.kv);
    let blocks = group_and_tiles(p, s).1 * kv.n_kv_heads;
    // Where there are splits at all, one more of them would still be below twice as many.
    let parts = if blocks < ENOUGH { 2 * ENOUGH } else { 0 };
    (parts * (2 + kv.head_dim) * 16) as u64
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &Attend) -> Vec<Dispatch<'a>> {
    let (decl, memory) = (cx.p.kv_decl(s.kv), cx.memory);
    let (group, tiles) = group_and_tiles(cx.p, s);
    let mut params = kv::params(decl, &cx.p.limits);
    params.extend([group as u32, tiles as u32, s.scale.to_bits()]);
    let own = (decl.head_dim as u32).div_ceil(2 * THREADS);
    let blocks = (decl.n_kv_heads * tiles) as u32;
    let (q, out) = (&memory.bufs[s.q.0 as usize], &memory.bufs[s.out.0 as usize]);
    let [keys, values] = &memory.kvs[s.kv.0 as usize];
    let codec = kv::codec(decl);
    vec![
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::Attend(codec.name, own))],
            params: params.clone(),
            buffers: vec![&memory.step.buffer, q, keys, values, out, &memory.partial],
            grid: Grid::Splits { x: blocks, least: 1, rows: RowsOf::Step },
        },
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::AttendMerge { rotates: codec.form.rotates() })],
            params,
            buffers: vec![&memory.step.buffer, &memory.partial, out],
            grid: Grid::Splits { x: blocks, least: 2, rows: RowsOf::Step },
        },
    ]
}
