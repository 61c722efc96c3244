//! Shared memory of the blocks of linear layers, for activations and norms.

use crate::cuda::driver::Limits;
use crate::cuda::occupancy;
use crate::cuda::params::{LINEAR_HEADER_BYTES, LINEAR_THREADS, NORM_SHARED_COLS, PART_COLS, PART_UNITS};
use crate::cuda::weight::Products;

/// Bytes of shared memory for `rows` rows of activations at a time.
pub fn shared_bytes(products: Products, cols: usize, rows: usize) -> usize {
    (LINEAR_HEADER_BYTES as usize + rows * products.act_bytes(cols)).next_multiple_of(16)
}

/// The part of a layer's rows of activations that is in shared memory at a time.
#[derive(Clone, Copy)]
pub struct Part {
    /// Chunks of a row: all of them, or a part.
    pub chunks: usize,
    /// Bytes of shared memory for it, and for the sums that are kept from one part to the next.
    pub shared_bytes: usize,
    /// Maximum number of sets of weight rows per warp.
    pub units: usize,
}

/// The part for `rows` rows of activations at a time; `None` if these are integers and too long. If the
/// weights of a row's norm are in shared memory ([`NORM_SHARED_COLS`]), it is the whole row.
pub fn part(products: Products, limits: Limits, cols: usize, rows: usize) -> Option<Part> {
    let (chunks, room) = (products.chunks(cols), limits.shared_bytes as usize);
    let whole = shared_bytes(products, cols, rows);
    if whole <= room {
        return Some(Part { chunks, shared_bytes: whole, units: usize::MAX });
    }
    if !products.multiplies_floats() {
        return None;
    }
    // Sums of a thread, per unit of its warp.
    let units = PART_UNITS as usize;
    let kept = 4 * units * LINEAR_THREADS as usize;
    // Two blocks per multiprocessor: one multiplies while the other loads a part.
    let least = PART_COLS as usize;
    let fits = |cols: &usize| {
        let bytes = shared_bytes(products, *cols, rows) + kept;
        bytes <= room && (*cols == least || occupancy::by_shared(limits, bytes as u32) >= 2)
    };
    let cols = (1..cols.div_ceil(least)).rev().map(|n| n * least).find(fits)?;
    Some(Part {
        chunks: products.chunks(cols),
        shared_bytes: shared_bytes(products, cols, rows) + kept,
        units,
    })
}

/// Bytes of shared memory for a block that normalises a row, including the norm's weights if these are few
/// enough.
pub fn norm_bytes(cols: usize) -> usize {
    norm_bytes_up_to(NORM_SHARED_COLS, cols)
}

pub fn norm_bytes_up_to(most: u32, cols: usize) -> usize {
    let shares = cols <= most as usize;
    (LINEAR_HEADER_BYTES as usize + if shares { 4 * cols } else { 0 }).next_multiple_of(16)
}
