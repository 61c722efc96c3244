//! Inputs of linear layers, quantised as the program specifies.

use ggml_types::QuantType;

use super::formats::Multiply;
use crate::cpu::pool::{Grid, Pool};
use sterna_cpu_kernels::{
    Aligned, Allocator, BlockRows, F32Rows, Format, Heap, I8Rows, Kernels, RowQuant, Scratch, ScratchSize,
    interleaved, padded,
};
use sterna_program::ActQuant;

/// Workspace that is large enough for the inputs of some layers, in elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkspaceSize {
    q: usize,
    quant: usize,
    x: usize,
    /// Per thread.
    workspace: usize,
    scratch: ScratchSize,
}

impl WorkspaceSize {
    /// Grows the size to fit a layer with weights of type `ty` and up to `rows` rows of `cols` inputs of a
    /// `kind`.
    #[must_use]
    pub fn with(self, k: &Kernels, ty: &dyn QuantType, cols: usize, kind: ActQuant, rows: usize) -> Self {
        let multiply = Multiply::of(Format::of(ty), k, kind);
        let when = |wanted: bool, elems: usize| if wanted { elems } else { 0 };
        let of_floats = matches!(multiply, Multiply::Float(_) | Multiply::Decoded);
        Self {
            q: self.q.max(rows.saturating_mul(q_bytes(kind, cols))),
            quant: self.quant.max(when(kind == ActQuant::I8PerToken, rows)),
            x: self.x.max(when(of_floats, rows.saturating_mul(cols))),
            workspace: self.workspace.max(when(kind != ActQuant::None, cols)),
            scratch: self.scratch.max(match multiply {
                Multiply::Blocks(_) => ScratchSize::of_blocks(),
                Multiply::Int8(_) => ScratchSize::of_ternary(cols),
                Multiply::Float(_) => ScratchSize::of_floats(cols),
                Multiply::Decoded => ScratchSize::of_decoded(cols),
            }),
        }
    }
}

/// Bytes of a quantised row.
fn q_bytes(kind: ActQuant, cols: usize) -> usize {
    match kind {
        ActQuant::None => 0,
        ActQuant::I8PerToken => padded(cols),
        ActQuant::I8PerBlock => BlockRows::stride(cols),
    }
}

/// The inputs of the current linear layer, and the scratch memory that threads need to multiply them.
/// Allocates nothing after [`new`](Self::new).
pub struct Acts {
    rows: usize,
    cols: usize,
    kind: ActQuant,
    /// `[rows, padded(cols)]`, or rows of [`BlockRows`].
    q: Aligned<i8>,
    /// `[rows]`.
    quant: Vec<RowQuant>,
    /// `[rows, cols]`.
    x: Aligned<f32>,
    /// One per thread.
    workspaces: Vec<Workspace>,
    /// One per thread.
    scratch: Vec<Scratch>,
}

/// The rows in the form that each kind of kernel takes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub int8: I8Rows<'a>,
    pub blocks: BlockRows<'a>,
    pub floats: F32Rows<'a>,
}

impl<'a> Rows<'a> {
    /// Rows of f32, `[rows, cols]`.
    pub fn of_floats(x: &'a [f32], cols: usize) -> Self {
        let int8 = I8Rows { q: &[], quant: &[], cols };
        Self { int8, blocks: BlockRows { bytes: &[], cols }, floats: F32Rows { x, cols } }
    }
}

/// Scratch memory of a thread that quantises rows.
struct Workspace {
    x: Aligned<f32>,
    done: Vec<(usize, RowQuant)>,
}

impl Acts {
    /// Allocates a workspace of this size for a pool of `threads` threads.
    pub fn new(size: &WorkspaceSize, threads: usize) -> Self {
        Self::on(&mut Heap, size, threads)
    }

    /// As [`new`](Self::new), from an allocator's memory.
    pub fn on(on: &mut impl Allocator, size: &WorkspaceSize, threads: usize) -> Self {
        let threads = threads.max(1);
        let mut workspace = |_| Workspace { x: on.aligned(size.workspace), done: on.room(size.quant) };
        let workspaces = (0..threads).map(&mut workspace).collect();
        Self {
            rows: 0,
            cols: 0,
            kind: ActQuant::None,
            q: on.aligned(size.q),
            quant: on.zeros(size.quant),
            x: on.aligned(size.x),
            workspaces,
            scratch: (0..threads).map(|_| Scratch::new(on, &size.scratch)).collect(),
        }
    }

