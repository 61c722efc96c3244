//! Memory of the processor by what it is for: the heap gives it, a [`Counter`] only counts it. The plan is
//! what the code that allocates asks of a counter, so that no size is written down a second time.

use super::simd::{Aligned, Allocator, Heap};
use crate::memory::{self, EXACT_PART, Parts};
use crate::{MemoryKind, MemoryPart};
use sterna_program::KvDecl;

/// An allocator that is told what memory is for.
pub trait PartAllocator: Allocator {
    /// Assigns the next requests to this part of what a program takes.
    fn part(&mut self, kind: MemoryKind, name: &str) -> &mut Self;

    /// Words for pages of a cache and for exact pages, which take so many bytes each.
    fn pages(&mut self, decl: &KvDecl, bytes: [usize; 2]) -> Aligned<u64>;

    /// Assigns the next requests to this part of the activations, tables and scratch.
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

/// Counts what it is asked for, and gives nothing.
#[derive(Default)]
pub struct Counter {
    parts: Parts,
    /// Part of the next requests.
    part: Option<(MemoryKind, String)>,
}

impl Counter {
    /// Adds bytes to the current part that are allocated elsewhere.
    pub fn count(&mut self, bytes: u64) {
        let (kind, name) = self.part.as_ref().expect("what memory is for was said");
        self.parts.add(*kind, name, bytes);
    }

    fn elems<T>(&mut self, len: usize) {
        self.count((len as u64).saturating_mul(size_of::<T>() as u64));
    }

    /// All bytes that it was asked for.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// All parts that it was asked for, with their bytes.
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
