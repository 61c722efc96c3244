//! Causal attention: a block a row, tile of query heads, and split of the positions.

use super::driver::{Launch, Limits};
use super::params::{ATTEND_HEADS, ATTEND_THREADS, AttendParams};
use super::{Cx, words};
use crate::program::{Attend, KvDecl, PAGE, Program};

/// Codecs with kernels (`cuda/kv/NAME.cu`), and bytes of an element.
pub const CODECS: &[(&str, u32)] = &[("f16", 2), ("f32", 4)];

/// Most elements of a head.
const MAX_HEAD_DIM: usize = 256;

/// Positions that a split has at least: what the kernel's groups of lanes walk over in one round.
const MIN_SPLIT: usize = 16;

pub fn kernel(codec: &str) -> String {
    format!("attend__{codec}")
}

/// Bytes of an element in a cache.
pub fn elem_bytes(kv: &KvDecl) -> Option<u32> {
    let of = |name: &str| CODECS.iter().find(|(codec, _)| *codec == name).map(|(_, bytes)| *bytes);
    of(kv.k.name()).filter(|_| kv.k.name() == kv.v.name())
}

pub fn kernels(p: &Program, s: &Attend) -> Result<Vec<String>, String> {
    let kv = p.kv_decl(s.kv);
    if elem_bytes(kv).is_none() {
        let (k, v) = (kv.k.name(), kv.v.name());
        return Err(if k == v { kernel(k) } else { format!("attend with keys of {k} and values of {v}") });
    }
    if kv.head_dim > MAX_HEAD_DIM {
        return Err(format!("attend with heads of {}", kv.head_dim));
    }
    Ok(vec![kernel(kv.k.name())])
}

/// How the work of one attention is cut, for steps of up to `rows` rows.
pub struct Cut {
    /// Query heads of one KV head.
    pub group: usize,
    /// Blocks that these take.
    pub tiles: usize,
    /// Splits of the positions at most.
    pub splits: usize,
}

impl Cut {
    pub fn new(p: &Program, s: &Attend, limits: Limits, rows: usize) -> Self {
        let kv = p.kv_decl(s.kv);
        let group = p.buf_decl(s.q).cols / (kv.n_kv_heads * kv.head_dim);
        let tiles = group.div_ceil(ATTEND_HEADS as usize);
        // Four blocks of 128 threads a multiprocessor, and none without positions.
        let wanted = (4 * limits.multiprocessors as usize).div_ceil(kv.n_kv_heads * tiles * rows);
        let splits = wanted.min((p.limits.pages * PAGE).div_ceil(MIN_SPLIT));
        Self { group, tiles, splits }
    }

    /// Floats of the splits' parts, which are merged at the end.
    pub fn partial_floats(&self, kv: &KvDecl, rows: usize) -> usize {
        let parts = if self.splits > 1 { rows * kv.n_kv_heads * self.tiles * self.splits } else { 0 };
        parts * ATTEND_HEADS as usize * (2 + stride(kv))
    }
}

/// Elements of a cached vector, with the zeros behind it.
pub fn stride(kv: &KvDecl) -> usize {
    kv.head_dim.next_multiple_of(8)
}

pub fn launch(cx: &Cx<'_>, s: &Attend) -> Launch {
    let (decl, rows) = (cx.p.kv_decl(s.kv), cx.shape.rows);
    let Cut { group, tiles, splits } = Cut::new(cx.p, s, cx.limits, rows);
    let params = AttendParams {
        step: cx.memory.step.tables(),
        kv: cx.memory.kvs[s.kv.0 as usize],
        q: cx.memory.bufs[s.q.0 as usize],
        out: cx.memory.bufs[s.out.0 as usize],
        partial: cx.memory.partial,
        arrived: cx.memory.attend_arrived,
        scale: s.scale,
        group: group as u32,
        tiles: tiles as u32,
        splits: splits as u32,
    };
    let lanes = (stride(decl) / 8).next_power_of_two();
    let parts = ATTEND_THREADS as usize / lanes * ATTEND_HEADS as usize;
    Launch {
        kernel: cx.kernel(&kernel(decl.k.name())),
        grid: [(decl.n_kv_heads * tiles) as u32, splits as u32, rows as u32],
        threads: ATTEND_THREADS,
        shared_bytes: (parts * (2 + stride(decl)) * 4).next_multiple_of(16) as u32,
        params: words(&params),
    }
}
