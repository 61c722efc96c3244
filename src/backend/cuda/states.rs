//! The recurrent states of a program, and the scratch memory of delta nets.

use super::alloc::Allocator;
use super::driver::Address;
use crate::memory::STATES_PART;
use crate::{BackendError, KvPage, MemoryKind};
use sterna_program::{Limits, Program, Stage, StateDecl};

/// Addresses of a recurrent state.
#[derive(Clone, Copy)]
pub struct States {
    /// `[slots, n_heads, key_dim, head_dim]`: the matrices, transposed.
    pub matrices: Address,
    /// `[slots, taps - 1, channels]`.
    pub tails: Address,
}

impl States {
    pub fn new<A: Allocator + ?Sized>(
        on: &mut A,
        decl: &StateDecl,
        limits: &Limits,
    ) -> Result<Self, BackendError> {
        let mut room = |elems: usize| {
            let bytes = (limits.states as u64).saturating_mul(4 * elems as u64);
            on.alloc_for(MemoryKind::Kv, STATES_PART, bytes)
        };
        Ok(Self { matrices: room(decl.matrix_elems())?, tails: room(decl.tail_elems())? })
    }

    /// Addresses and bytes of a slot; empty if the page is not a state.
    pub fn stretches(&self, decl: &StateDecl, page: KvPage) -> Vec<(Address, usize)> {
        let KvPage::State(slot) = page else { return Vec::new() };
        let of = |at: Address, elems: usize| (at + u64::from(slot) * 4 * elems as u64, 4 * elems);
        let both = [of(self.matrices, decl.matrix_elems()), of(self.tails, decl.tail_elems())];
        both.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }
}

/// Scratch memory that the delta nets of a program use one after the other.
pub struct Scratch {
    /// `[seqs, n_key_heads]`.
    pub arrived: Address,
    /// `[rows, channels]`, for prompts.
    pub convolved: Address,
    /// `[rows, n_heads, 2]`, for prompts.
    pub gates: Address,
}

impl Scratch {
    pub fn new<A: Allocator + ?Sized>(on: &mut A, p: &Program) -> Result<Self, BackendError> {
        let mut room = |elems: fn(&StateDecl, &Limits) -> usize| {
            let of_delta = |(_, stage): &(String, Stage)| match stage {
                Stage::Delta(s) => Some(elems(p.state_decl(s.state), &p.limits)),
                _ => None,
            };
            let most = p.stages.iter().filter_map(of_delta).max().unwrap_or(0);
            on.buffer("delta nets", 4 * most as u64)
        };
        Ok(Self {
            arrived: room(|decl, limits| limits.seqs * decl.n_key_heads)?,
            convolved: room(|decl, limits| limits.rows * decl.channels())?,
            gates: room(|decl, limits| 2 * limits.rows * decl.n_heads)?,
        })
    }
}
