//! Attention: one workgroup per row, tile of query heads, and split of the pages; then the splits are merged.
//! If many neighbouring rows belong to one sequence, a workgroup takes a tile of them and all pages; not in
//! programs with heads of more than 256 elements, nor with latent attention. If keys are stored with signs,
//! queries are projected first.

use ggml_types::KvSide;

use super::kv::KernelForm;
use super::linear::ABSENT;
use super::shader::{Kernel, LANES, THREADS};
use super::{Cx, Dispatch, Grid, gate, kv};
use crate::device::tiles::{Tiling, tiles};
use sterna_program::{Attend, GateAct, Program, Row, RowsOf, Stage};

/// Query heads per workgroup.
const HEADS: usize = 4;

/// Queries of a workgroup that processes a tile of rows.
const QUERIES: usize = 32;

/// Smallest step, in rows, that may use tiles.
const TILED_LEAST: usize = 16;

/// Workgroups that keep a large device busy. A row has fewer splits if there are few pages or many rows.
const ENOUGH: usize = 256;

/// Query heads per KV head, and the workgroups that they take.
fn group_and_tiles(p: &Program, s: &Attend) -> (usize, usize) {
    let kv = p.kv_decl(s.kv);
    let group = p.buf_decl(s.q).cols / (kv.n_kv_heads * kv.head_dim);
    (group, group.div_ceil(HEADS))
}

/// The tiles of a program, if all its attention stages support tiles, and of the same size.
pub fn tiling(p: &Program) -> Option<Tiling> {
    let mut all = p.stages.iter().filter_map(|(_, stage)| match stage {
        Stage::Attend(s) => {
            let decl = p.kv_decl(s.kv);
            let is_whole = decl.head_dim.is_multiple_of(4) && decl.head_dim <= kv::MAX_HEAD_DIM;
            let fits = is_whole && !decl.values_are_keys;
            Some(fits.then(|| QUERIES / group_and_tiles(p, s).0.min(QUERIES)))
        }
        _ => None,
    });
    let first = all.next()??;
    all.all(|rows| rows == Some(first)).then_some(Tiling { rows: first, by_window: true })
}

/// True if a step uses tiles: if they are at least half full.
pub fn is_tiled(rows: &[Row], tiling: Tiling) -> bool {
    rows.len() >= TILED_LEAST && tiles(rows, tiling).count() * tiling.rows <= 2 * rows.len()
}

/// Fewest pages of a split. With fewer, merging takes longer than they do.
const LEAST_PAGES: usize = 2;

/// Number of splits of the pages, with `blocks` workgroups per row and split.
pub fn splits(rows: usize, blocks: usize, pages: usize) -> usize {
    ENOUGH.div_ceil(rows * blocks).min(pages.div_ceil(LEAST_PAGES))
}

/// Bytes of the partial results of splits.
pub fn partial_bytes(p: &Program, s: &Attend) -> u64 {
    let kv = p.kv_decl(s.kv);
    let blocks = group_and_tiles(p, s).1 * kv.n_kv_heads;
    // Splits round up, so with more than one split there are fewer than twice `ENOUGH` partial results.
    let parts = if blocks < ENOUGH { 2 * ENOUGH } else { 0 };
    (parts * (2 + kv.head_dim) * 16) as u64
}

/// True if queries are projected for keys with signs.
fn projects(p: &Program, s: &Attend) -> bool {
    kv::codec(p.kv_decl(s.kv), KvSide::Keys).form == KernelForm::Signs
}

pub fn projected_bytes(p: &Program, s: &Attend) -> u64 {
    let q_bytes = (4 * p.limits.rows).saturating_mul(p.buf_decl(s.q).cols) as u64;
    if kv::unsupported(p.kv_decl(s.kv)).is_none() && projects(p, s) { q_bytes } else { 0 }
}

