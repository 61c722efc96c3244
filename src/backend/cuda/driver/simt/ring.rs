//! Copies ahead of use, as late as they may be: a slot is poison from when a copy to it is queued, and has
//! its bytes when it is acquired, or before, as a seed has it.

use std::ops::Range;

use super::super::Address;

/// Contents of a slot before its copy is there: no number in any type of floats.
pub const POISON: u8 = 0xff;

/// Slots that are filled from memory of the host.
pub struct Copies {
    /// Where the memory of the host lies, which kernels may read.
    host: Address,
    bytes: usize,
    slots: Vec<Slot>,
    /// Picks which copies are early: 0 for none.
    seed: u64,
    n_copies: u64,
}

#[derive(Clone, Default)]
struct Slot {
    queued: Option<(Address, Range<usize>)>,
    /// Between `acquire` and `release`.
    in_use: bool,
}

impl Copies {
    /// From so many bytes that lie there.
    pub fn new(host: Address, bytes: u64, slots: usize, seed: u64) -> Self {
        Self { host, bytes: bytes as usize, slots: vec![Slot::default(); slots], seed, n_copies: 0 }
    }

    /// Where kernels find its bytes.
    pub fn address(&self) -> Address {
        self.host
    }

    /// Where some bytes from `at` on lie.
    pub fn place(&self, at: u64, bytes: usize) -> Address {
        assert!(at as usize + bytes <= self.bytes, "{bytes} bytes at {at} of {}", self.bytes);
        self.host + at
    }

    /// Takes note of a copy, and says whether it is made only when it is waited for.
    pub fn queue(&mut self, slot: usize, to: Address, from: Range<u64>) -> Result<bool, String> {
        let from = from.start as usize..from.end as usize;
        assert!(from.start <= from.end && from.end <= self.bytes, "{from:?} of {}", self.bytes);
        let of = &mut self.slots[slot];
        if of.in_use {
            return Err(format!("slot {slot} is in use"));
        }
        of.queued = Some((to, from));
        self.n_copies += 1;
        let mixed = (self.seed ^ (self.n_copies << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(self.seed == 0 || mixed >> 63 == 0)
    }

    /// The copy that is queued for a slot: where to, where from, and its bytes.
    pub fn take(&mut self, slot: usize) -> Option<(Address, Address, usize)> {
        let (to, from) = self.slots[slot].queued.take()?;
        Some((to, self.host + from.start as u64, from.len()))
    }

    pub fn acquire(&mut self, slot: usize) {
        self.slots[slot].in_use = true;
    }

    pub fn release(&mut self, slot: usize) {
        self.slots[slot].in_use = false;
    }
}
