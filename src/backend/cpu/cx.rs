//! Everything that a stage works with. Stages import this file; it knows none of them.

use super::kv::KvCache;
use super::layer::Layers;
use super::pool::Pool;
use super::rope::RopeTable;
use super::scratch::Scratch;
use super::states::States;
use super::weights::Weights;
use sterna_cpu_kernels::{Aligned, Kernels};
use sterna_program::{Basis, Buf, Step};

/// Everything that a stage works with.
pub struct Cx<'a> {
    pub k: &'a Kernels,
    pub pool: &'a Pool,
    pub step: &'a Step<'a>,
    /// Indices of the rows whose logits are requested.
    pub outputs: &'a [usize],
    pub weights: Weights<'a>,
    pub layers: Layers<'a>,
    pub bufs: &'a mut [Buffer],
    pub kvs: &'a mut [KvCache],
    pub states: &'a mut [States],
    pub ropes: &'a [RopeTable],
    pub bases: &'a [Basis],
    pub scratch: &'a mut Scratch,
    /// Buffer for one row of a table that is not in memory.
    pub file_row: &'a mut [u8],
    /// One per output row.
    pub tokens: &'a mut Vec<Option<Pick>>,
    pub picks: &'a mut [Picks],
}

/// A token that was picked from a row of logits.
#[derive(Clone, Copy)]
pub struct Pick {
    pub token: u32,
    /// True if some of these logits were NaN.
    pub from_broken: bool,
}

/// The last two picks of a slot, newest first.
pub type Picks = [Option<Pick>; 2];

/// An activation buffer, `[max_rows, cols]`.
pub struct Buffer {
    pub cols: usize,
    pub values: Aligned<f32>,
}

impl Buffer {
    /// The first `n` rows.
    pub fn rows(&self, n: usize) -> &[f32] {
        &self.values[..n * self.cols]
    }

    /// The first `n` rows.
    pub fn rows_mut(&mut self, n: usize) -> &mut [f32] {
        &mut self.values[..n * self.cols]
    }
}

/// One buffer to read and one to write. They differ, which the program's check ensures.
pub fn two(bufs: &mut [Buffer], read: Buf, write: Buf) -> (&Buffer, &mut Buffer) {
    let [read, write] = bufs.get_disjoint_mut([read.0 as usize, write.0 as usize]).expect("two buffers");
    (read, write)
}
