//! Attention over the KV cache.
//!
//! The positions of a sequence are divided into splits of [`SPLIT`]. For a block of queries and one KV head,
//! a split yields a partial result: for each query the largest score, the sum of `exp(score - max)`, and the
//! values weighted with these. A query's partial results are merged in the order of its splits, so its output
//! does not depend, to the bit, on the other rows of the step, nor on which task computes which split: one
//! task goes through all splits of a block of queries or, with few queries, tasks share the splits.
//!
//! All query heads of a KV head are rows of the same two matrix products, so keys and values are read once
//! for all of them. A query is never multiplied with values at positions masked from it, so a NaN there does
//! not spread.

use std::ops::Range;

use super::cx::{Cx, two};
use super::delta::softplus;
use super::kv::{KvCache, KvSlice};
use super::pool::Grid;
use super::scratch::attend::{BLOCK, SPLIT, Scratch, TASKS, ThreadScratch, Weight};
use sterna_cpu_kernels::Tile;
use sterna_cpu_kernels::real::{Matrices, RealKernels, exp};
use sterna_program::{Attend, GateAct, PAGE, PageTable, Row};

/// Elements of one task when the gate is applied.
const CHUNK: usize = 8192;

pub fn run(cx: &mut Cx<'_>, s: &Attend) {
    attend(cx, s);
    let Some(gate) = s.gate else { return };
    let n = cx.step.rows.len();
    let (gate, out) = two(cx.bufs, gate, s.out);
    let (gate_cols, cols, k) = (gate.cols, out.cols, cx.k.real);
    let (gate, out) = (gate.rows(n), out.rows_mut(n));
    match s.gate_act {
        GateAct::Sigmoid => {
            cx.pool.chunks_mut(out, CHUNK, |i, out| (k.sigmoid_gate)(&gate[i * CHUNK..][..out.len()], out))
        }
        GateAct::Softplus => cx.pool.chunks_mut(out, cols, |row, out| {
            let parts = out.chunks_exact_mut(cols / gate_cols);
            for (part, gate) in parts.zip(&gate[row * gate_cols..]) {
                let by = softplus(*gate);
                part.iter_mut().for_each(|out| *out *= by);
            }
        }),
    }
}

fn attend(cx: &mut Cx<'_>, s: &Attend) {
    // `Attend::first` and `last` apply the window, the positions ahead and whole images, `run` the gate.
    let Attend {
        q,
        kv,
        scale,
        soft_cap,
        window: _,
        ahead: _,
        whole_images: _,
        sinks,
        gate: _,
        gate_act: _,
        out,
    } = *s;
    let rows = cx.step.rows;
    let (q, out) = two(cx.bufs, q, out);
    let (q_cols, q) = (q.cols, q.rows(rows.len()));
    let kv = &cx.kvs[kv.0 as usize];
    let (n_kv_heads, head_dim, threads) = (kv.n_kv_heads(), kv.head_dim(), cx.pool.threads());
    let group = q_cols / (n_kv_heads * head_dim);
    let pages = cx.step.pages;
    let sinks = sinks.map(|w| cx.weights.vector(w));
    let Scratch { threads: scratch, partials, ends } = &mut cx.scratch.attend;
    ends.clear();
    ends.extend(cx.step.ends());
    let ends = &**ends;
    let stage =
        Stage { k: cx.k.real, kv, pages, rows, ends, q, q_cols, s, scale, soft_cap, sinks, head_dim, group };
    let mut grids = [((), Grid::new(out.rows_mut(rows.len()), q_cols))];
    let group_cols = group * head_dim;

    let n_splits = (0..rows.len()).map(|row| stage.last(row) / SPLIT + 1).max().unwrap_or(0);
    if threads == 1 || n_splits == 1 || rows.len() * n_kv_heads >= TASKS * threads {
        let queries = (rows.len() * n_kv_heads / (TASKS * threads)).clamp(1, (BLOCK / group).max(1));
        cx.pool.tiles_with(scratch, &mut grids, queries, group_cols, |(), mut tile, scratch| {
            let head = tile.cols().start / group_cols;
            stage.blocks(tile.rows(), |block| stage.attend(block, head, scratch, &mut tile));
        });
        return;
    }

    let len = group * (head_dim + 2);
    let partials = &mut partials[..rows.len() * n_kv_heads * n_splits * len];
    let mut partial_grids = [((), Grid::new(&mut *partials, len))];
    cx.pool.tiles_with(scratch, &mut partial_grids, 1, len, |(), mut tile, scratch| {
        let i = tile.rows().start;
        let (row, head, split) = (i / n_splits / n_kv_heads, i / n_splits % n_kv_heads, i % n_splits);
        stage.load(row..row + 1, head, scratch);
        stage.split(row..row + 1, head, split, scratch);
        let (out, weights) = tile.row_mut(i).split_at_mut(group_cols);
        out.copy_from_slice(&scratch.part.out[..group_cols]);
        for (to, weight) in weights.chunks_exact_mut(2).zip(&scratch.part.weight) {
            to.copy_from_slice(&[weight.max, weight.total]);
        }
    });
    let partials = &*partials;
    cx.pool.tiles(&mut grids, 1, group_cols, |(), mut tile| {
        let (row, head) = (tile.rows().start, tile.cols().start / group_cols);
        let splits =
            partials[(row * n_kv_heads + head) * n_splits * len..][..n_splits * len].chunks_exact(len);
        for (i, out) in tile.row_mut(row).chunks_exact_mut(head_dim).enumerate() {
            let mut sum = Weight::default();
            for partial in splits.clone() {
                let (part_out, weights) = partial.split_at(group_cols);
                let part = Weight { max: weights[2 * i], total: weights[2 * i + 1] };
                merge(&mut sum, out, part, &part_out[i * head_dim..][..head_dim]);
            }
            let total = stage.total(sum, head * group + i);
            out.iter_mut().for_each(|out| *out /= total);
            stage.transform_back(out);
        }
    });
}

