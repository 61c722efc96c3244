//! The number of blocks of a launch that are resident on a GPU at a time.

use super::driver::Limits;
use super::driver::cards::{RESERVED_SHARED_BYTES, Spec};

/// Granularity in which a warp's registers are allocated.
const REGISTERS_AT_A_TIME: u32 = 256;

/// Maximum number of blocks per multiprocessor.
const PLACES: u32 = 16;

/// Blocks per multiprocessor, limited by shared memory only. A multiprocessor has the maximum of one block
/// plus the amount it reserves per block, on every GPU from compute capability 8.0 on.
pub fn by_shared(limits: Limits, shared_bytes: u32) -> u32 {
    let of_block = shared_bytes + RESERVED_SHARED_BYTES;
    ((limits.shared_bytes + RESERVED_SHARED_BYTES) / of_block).min(PLACES)
}

/// Blocks per multiprocessor, for blocks of `threads` threads with `registers` registers each.
pub fn blocks(card: &Spec, threads: u32, registers: u32, shared_bytes: u32) -> u32 {
    let of_warp = (registers * 32).next_multiple_of(REGISTERS_AT_A_TIME);
    let by_registers = card.registers / of_warp / (threads / 32);
    by_shared(card.limits(), shared_bytes).min(by_registers).min(card.threads / threads)
}
