//! Device memory by purpose: a [`Gpu`] allocates it, a [`Counter`] only counts it. The plan runs the
//! allocating code on a counter, so that no size is computed in two places.

use std::fmt::Display;

use wgpu::BufferUsages;

use crate::memory::Parts;
use crate::{BackendError, MemoryKind, MemoryPart};

/// Buffer usage for shaders, with copies from and to the host.
pub const STORAGE: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Size of a buffer for `bytes` bytes.
pub fn buffer_bytes(bytes: u64) -> u64 {
    bytes.max(16).checked_next_multiple_of(16).unwrap_or(u64::MAX)
}

/// A part of a program's memory, and its bytes.
pub type BufferPart<'a> = (MemoryKind, &'a str, u64);

/// Allocates buffers, or counts them.
pub trait Allocator {
    type Buffer;

    /// Allocates a zeroed buffer for some parts of a program's memory. `what` describes it in messages.
    fn buffer(
        &mut self,
        usage: BufferUsages,
        what: &dyn Display,
        parts: &[BufferPart<'_>],
    ) -> Result<Self::Buffer, BackendError>;

    /// Allocates a buffer for shaders, with copies from and to the host.
    fn storage(
        &mut self,
        what: &dyn Display,
        parts: &[BufferPart<'_>],
    ) -> Result<Self::Buffer, BackendError> {
        self.buffer(STORAGE, what, parts)
    }

    /// Allocates such a buffer for a part of the activations, tables and scratch.
    fn scratch(&mut self, part: &str, bytes: u64) -> Result<Self::Buffer, BackendError> {
        self.storage(&part, &[(MemoryKind::Buffers, part, bytes)])
    }

    /// Allocates a buffer through which such a part is read back to the host.
    fn mapped(&mut self, part: &str, bytes: u64) -> Result<Self::Buffer, BackendError> {
        let usage = BufferUsages::COPY_DST | BufferUsages::MAP_READ;
        self.buffer(usage, &part, &[(MemoryKind::Buffers, part, bytes)])
    }
}

pub fn sum(parts: &[BufferPart<'_>]) -> u64 {
    parts.iter().fold(0, |sum, (_, _, bytes)| sum.saturating_add(*bytes))
}

#[derive(Default)]
pub struct Counter {
    parts: Parts,
    /// Description and bytes of each buffer.
    buffers: Vec<(String, u64)>,
}

impl Counter {
    /// Buffers of more than `most` bytes: description and size.
    pub fn larger_than(&self, most: u64) -> impl Iterator<Item = &(String, u64)> {
        self.buffers.iter().filter(move |(_, bytes)| *bytes > most)
    }

    /// All requested parts, with their bytes.
    pub fn parts(self) -> Vec<MemoryPart> {
        self.parts.finish()
    }
}

impl Allocator for Counter {
    type Buffer = ();

    fn buffer(
        &mut self,
        _: BufferUsages,
        what: &dyn Display,
        parts: &[BufferPart<'_>],
    ) -> Result<(), BackendError> {
        let bytes = sum(parts);
        self.buffers.push((what.to_string(), bytes));
        // The bytes added by rounding up count towards the first part.
        let mut rounding_bytes = buffer_bytes(bytes) - bytes;
        for (kind, part, bytes) in parts {
            self.parts.add(*kind, part, bytes + std::mem::take(&mut rounding_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_counted_by_part_as_buffers_are_rounded() {
        let mut counter = Counter::default();
        counter.scratch("none", 0).unwrap();
        counter.scratch("odd", 17).unwrap();
        counter.mapped("odd", 16).unwrap();
        let kv = [(MemoryKind::Kv, "pages", 30), (MemoryKind::Kv, "exact", 6)];
        counter.storage(&"keys", &kv).unwrap();
        assert_eq!(counter.larger_than(17).collect::<Vec<_>>(), [&("keys".to_owned(), 36)]);
        let parts = counter.parts();
        let parts: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.bytes)).collect();
        assert_eq!(parts, [("pages", 42), ("exact", 6), ("none", 16), ("odd", 48)]);
    }
}
