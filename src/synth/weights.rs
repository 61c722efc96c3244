//! The bytes of one random tensor, piece by piece.

use super::random::Random;
use super::{Fill, Tensor};

/// Number of values that are drawn and encoded per tensor. Larger tensors are assembled from them, which is
/// as fast as copying and avoids the slow reference encoders.
const POOL_ELEMS: usize = 1 << 16;
/// Maximum number of elements that are copied together; but at least a block, and at least whole rows if
/// these share data.
const UNIT_ELEMS: usize = 64;
/// Minimum size of a piece in bytes, except for the last.
const PIECE_BYTES: usize = 1 << 18;

pub(super) struct Pieces {
    /// Encoded units, each `unit_bytes` long.
    pool: Vec<u8>,
    unit_bytes: usize,
    /// True if the tensor is exactly the pool.
    whole: bool,
    units_left: usize,
    /// Data that the type stores after the rows, until it is written.
    tail: Option<Vec<u8>>,
    random: Random,
}

impl Pieces {
    /// Prepares the pieces of a tensor, whose shape must fit its type.
    pub fn new(tensor: &Tensor, seed: u64) -> Self {
        let (rows, cols) = tensor.shape();
        let (ty, block) = (tensor.ty, tensor.ty.block_elems());
        let unit_blocks =
            (1..=UNIT_ELEMS / block).rev().find(|n| cols.is_multiple_of(n * block)).unwrap_or(1);
        // Some types store data before the blocks of a row or of a group of rows.
        let has_head = ty.row_bytes(0).is_ok_and(|bytes| bytes > 0);
        let unit = if has_head { cols } else { unit_blocks * block };
        let together = ty.rows_together();
        let units_left = rows / together * (cols / unit);
        let pool_units = units_left.min((POOL_ELEMS / unit / together).max(1));
        let mut random = Random::new(seed, &tensor.name);
        let n_rows = pool_units * together;
        let values: Vec<f32> = (0..n_rows * unit).map(|_| tensor.fill.draw(&mut random)).collect();
        let mut pool = ty.encode(&values, n_rows, unit).expect("a multiple of the block");
        let unit_bytes = together * ty.row_bytes(unit).expect("a multiple of the block");
        let tail = pool.split_off(pool_units * unit_bytes);
        Self { pool, unit_bytes, whole: pool_units == units_left, units_left, tail: Some(tail), random }
    }
}

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.units_left == 0 {
            return self.tail.take();
        }
        if self.whole {
            self.units_left = 0;
            return Some(std::mem::take(&mut self.pool));
        }
        let n_units = PIECE_BYTES.div_ceil(self.unit_bytes).min(self.units_left);
        self.units_left -= n_units;
        let n_pool = self.pool.len() / self.unit_bytes;
        let mut piece = Vec::with_capacity(n_units * self.unit_bytes);
        for _ in 0..n_units {
            let at = self.random.below(n_pool) * self.unit_bytes;
            piece.extend_from_slice(&self.pool[at..at + self.unit_bytes]);
        }
        Some(piece)
    }
}

impl Fill {
    fn draw(self, random: &mut Random) -> f32 {
        match self {
            Self::Dense(deviation) => random.bell() * deviation,
            Self::Ternary(magnitude) => [-magnitude, 0.0, 0.0, magnitude][random.below(4)],
            Self::NearOne => 1.0 + random.bell() * 0.0625,
            Self::Between(low, high) => low + (high - low) * (random.below(1 << 16) as f32 / 65536.0),
        }
    }
}
