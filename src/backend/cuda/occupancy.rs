//! How many blocks of a launch a card holds at a time.

use super::driver::Limits;
use super::driver::cards::{RESERVED_SHARED_BYTES, Spec};

/// How many registers a warp takes at a time.
const REGISTERS_AT_A_TIME: u32 = 256;

/// Blocks that a multiprocessor has places for at most.
const PLACES: u32 = 16;

/// Blocks of a multiprocessor, as far as shared memory goes. A multiprocessor has as much more than a block
/// may ask for as it keeps of each, on every card from compute capability 8.0 on.
pub fn by_shared(limits: Limits, shared_bytes: u32) -> u32 {
    let of_block = shared_bytes + RESERVED_SHARED_BYTES;
    ((limits.shared_bytes + RESERVED_SHARED_BYTES) / of_block).min(PLACES)
}

/// Blocks of a multiprocessor: `threads` each, with so many registers a thread.
pub fn blocks(card: &Spec, threads: u32, registers: u32, shared_bytes: u32) -> u32 {
    let of_warp = (registers * 32).next_multiple_of(REGISTERS_AT_A_TIME);
    let by_registers = card.registers / of_warp / (threads / 32);
    by_shared(card.limits(), shared_bytes).min(by_registers).min(card.threads / threads)
}
