//! Host memory by purpose: [`Heap`] allocates it, a [`Counter`] only counts it. The plan runs the allocating
//! code with a counter, so no size is written down twice.

use crate::memory::{self, EXACT_PART, Parts};
use crate::{MemoryKind, MemoryPart};
use sterna_cpu_kernels::{Aligned, Allocator, Heap};
use sterna_program::KvDecl;

/// An allocator that is told the purpose of the memory.
pub trait PartAllocator: Allocator {
    /// Assigns the following requests to this part of the program's memory.
    fn part(&mut self, kind: MemoryKind, name: &str) -> &mut Self;

    /// Words for a cache's pages and exact pages; the array has the bytes of both.
    fn pages(&mut self, decl: &KvDecl, bytes: [usize; 2]) -> Aligned<u64>;

    /// Assigns the following requests to this part of the activations, tables and scratch.
    fn buffers(&mut self, name: &str) -> &mut Self {
        self.part(MemoryKind::Buffers, name)
    }
}

impl PartAllocator for Heap {
    fn part(&mut self, _: MemoryKind, _: &str) -> &mut Self {
        self
    }

    fn pages(&mut self, _: &KvDecl, [pages, exact]: [usize; 2]) -> Aligned<u64> {
        self.aligned((pages + exact) / size_of::<u64>())
    }
}

/// Counts requests and allocates nothing.
#[derive(Default)]
pub struct Counter {
    parts: Parts,
    /// Part to which the following requests belong.
    part: Option<(MemoryKind, String)>,
}

impl Counter {
    /// Adds bytes that are allocated elsewhere to the current part.
    pub fn count(&mut self, bytes: u64) {
        let (kind, name) = self.part.as_ref().expect("a part is set before memory is counted");
        self.parts.add(*kind, name, bytes);
    }

    fn elems<T>(&mut self, len: usize) {
        self.count((len as u64).saturating_mul(size_of::<T>() as u64));
    }

    /// Total bytes requested.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// The parts with the bytes requested for each.
    pub fn parts(self) -> Vec<MemoryPart> {
        self.parts.finish()
    }
}

impl Allocator for Counter {
    fn aligned<T: Copy + Default>(&mut self, len: usize) -> Aligned<T> {
        self.elems::<T>(len);
        Aligned::default()
    }

    fn zeros<T: Clone + Default>(&mut self, len: usize) -> Vec<T> {
        self.elems::<T>(len);
        Vec::new()
    }

    fn room<T>(&mut self, len: usize) -> Vec<T> {
        self.elems::<T>(len);
        Vec::new()
    }
}

impl PartAllocator for Counter {
    fn part(&mut self, kind: MemoryKind, name: &str) -> &mut Self {
        self.part = Some((kind, name.to_owned()));
        self
    }

    fn pages(&mut self, decl: &KvDecl, [pages, exact]: [usize; 2]) -> Aligned<u64> {
        self.parts.add(MemoryKind::Kv, &memory::cache_part(decl), pages as u64);
        self.parts.add(MemoryKind::Kv, EXACT_PART, exact as u64);
        Aligned::default()
    }
}