/// One attention stage over one step.
struct Stage<'a> {
    k: &'a RealKernels,
    kv: &'a KvCache,
    pages: &'a PageTable,
    rows: &'a [Row],
    ends: &'a [u32],
    /// `[rows, q_cols]`.
    q: &'a [f32],
    q_cols: usize,
    s: &'a Attend,
    scale: f32,
    soft_cap: Option<f32>,
    /// `[n_heads]`.
    sinks: Option<&'a [f32]>,
    head_dim: usize,
    group: usize,
}

impl Stage<'_> {
    /// First position that a row sees.
    fn first(&self, row: usize) -> usize {
        self.s.first(self.rows[row].pos) as usize
    }

    /// Last position that a row sees.
    fn last(&self, row: usize) -> usize {
        self.s.last(&self.rows[row], self.ends[row], self.pages) as usize
    }

    /// Range of positions that a row sees among the `len` from `start`, relative to `start`.
    fn seen(&self, row: usize, start: usize, len: usize) -> Range<usize> {
        let within = |at: usize| at.saturating_sub(start).min(len);
        within(self.first(row))..within(self.last(row) + 1)
    }

    /// Calls `block` for each run of rows of the same sequence.
    fn blocks(&self, rows: Range<usize>, mut block: impl FnMut(Range<usize>)) {
        let mut start = rows.start;
        for run in self.rows[rows].chunk_by(|a, b| a.seq == b.seq) {
            block(start..start + run.len());
            start += run.len();
        }
    }

    /// Computes attention of a block of queries over one KV head, into the block's rows of `out`.
    fn attend(&self, block: Range<usize>, head: usize, scratch: &mut ThreadScratch, out: &mut Tile<'_, f32>) {
        self.load(block.clone(), head, scratch);
        let (m, head_dim) = (block.len() * self.group, self.head_dim);
        scratch.sum.weight[..m].fill(Weight::default());
        let last = block.clone().map(|row| self.last(row)).max().unwrap_or(0);
        let first = block.clone().map(|row| self.first(row)).min().unwrap_or(0);
        for split in first / SPLIT..=last / SPLIT {
            self.split(block.clone(), head, split, scratch);
            let (part, sum) = (&scratch.part, &mut scratch.sum);
            for i in 0..m {
                let at = i * head_dim..(i + 1) * head_dim;
                merge(&mut sum.weight[i], &mut sum.out[at.clone()], part.weight[i], &part.out[at]);
            }
        }
        let sums = scratch.sum.out.chunks_exact(head_dim).zip(&scratch.sum.weight);
        let heads = (head * self.group..(head + 1) * self.group).cycle();
        let mut sums = sums.zip(heads).map(|((out, weight), head)| (out, self.total(*weight, head)));
        for row in block {
            for (out, (sum, total)) in out.row_mut(row).chunks_exact_mut(head_dim).zip(&mut sums) {
                out.iter_mut().zip(sum).for_each(|(out, sum)| *out = sum / total);
                self.transform_back(out);
            }
        }
    }

    /// Sum of a head's weights relative to its largest score, including the weight of its sink.
    fn total(&self, sum: Weight, head: usize) -> f32 {
        self.sinks.map_or(sum.total, |sinks| sum.total + exp(sinks[head] - sum.max))
    }

    /// Undoes the codec's rotation in `out`, `[head_dim]`, a weighted mean of rotated values.
    fn transform_back(&self, out: &mut [f32]) {
        if let Some(rotation) = self.kv.value_rotation() {
            rotation.undo(out);
        }
    }

    /// Gathers the block's query heads that share one KV head.
    fn load(&self, block: Range<usize>, head: usize, scratch: &mut ThreadScratch) {
        let group_cols = self.group * self.head_dim;
        for (row, to) in block.clone().zip(scratch.q.chunks_exact_mut(group_cols)) {
            let q = &self.q[row * self.q_cols + head * group_cols..][..group_cols];
            to.iter_mut().zip(q).for_each(|(to, q)| *to = q * self.scale);
        }
        if let Some(projection) = self.kv.key_projection() {
            let n = block.len() * group_cols;
            scratch.projected[..n].copy_from_slice(&scratch.q[..n]);
            scratch.projected[..n].chunks_exact_mut(self.head_dim).for_each(|q| projection.project_query(q));
        }
    }

    /// Computes the partial result of one split for the loaded block, into `scratch.part`.
    fn split(&self, block: Range<usize>, head: usize, split: usize, scratch: &mut ThreadScratch) {
        let Self { k, head_dim, group, .. } = *self;
        let ThreadScratch { q, projected, tile, vector, scores, part, .. } = scratch;
        let split_start = split * SPLIT;

        for page in self.pages_of(block.clone(), split) {
            let (tile, vector) = (&mut tile[..head_dim * PAGE], &mut vector[..head_dim]);
            let first = page.rows.start * group;
            let place = page.place(head, group);
            let n_queries = place.n_queries;
            let scores = &mut scores[first * SPLIT..];
            // The scores begin as the product of the query and the mean of the page's keys.
            let centred = self.kv.key_mean(place, vector);
            if centred {
                let queries = q[first * head_dim..].chunks_exact(head_dim).take(n_queries);
                for (scores, q) in scores.chunks_exact_mut(SPLIT).zip(queries) {
                    scores[page.at..][..PAGE].fill((k.dot)(q, vector));
                }
            }
            self.kv.keys(k, place, (tile, vector), |dims, keys| {
                let shape = Matrices {
                    m: n_queries,
                    k: dims.len(),
                    n: PAGE,
                    lda: head_dim,
                    ldb: PAGE,
                    ldc: SPLIT,
                    add: centred || dims.start > 0,
                };
                let (at, scores) = (first * head_dim + dims.start, &mut scores[page.at..]);
                keys.multiply(k, &shape, &q[at..], 0, scores);
                if let Some(residual) = keys.residual() {
                    residual.multiply(k, &Matrices { add: true, ..shape }, &projected[at..], 0, scores);
                }
            });
        }

        for (i, (scores, weight)) in scores.chunks_exact_mut(SPLIT).zip(&mut part.weight).enumerate() {
            let row = block.start + i / group;
            if row == block.end {
                break;
            }
            let scores = &mut scores[self.seen(row, split_start, SPLIT)];
            if let Some(cap) = self.soft_cap {
                scores.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
            }
            let max = (k.max)(scores);
            *weight = Weight { max, total: (k.exp_sum)(scores, max) };
        }

        part.out[..block.len() * group * head_dim].fill(0.0);
        for page in self.pages_of(block.clone(), split) {
            let tile = &mut tile[..head_dim * PAGE];
            self.kv.values(k, page.place(head, group), tile, |positions, values| {
                let mut multiply = |queries: Range<usize>, some: Range<usize>| {
                    let shape = Matrices {
                        m: queries.len() * group,
                        k: some.len(),
                        n: head_dim,
                        lda: SPLIT,
                        ldb: head_dim,
                        ldc: head_dim,
                        add: true,
                    };
                    let first = queries.start * group;
                    let scores = &scores[first * SPLIT + page.at + some.start..];
                    let skip = some.start - positions.start;
                    values.multiply(k, &shape, scores, skip, &mut part.out[first * head_dim..]);
                };
                // The positions that all rows see, and before and after them those that only some rows see:
                // each row sums in order of position, independent of the other rows.
                let within = |at: usize| at.clamp(positions.start, positions.end);
                let (start, end) = (within(page.all.start), within(page.all.end));
                let all = start..end.max(start);
                let alone = |part: Range<usize>| {
                    page.rows.clone().map(move |i| {
                        let seen = self.seen(block.start + i, split_start + page.at, PAGE);
                        (i..i + 1, seen.start.max(part.start)..seen.end.min(part.end))
                    })
                };
                let (before, after) = (alone(positions.start..all.start), alone(all.end..positions.end));
                let runs = before.chain([(page.rows.clone(), all.clone())]).chain(after);
                runs.filter(|(_, some)| !some.is_empty()).for_each(|(rows, some)| multiply(rows, some));
            });
        }
    }

    /// The pages of a split that any row of the block sees, each with the rows that see it. A page is listed
    /// twice if some rows read it exactly and later rows read its codes.
    fn pages_of(&self, block: Range<usize>, split: usize) -> impl Iterator<Item = Page> {
        let (rows, n) = (&self.rows[block.clone()], block.len());
        let starts = (split * SPLIT..(split + 1) * SPLIT).step_by(PAGE);
        // Rows are in order of position, and so are their sliding windows.
        let seen_by = starts.map(move |start| {
            let first = (0..n).take_while(|i| self.last(block.start + i) < start).count();
            (start, first..(0..n).take_while(|i| self.first(block.start + i) < start + PAGE).count())
        });
        seen_by.filter(|(_, rows)| !rows.is_empty()).flat_map(move |(start, seeing)| {
            let Range { start: first, end } = seeing;
            let i = start / PAGE;
            let exact_for = move |row: &Row| self.pages.exact_for(self.kv.window(), row, i);
            let cut = first + rows[first..end].partition_point(|row| exact_for(row).is_some());
            let groups = [first..cut, cut..end].into_iter().filter(|rows| !rows.is_empty());
            groups.map(move |group| {
                let seen = || group.clone().map(|i| self.seen(block.start + i, start, PAGE));
                let all = seen().map(|seen| seen.start).max().zip(seen().map(|seen| seen.end).min());
                Page {
                    number: self.kv.page_of(self.pages, rows[first].seq, i),
                    exact: exact_for(&rows[group.start]).map(|page| page as usize),
                    at: start % SPLIT,
                    all: all.map_or(0..0, |(start, end)| start..end),
                    most: seen().map(|seen| seen.end).max().unwrap_or(0),
                    rows: group,
                }
            })
        })
    }
}