pub fn missing(p: &Program, s: &Attend) -> Vec<String> {
    kv::unsupported(p.kv_decl(s.kv)).into_iter().collect()
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &Attend) -> Vec<Dispatch<'a>> {
    let Attend { q, kv, scale, soft_cap, window, ahead, whole_images, sinks, gate, gate_act, out } = *s;
    let (decl, memory) = (cx.p.kv_decl(kv), cx.memory);
    let (q, out, out_cols) =
        (&memory.bufs[q.0 as usize], &memory.bufs[out.0 as usize], cx.p.buf_decl(out).cols);
    let (group, tiles) = group_and_tiles(cx.p, s);
    let mut of_cache = kv::params(decl, &cx.p.limits);
    let project = Dispatch {
        kernels: vec![(usize::MAX, Kernel::Project)],
        params: of_cache.clone(),
        buffers: vec![&memory.step.buffer, q, &memory.projected],
        grid: Grid::Rows { x: (group * decl.n_kv_heads) as u32, rows: RowsOf::Step },
    };
    kv::SIDES.iter().for_each(|side| of_cache.extend(kv::side_params(decl, *side, &cx.p.limits)));
    let mut params = of_cache.clone();
    let window = window.unwrap_or(u32::MAX);
    let sinks = sinks.map_or(ABSENT, |sinks| cx.constant(sinks));
    let cap = soft_cap.unwrap_or(0.0).to_bits();
    params.extend([group as u32, tiles as u32, scale.to_bits(), 0, window, sinks, cap]);
    // The rows of an image that is seen whole see later positions, too.
    let is_ahead = ahead > 0 || whole_images;
    let sees_ahead = if is_ahead { vec![ahead, u32::from(whole_images)] } else { Vec::new() };
    params.extend(&sees_ahead);
    let with_tables = |mut params: Vec<u32>| {
        let tables = kv::SIDES.iter().flat_map(|side| kv::trellis_table(decl, *side)).collect::<Vec<_>>();
        if !tables.is_empty() {
            // They begin at a multiple of 16 bytes.
            params.resize(params.len().next_multiple_of(4), 0);
        }
        params.extend(tables);
        params
    };
    let params = with_tables(params);
    let (ahead, latent) = (is_ahead, decl.values_are_keys);
    let own = (decl.head_dim as u32).div_ceil(2 * THREADS);
    let blocks = (decl.n_kv_heads * tiles) as u32;
    let [keys, values] = &memory.kvs[kv.0 as usize];
    let (step, constants) = (&memory.step.buffer, &memory.constants);
    let [k, v] = kv::SIDES.map(|side| kv::codec(decl, side));
    let projected = projects(cx.p, s).then_some(&memory.projected);
    let tile_heads = group.min(QUERIES);
    let head_tiles = group.div_ceil(tile_heads);
    let quads = (decl.head_dim as u32).div_ceil(4 * LANES).next_power_of_two();
    let mut of_tiles = of_cache;
    of_tiles.extend([
        group as u32,
        head_tiles as u32,
        scale.to_bits(),
        tile_heads as u32,
        window,
        sinks,
        cap,
    ]);
    of_tiles.extend(sees_ahead);
    let tiled = tiling(cx.p).map(|_| Dispatch {
        kernels: vec![(usize::MAX, Kernel::AttendTile { k: k.codec, v: v.codec, quads, ahead })],
        params: with_tables(of_tiles),
        buffers: [step, constants, q, keys, values, out].into_iter().chain(projected).collect(),
        grid: Grid::Tiles { x: (decl.n_kv_heads * head_tiles) as u32 },
    });
    let by_row = [
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::Attend { k: k.codec, v: v.codec, own, ahead, latent })],
            params: params.clone(),
            buffers: [step, constants, q, keys, values, out, &memory.partial]
                .into_iter()
                .chain(projected)
                .collect(),
            grid: Grid::Splits { x: blocks, least: 1, rows: RowsOf::Step },
        },
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::AttendMerge { rotates: v.form.rotates() })],
            params,
            buffers: vec![step, constants, &memory.partial, out],
            grid: Grid::Splits { x: blocks, least: 2, rows: RowsOf::Step },
        },
    ];
    let gate = gate.map(|gate| {
        let (buf, cols) = (&memory.bufs[gate.0 as usize], cx.p.buf_decl(gate).cols);
        match gate_act {
            GateAct::Sigmoid => gate::dispatch(cx, buf, out, out_cols, gate::By::Sigmoid),
            GateAct::Softplus => gate::softplus(cx, buf, out, out_cols, out_cols / cols),
        }
    });
    projected.map(|_| project).into_iter().chain(by_row).chain(tiled).chain(gate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: usize) -> Tiling {
        Tiling { rows, by_window: true }
    }

    fn rows(seq: u32, positions: std::ops::Range<u32>) -> Vec<Row> {
        positions.map(|pos| Row { token: 0, pos, seq, logits: false }).collect()
    }

    #[test]
    fn a_split_has_two_pages_unless_there_are_fewer() {
        assert_eq!([1, 2, 3, 4, 5, 1000].map(|pages| splits(1, 8, pages)), [1, 1, 2, 2, 3, 32]);
        assert_eq!(splits(300, 8, 100), 1);
    }

    #[test]
    fn a_prompt_goes_in_tiles_and_decodes_side_by_side_do_not() {
        assert!(is_tiled(&rows(0, 5..21), of(8)) && !is_tiled(&rows(0, 5..20), of(8)));
        let side_by_side: Vec<Row> = (0..64).flat_map(|seq| rows(seq, 9..10)).collect();
        assert!(!is_tiled(&side_by_side, of(8)) && is_tiled(&side_by_side, of(1)));
    }
}
