//! Memory of a device by what it is for: a [`Gpu`] gives it, a [`Counter`] only counts it. The plan is what
//! the code that allocates asks of a counter, so that no size is written down a second time.

use std::fmt::Display;

use wgpu::BufferUsages;

use crate::memory::Parts;
use crate::{BackendError, MemoryKind, MemoryPart};

/// Uses of memory for shaders, which the host may write and read.
pub const STORAGE: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Bytes of a buffer for so many.
pub fn buffer_bytes(bytes: u64) -> u64 {
    bytes.max(16).checked_next_multiple_of(16).unwrap_or(u64::MAX)
}

/// A part of what a program takes, and bytes of it.
pub type BufferPart<'a> = (MemoryKind, &'a str, u64);

/// Gives buffers, or counts them.
pub trait Allocator {
    type Buffer;

    /// A buffer with some parts of what a program takes, zero. `what` it has in it is for people.
    fn buffer(
        &mut self,
        usage: BufferUsages,
        what: &dyn Display,
        parts: &[BufferPart<'_>],
    ) -> Result<Self::Buffer, BackendError>;

    /// The same for shaders, which the host may write and read.
    fn storage(
        &mut self,
        what: &dyn Display,
        parts: &[BufferPart<'_>],
    ) -> Result<Self::Buffer, BackendError> {
        self.buffer(STORAGE, what, parts)
    }

    /// The same for a part of the activations, tables and scratch.
    fn scratch(&mut self, part: &str, bytes: u64) -> Result<Self::Buffer, BackendError> {
        self.storage(&part, &[(MemoryKind::Buffers, part, bytes)])
    }

    /// A buffer that such a part comes back to the host in.
    fn mapped(&mut self, part: &str, bytes: u64) -> Result<Self::Buffer, BackendError> {
        let usage = BufferUsages::COPY_DST | BufferUsages::MAP_READ;
        self.buffer(usage, &part, &[(MemoryKind::Buffers, part, bytes)])
    }
}

/// Bytes of all parts.
pub fn sum(parts: &[BufferPart<'_>]) -> u64 {
    parts.iter().fold(0, |sum, (_, _, bytes)| sum.saturating_add(*bytes))
}

/// Counts the buffers that it is asked for.
#[derive(Default)]
pub struct Counter {
    parts: Parts,
    /// Content of each, and its bytes.
    buffers: Vec<(String, u64)>,
}

impl Counter {
    /// Buffers of more than so many bytes: what they were to have in them, and their bytes.
    pub fn larger_than(&self, most: u64) -> impl Iterator<Item = &(String, u64)> {
        self.buffers.iter().filter(move |(_, bytes)| *bytes > most)
    }

    /// All parts that it was asked for, with their bytes.
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
        // What a buffer is rounded up by is of its first part.
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