/// A page, and the rows that read it in the same form.
struct Page {
    /// Number of the page in the cache.
    number: usize,
    /// Number of the exact page, if the rows read that.
    exact: Option<usize>,
    /// Offset of the page in its split, in positions.
    at: usize,
    /// Rows of the block.
    rows: Range<usize>,
    /// Positions that all of the rows see; may be empty if the rows are far apart.
    all: Range<usize>,
    /// End of the positions that any of the rows sees.
    most: usize,
}

impl Page {
    /// The slice of the cache that the rows read with `group` query heads each.
    fn place(&self, head: usize, group: usize) -> KvSlice {
        let Self { number: page, exact, most: n, .. } = *self;
        KvSlice { head, page, exact, n, n_queries: self.rows.len() * group }
    }
}

/// Merges the partial result of a later split into `sum` and `out`.
fn merge(sum: &mut Weight, out: &mut [f32], part: Weight, part_out: &[f32]) {
    if part.total == 0.0 {
        return;
    }
    if sum.total == 0.0 {
        *sum = part;
        out.copy_from_slice(part_out);
        return;
    }
    let max = if part.max > sum.max { part.max } else { sum.max };
    let (old, new) = (exp(sum.max - max), exp(part.max - max));
    *sum = Weight { max, total: sum.total * old + part.total * new };
    out.iter_mut().zip(part_out).for_each(|(out, part)| *out = *out * old + part * new);
}
