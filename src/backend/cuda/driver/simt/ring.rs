//! Copies ahead of use, as late as they may be: a slot is poison from when a copy to it is queued, and has
//! its bytes when it is acquired, or before, as a seed has it.

use std::ops::Range;

use super::super::Address;

/// Contents of a slot before its copy is there: no number in any type of floats.
pub const POISON: u8 = 0xff;

/// Slots that are filled from memory of the host.
pub struct Copies {
    host: Vec<u8>,
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
    /// Of so many bytes, if there is so much memory.
    pub fn new(bytes: u64, slots: usize, seed: u64) -> Option<Self> {
        let (mut host, bytes) = (Vec::new(), usize::try_from(bytes).ok()?);
        host.try_reserve_exact(bytes).ok()?;
        host.resize(bytes, 0);
        Some(Self { host, slots: vec![Slot::default(); slots], seed, n_copies: 0 })
    }

    pub fn fill(&mut self, at: u64, bytes: &[u8]) {
        self.host[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Takes note of a copy, and says whether it is made only when it is waited for.
    pub fn queue(&mut self, slot: usize, to: Address, from: Range<u64>) -> Result<bool, String> {
        let from = from.start as usize..from.end as usize;
        assert!(from.start <= from.end && from.end <= self.host.len(), "{from:?} of {}", self.host.len());
        let of = &mut self.slots[slot];
        if of.in_use {
            return Err(format!("slot {slot} is in use"));
        }
        of.queued = Some((to, from));
        self.n_copies += 1;
        let mixed = (self.seed ^ (self.n_copies << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(self.seed == 0 || mixed >> 63 == 0)
    }

    /// The copy that is queued for a slot: where to, and the bytes.
    pub fn take(&mut self, slot: usize) -> Option<(Address, &[u8])> {
        let (to, from) = self.slots[slot].queued.take()?;
        Some((to, &self.host[from]))
    }

    pub fn acquire(&mut self, slot: usize) {
        self.slots[slot].in_use = true;
    }

    pub fn release(&mut self, slot: usize) {
        self.slots[slot].in_use = false;
    }
}
