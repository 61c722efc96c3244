//! Scratch memory of attention.

use sterna_cpu_kernels::{Aligned, Allocator};
use sterna_program::PAGE;

/// Positions per split.
pub const SPLIT: usize = 4 * PAGE;

/// Tasks per thread, enough to keep all threads busy although some tasks take longer.
pub const TASKS: usize = 4;

/// Target for the matrix product rows of a block of queries: enough to hide the latency of reading a page.
pub const BLOCK: usize = 64;

/// Sizes of the largest attention stages of a program.
#[derive(Clone, Copy, Default)]
pub struct Shape {
    head_dim: usize,
    n_kv_heads: usize,
    /// Query heads per KV head.
    group: usize,
}

impl Shape {
    /// The smallest shape that holds this one and a stage with `q_cols` query columns over such a cache.
    pub fn with(self, q_cols: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            head_dim: self.head_dim.max(head_dim),
            n_kv_heads: self.n_kv_heads.max(n_kv_heads),
            group: self.group.max(q_cols / (n_kv_heads * head_dim)),
        }
    }

    /// Matrix product rows of one block.
    fn block(self) -> usize {
        self.group.max(BLOCK)
    }

    fn partial_elems(self) -> usize {
        self.group * (self.head_dim + 2)
    }

    /// Elements of all partial results of a step whose tasks share splits.
    fn partials_elems(self, max_rows: usize, max_pages: usize, threads: usize) -> usize {
        let results = (TASKS * threads - 1).min(max_rows * self.n_kv_heads);
        if threads == 1 { 0 } else { results * max_pages.div_ceil(SPLIT / PAGE) * self.partial_elems() }
    }
}

/// Scratch memory for attention.
pub struct Scratch {
    pub threads: Vec<ThreadScratch>,
    /// Used when tasks share splits: `[rows, KV heads, splits, partial]`, where a partial result is `out` of
    /// each head of the group, then `max` and `total` of each.
    pub partials: Aligned<f32>,
    /// Last position of each row's sequence in the step.
    pub ends: Vec<u32>,
}

/// Scratch memory of one thread. `m` is the number of matrix product rows: queries times heads of a group.
pub struct ThreadScratch {
    /// Scaled queries, `[m, head_dim]`.
    pub q: Aligned<f32>,
    /// Projection of each query, if the cache stores signs of residuals.
    pub projected: Aligned<f32>,
    /// Dequantised keys or values of one page.
    pub tile: Aligned<f32>,
    /// `[head_dim]`.
    pub vector: Aligned<f32>,
    /// `[m, SPLIT]`.
    pub scores: Aligned<f32>,
    /// Result of the current split.
    pub part: Partial,
    /// Result of all splits so far.
    pub sum: Partial,
}

/// Result of attention over a subset of the positions.
pub struct Partial {
    /// Largest score per row and the sum of `exp(score - max)`; the sum is 0 if the row sees no position.
    pub weight: Vec<Weight>,
    /// Values weighted with `exp(score - max)`, `[m, head_dim]`.
    pub out: Aligned<f32>,
}

#[derive(Clone, Copy, Default)]
pub struct Weight {
    pub max: f32,
    pub total: f32,
}

impl Scratch {
    /// Allocates memory for stages of up to `shape`, in steps of up to `max_rows` rows and sequences of up to
    /// `max_pages` pages.
    pub fn new(
        on: &mut impl Allocator,
        shape: Shape,
        max_rows: usize,
        max_pages: usize,
        threads: usize,
    ) -> Self {
        Self {
            threads: (0..threads).map(|_| ThreadScratch::new(on, shape)).collect(),
            partials: on.aligned(shape.partials_elems(max_rows, max_pages, threads)),
            ends: on.zeros(max_rows),
        }
    }
}

impl ThreadScratch {
    fn new(on: &mut impl Allocator, shape: Shape) -> Self {
        let (m, head_dim) = (shape.block(), shape.head_dim);
        let mut partial = || Partial { weight: on.zeros(m), out: on.aligned(m * head_dim) };
        Self {
            part: partial(),
            sum: partial(),
            q: on.aligned(m * head_dim),
            projected: on.aligned(m * head_dim),
            tile: on.aligned(head_dim * PAGE),
            vector: on.aligned(head_dim),
            scores: on.aligned(m * SPLIT),
        }
    }
}
