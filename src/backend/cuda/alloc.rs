//! GPU memory by purpose: a driver allocates it, a [`Counter`] only counts it. The plan runs the allocating
//! code with a counter, so that no size is written down twice.

use super::driver::{Address, Blocks, Driver, Mailboxes};
use crate::memory::Parts;
use crate::{BackendError, MemoryKind, MemoryPart};

/// Allocates memory, or counts it.
pub trait Allocator {
    /// Zeroed memory for one part of a program; address 0 if it has no bytes.
    fn alloc_for(&mut self, kind: MemoryKind, part: &str, bytes: u64) -> Result<Address, BackendError>;

    /// `n` words of host memory that kernels write.
    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError>;

    /// The same for activations, tables and scratch memory.
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

/// Counts the requested bytes. Every address is 0.
#[derive(Default)]
pub struct Counter {
    parts: Parts,
    blocks: Blocks,
    block_bytes: u64,
}

impl Counter {
    /// Total bytes requested.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// Bytes that a driver's blocks take in addition, if it gets the same requests in the same order.
    pub fn rounding_bytes(&self) -> u64 {
        self.block_bytes.saturating_sub(self.bytes())
    }

    /// All requested parts with their bytes.
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
