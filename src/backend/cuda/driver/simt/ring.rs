//! Copies ahead of use, as late as allowed: a slot holds poison from the moment its copy is queued, and its
//! bytes once it is acquired, or earlier, depending on a seed.

use std::ops::Range;

use super::super::Address;

/// Contents of a slot before its copy arrives: NaN in every type of floats.
pub const POISON: u8 = 0xff;

/// Slots that are filled from host memory.
pub struct Copies {
    /// Address of the host memory, which kernels may read.
    host: Address,
    bytes: usize,
    slots: Vec<Slot>,
    /// Selects the copies that arrive early: 0 for none.
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
    /// Copies from `bytes` bytes at `host`.
    pub fn new(host: Address, bytes: u64, slots: usize, seed: u64) -> Self {
        Self { host, bytes: bytes as usize, slots: vec![Slot::default(); slots], seed, n_copies: 0 }
    }

    /// Address of its bytes for kernels.
    pub fn address(&self) -> Address {
        self.host
    }

    /// Address of `bytes` bytes from offset `at` on.
    pub fn place(&self, at: u64, bytes: usize) -> Address {
        assert!(at as usize + bytes <= self.bytes, "{bytes} bytes at {at} of {}", self.bytes);
        self.host + at
    }

    /// Queues a copy, and returns true if it is performed only when it is waited for.
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

    /// The copy that is queued for a slot: destination, source and bytes.
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
