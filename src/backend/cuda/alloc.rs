//! Memory of the card by what it is for: a driver gives it, a [`Counter`] only counts it. The plan is what
//! the code that allocates asks of a counter, so that no size is written down a second time.

use super::driver::{Address, Blocks, Driver, Mailboxes};
use crate::memory::Parts;
use crate::{BackendError, MemoryKind, MemoryPart};

/// Gives memory, or counts it.
pub trait Allocator {
    /// Zeroed memory for a part of what a program takes; address 0 where it has no bytes.
    fn alloc_for(&mut self, kind: MemoryKind, part: &str, bytes: u64) -> Result<Address, BackendError>;

    /// `n` words of the host that kernels write.
    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError>;

    /// The same for a part of the activations, tables and scratch.
    fn buffer(&mut self, part: &str, bytes: u64) -> Result<Address, BackendError> {
        self.alloc_for(MemoryKind::Buffers, part, bytes)
    }
}

impl Allocator for dyn Driver + '_ {
    fn alloc_for(&mut self, _: MemoryKind, _: &str, bytes: u64) -> Result<Address, BackendError> {
        if bytes > 0 { self.alloc(bytes) } else { Ok(0) }
    }

    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError> {
        Driver::mailboxes(self, n)
    }
}

/// Counts what it is asked for. Every address is 0.
#[derive(Default)]
pub struct Counter {
    parts: Parts,
    blocks: Blocks,
    block_bytes: u64,
}

impl Counter {
    /// All bytes that it was asked for.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// As many as a driver has in its blocks besides, if it is asked in the same order.
    pub fn rounding_bytes(&self) -> u64 {
        self.block_bytes.saturating_sub(self.bytes())
    }

    /// All parts that it was asked for, with their bytes.
    pub fn parts(self) -> Vec<MemoryPart> {
        self.parts.finish()
    }
}

impl Allocator for Counter {
    fn alloc_for(&mut self, kind: MemoryKind, part: &str, bytes: u64) -> Result<Address, BackendError> {
        self.parts.add(kind, part, bytes);
        if bytes > 0 && self.blocks.find(bytes).is_none() {
            let block_bytes = self.blocks.block_bytes(bytes);
            self.blocks.add(0, block_bytes, bytes);
            self.block_bytes = self.block_bytes.saturating_add(block_bytes);
        }
        Ok(0)
    }

    fn mailboxes(&mut self, _: usize) -> Result<Mailboxes, BackendError> {
        Ok(Mailboxes { at: 0, id: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_counted_by_part_and_rounded_by_block() {
        const MIB: u64 = 1 << 20;
        let mut counter = Counter::default();
        let asked = [("small", 5), ("large", 3 * MIB), ("small", MIB - 1), ("none", 0), ("large", MIB)];
        for (part, bytes) in asked {
            assert_eq!(counter.buffer(part, bytes).unwrap(), 0);
        }
        counter.alloc_for(MemoryKind::Weights, "large", 2 * MIB).unwrap();
        assert_eq!((counter.bytes(), counter.rounding_bytes()), (7 * MIB + 4, MIB - 4));
        let parts = counter.parts();
        let parts: Vec<_> =
            parts.iter().map(|part| (part.kind.name(), part.name.as_str(), part.bytes)).collect();
        let want =
            [("weights", "large", 2 * MIB), ("buffers", "small", MIB + 4), ("buffers", "large", 4 * MIB)];
        assert_eq!(parts, want);
    }
}
