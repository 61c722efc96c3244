//! Inputs of linear layers, rounded as the program says.

use super::{CpuWeight, Multiply};
use crate::backend::cpu::pool::{Grid, Pool};
use crate::backend::cpu::simd::{F32Rows, I8Rows, Kernels, RowQuant, Scratch, arranged, padded};
use crate::program::ActQuant;

/// The inputs of one linear layer at a time, and what threads need to multiply them.
///
/// It allocates in [`reserve`](Self::reserve) alone.
pub struct Acts {
    rows: usize,
    cols: usize,
    kind: ActQuant,
    /// `[rows, padded(cols)]`.
    q: Aligned,
    /// `[rows]`.
    quant: Vec<RowQuant>,
    /// `[rows, cols]`.
    x: Vec<f32>,
    /// One a thread.
    filling: Vec<Filling>,
    /// One a thread.
    scratch: Vec<Scratch>,
}

/// What a thread needs to round rows.
#[derive(Default)]
struct Filling {
    x: Vec<f32>,
    done: Vec<(usize, RowQuant)>,
}

impl Acts {
    /// No room yet, for regions of a pool of `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self {
            rows: 0,
            cols: 0,
            kind: ActQuant::None,
            q: Aligned::default(),
            quant: Vec::new(),
            x: Vec::new(),
            filling: (0..threads.max(1)).map(|_| Filling::default()).collect(),
            scratch: (0..threads.max(1)).map(|_| Scratch::default()).collect(),
        }
    }

    /// Makes room for layers that multiply up to `rows` rows with `w`.
    pub fn reserve(&mut self, k: &Kernels, w: &CpuWeight, kind: ActQuant, rows: usize) {
        let multiply = w.format.multiply(k, kind);
        if kind == ActQuant::I8PerToken {
            self.q.grow(rows * padded(w.cols));
            grow(&mut self.quant, rows);
            for filling in &mut self.filling {
                grow(&mut filling.x, w.cols);
                filling.done.reserve(rows);
            }
        }
        if !matches!(multiply, Multiply::Int8(_)) {
            grow(&mut self.x, rows * w.cols);
        }
        for scratch in &mut self.scratch {
            scratch.reserve(w.cols);
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let filling: usize = self.filling.iter().map(|f| 4 * f.x.len() + size_of_val(&*f.done)).sum();
        let scratch: usize = self.scratch.iter().map(Scratch::bytes).sum();
        self.q.bytes.len() + size_of_val(&*self.quant) + 4 * self.x.len() + filling + scratch
    }

    /// Takes the inputs of a layer: `fill` writes row `row` (normed already), which is then rounded as `kind` says.
    ///
    /// # Panics
    /// Where there is no room: see [`reserve`](Self::reserve).
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
            ActQuant::I8PerToken => {
                let q = self.q.slice_mut(rows * padded(cols));
                let mut grids = [((), Grid::new(q, padded(cols)))];
                pool.tiles_with(&mut self.filling, &mut grids, 1, padded(cols), |(), mut tile, filling| {
                    let row = tile.rows().start;
                    let x = &mut filling.x[..cols];
                    fill(row, x);
                    filling.done.push((row, (k.quantise)(x, tile.row_mut(row))));
                });
                for (row, quant) in self.filling.iter_mut().flat_map(|filling| filling.done.drain(..)) {
                    self.quant[row] = quant;
                }
            }
        }
    }

    /// Writes the rounded rows as floats again, for weights without a kernel for integers.
    pub(super) fn spread(&mut self, pool: &Pool) {
        let cols = self.cols;
        let q = I8Rows { q: self.q.slice(), quant: &self.quant, cols };
        pool.chunks_mut(&mut self.x[..self.rows * cols], cols, |row, x| {
            let (values, quant) = (q.row(row), q.quant[row]);
            for (i, x) in x.iter_mut().enumerate() {
                *x = f32::from(values[arranged(i)]) / quant.scale;
            }
        });
    }

    /// Rows that were loaded.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the layer.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the rows were rounded.
    pub fn kind(&self) -> ActQuant {
        self.kind
    }

    /// Both forms of the rows (one of them may be out of date) and every thread's scratch.
    pub(super) fn split(&mut self) -> (I8Rows<'_>, F32Rows<'_>, &mut [Scratch]) {
        let (rows, cols) = (self.rows, self.cols);
        let (q, x) = match self.kind {
            ActQuant::None => (0, rows * cols),
            ActQuant::I8PerToken => (rows * padded(cols), self.x.len().min(rows * cols)),
        };
        (
            I8Rows { q: &self.q.slice()[..q], quant: &self.quant, cols },
            F32Rows { x: &self.x[..x], cols },
            &mut self.scratch,
        )
    }
}

fn grow<T: Clone + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::default());
    }
}

/// Bytes that begin at a multiple of 64, so that no load of a whole vector crosses a cache line.
#[derive(Default)]
struct Aligned {
    bytes: Vec<i8>,
    start: usize,
}

impl Aligned {
    fn grow(&mut self, len: usize) {
        if self.bytes.len() < len + 64 {
            self.bytes = vec![0; len + 64];
            self.start = self.bytes.as_ptr().align_offset(64).min(64);
        }
    }

    fn slice(&self) -> &[i8] {
        &self.bytes[self.start..]
    }

    fn slice_mut(&mut self, len: usize) -> &mut [i8] {
        &mut self.bytes[self.start..][..len]
    }
}