    /// Loads the inputs of a layer: `fill` writes row `row`, already normalised, which is then quantised as
    /// `kind`.
    ///
    /// # Panics
    /// If the workspace is too small for the layer.
    pub fn load(
        &mut self,
        k: &Kernels,
        pool: &Pool,
        kind: ActQuant,
        rows: usize,
        cols: usize,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        (self.rows, self.cols, self.kind) = (rows, cols, kind);
        match kind {
            ActQuant::None => {
                let x = &mut self.x[..rows * cols];
                pool.chunks_mut(x, cols, fill);
            }
            ActQuant::I8PerBlock => {
                let stride = BlockRows::stride(cols);
                let mut grids = [((), Grid::new(&mut self.q[..rows * stride], stride))];
                pool.tiles_with(&mut self.workspaces, &mut grids, 1, stride, |(), mut tile, workspace| {
                    let row = tile.rows().start;
                    let x = &mut workspace.x[..cols];
                    fill(row, x);
                    let (q, blocks) = tile.row_mut(row).split_at_mut(padded(cols));
                    (k.quantise_blocks)(x, &mut q[..cols], bytemuck::cast_slice_mut(blocks));
                });
            }
            ActQuant::I8PerToken => {
                let q = &mut self.q[..rows * padded(cols)];
                let mut grids = [((), Grid::new(q, padded(cols)))];
                pool.tiles_with(
                    &mut self.workspaces,
                    &mut grids,
                    1,
                    padded(cols),
                    |(), mut tile, workspace| {
                        let row = tile.rows().start;
                        let x = &mut workspace.x[..cols];
                        fill(row, x);
                        workspace.done.push((row, (k.quantise)(x, tile.row_mut(row))));
                    },
                );
                for (row, quant) in self.workspaces.iter_mut().flat_map(|workspace| workspace.done.drain(..))
                {
                    self.quant[row] = quant;
                }
            }
        }
    }

    /// Dequantises the rows, for weights without an integer kernel.
    pub(super) fn dequantise(&mut self, pool: &Pool) {
        let cols = self.cols;
        if self.kind == ActQuant::I8PerBlock {
            let rows = BlockRows { bytes: &self.q, cols };
            pool.chunks_mut(&mut self.x[..self.rows * cols], cols, |row, x| {
                let (q, blocks) = rows.row(row);
                for (i, (x, q)) in x.iter_mut().zip(q).enumerate() {
                    *x = f32::from(*q) * blocks[i / ActQuant::BLOCK].scale;
                }
            });
            return;
        }
        let q = I8Rows { q: &self.q, quant: &self.quant, cols };
        pool.chunks_mut(&mut self.x[..self.rows * cols], cols, |row, x| {
            let (values, quant) = (q.row(row), q.quant[row]);
            for (i, x) in x.iter_mut().enumerate() {
                *x = f32::from(values[interleaved(i)]) / quant.scale;
            }
        });
    }

    /// Number of loaded rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs of the layer.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Quantisation of the rows.
    pub fn kind(&self) -> ActQuant {
        self.kind
    }

    /// Rows loaded as f32, `[rows, cols]`, and every thread's scratch memory.
    pub fn floats(&mut self) -> (&[f32], &mut [Scratch]) {
        let (rows, scratch) = self.split();
        (rows.floats.x, scratch)
    }

    /// The rows in all forms, of which only the last written are valid, and every thread's scratch memory.
    pub(super) fn split(&mut self) -> (Rows<'_>, &mut [Scratch]) {
        let (rows, cols) = (self.rows, self.cols);
        let bytes = &self.q[..rows * q_bytes(self.kind, cols)];
        let rows = Rows {
            int8: I8Rows { q: bytes, quant: &self.quant, cols },
            blocks: BlockRows { bytes, cols },
            floats: F32Rows { x: &self.x[..self.x.len().min(rows * cols)], cols },
        };
        (rows, &mut self.scratch)
    }
}
