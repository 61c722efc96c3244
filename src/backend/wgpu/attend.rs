//! Causal attention: a workgroup a row, tile of query heads, and split of the pages; then the splits are merged.

use super::shader::{CODECS, Kernel, MAX_HEAD_DIM, THREADS};
use super::{Cx, Dispatch, Grid};
use crate::program::{Attend, KvDecl, Program, RowsOf};

/// Query heads that a workgroup has.
const HEADS: usize = 4;

/// Workgroups that keep a large device busy; fewer are made of few pages, and more of many rows.
const ENOUGH: usize = 256;

/// What a cache lacks, in words.
pub fn obstacle(kv: &KvDecl) -> Option<String> {
    let (k, v) = (kv.k.name(), kv.v.name());
    if k != v {
        return Some(format!("attend with keys of {k} and values of {v}"));
    }
    if !CODECS.iter().any(|(name, ..)| *name == k) {
        return Some(format!("attend__{k}"));
    }
    (kv.head_dim > MAX_HEAD_DIM).then(|| format!("attend with heads of {}", kv.head_dim))
}

/// The codec of a cache that has no [`obstacle`].
pub fn codec(kv: &KvDecl) -> &'static str {
    CODECS.iter().find(|(name, ..)| *name == kv.k.name()).expect("the plan was made").0
}

/// Words of a cached vector; of f32 for codecs without kernels, which no plan passes.
pub fn words(kv: &KvDecl) -> usize {
    let codec = CODECS.iter().find(|(name, ..)| *name == kv.k.name());
    kv.head_dim.div_ceil(codec.map_or(1, |(_, _, elems)| *elems))
}

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
    let (kv, memory) = (cx.p.kv_decl(s.kv), cx.memory);
    let (group, tiles) = group_and_tiles(cx.p, s);
    let params = vec![
        kv.n_kv_heads as u32,
        kv.head_dim as u32,
        words(kv) as u32,
        group as u32,
        tiles as u32,
        s.scale.to_bits(),
    ];
    let own = (words(kv) as u32).div_ceil(THREADS).next_power_of_two();
    let blocks = (kv.n_kv_heads * tiles) as u32;
    let (q, out) = (&memory.bufs[s.q.0 as usize], &memory.bufs[s.out.0 as usize]);
    let [keys, values] = &memory.kvs[s.kv.0 as usize];
    vec![
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::Attend(codec(kv), own))],
            params: params.clone(),
            buffers: vec![&memory.step.buffer, q, keys, values, out, &memory.partial],
            grid: Grid::Splits { x: blocks, least: 1, rows: RowsOf::Step },
        },
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::AttendMerge)],
            params,
            buffers: vec![&memory.step.buffer, &memory.partial, out],
            grid: Grid::Splits { x: blocks, least: 2, rows: RowsOf::Step },
        },
    ]
}
