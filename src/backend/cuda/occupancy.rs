//! How many blocks of a launch a card holds at a time.

use super::driver::Limits;

/// Shared memory that the card keeps for itself of each block. A multiprocessor has as much more than a block
/// may ask for, on every card from compute capability 8.0 on.
const RESERVED_SHARED: u32 = 1 << 10;

/// Registers of a multiprocessor, and how many of them a warp takes at a time.
const REGISTERS: u32 = 65_536;
const REGISTERS_AT_A_TIME: u32 = 256;

/// Blocks that a multiprocessor has places for at most.
const PLACES: u32 = 16;

/// Blocks of a multiprocessor, as far as shared memory goes.
pub fn by_shared(limits: Limits, shared_bytes: u32) -> u32 {
    ((limits.shared_bytes + RESERVED_SHARED) / (shared_bytes + RESERVED_SHARED)).min(PLACES)
}

/// Blocks of a multiprocessor that runs up to `threads_at_a_time` of them: `threads` a block, each with so
/// many registers.
pub fn blocks(
    limits: Limits,
    threads_at_a_time: u32,
    threads: u32,
    registers: u32,
    shared_bytes: u32,
) -> u32 {
    let of_warp = (registers * 32).next_multiple_of(REGISTERS_AT_A_TIME);
    let by_registers = REGISTERS / of_warp / (threads / 32);
    by_shared(limits, shared_bytes).min(by_registers).min(threads_at_a_time / threads)
}
