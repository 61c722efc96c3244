//! The recurrent states of a program.

use super::alloc::Allocator;
use crate::memory::STATES_PART;
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{Limits, StateDecl};

/// Allocates a state: all matrices, then all tails.
pub fn alloc<A: Allocator>(on: &mut A, decl: &StateDecl, limits: &Limits) -> Result<A::Buffer, BackendError> {
    let bytes = (limits.states as u64).saturating_mul(decl.bytes() as u64);
    on.storage(&format_args!("{} states", limits.states), &[(MemoryKind::Kv, STATES_PART, bytes)])
}

/// Byte offsets and sizes of a slot; empty if the page is not a state.
pub fn stretches(decl: &StateDecl, limits: &Limits, page: KvPage) -> Vec<(u64, usize)> {
    let KvPage::State(slot) = page else { return Vec::new() };
    let of = |at: usize, elems: usize| (4 * (at + slot as usize * elems) as u64, 4 * elems);
    let both = [of(0, decl.matrix_elems()), of(tails_at(decl, limits), decl.tail_elems())];
    both.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

/// Element at which the tails begin.
pub fn tails_at(decl: &StateDecl, limits: &Limits) -> usize {
    limits.states * decl.matrix_elems()
}
