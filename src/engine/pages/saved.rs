//! The pages of a saved sequence: those that it needs to resume, and those of earlier checkpoints.

use super::{PageKind, PageKinds, Pages, SLOTS, pages_for};
use sterna_program::PAGE;

impl Pages {
    /// Allocates the pages of `positions` positions for `seq`, which has none, as a sequence has them between
    /// two steps; `kinds` has one entry per page. Returns `false` and changes nothing if no sequence could
    /// have such pages, or if there are too few.
    pub fn hold(&mut self, seq: u32, positions: usize, kinds: &[PageKinds]) -> bool {
        let is_kept = self.kept_kinds(positions, kinds) == kinds;
        is_kept && self.hold_checkpoints(seq, positions, kinds)
    }

    /// Like [`hold`](Self::hold), also with pages of earlier checkpoints. The sequence must not run.
    pub fn hold_checkpoints(&mut self, seq: u32, positions: usize, kinds: &[PageKinds]) -> bool {
        if !self.can_be(positions, kinds) || self.lacking(kinds).is_some() {
            return false;
        }
        kinds.iter().for_each(|kinds| self.push_new(seq, *kinds));
        self.anchor_kept(seq);
        true
    }

    /// True if the pages of `kinds` are all that a sequence of `positions` positions needs to resume.
    pub fn can_be(&self, positions: usize, kinds: &[PageKinds]) -> bool {
        let has = |kind: PageKind| kinds.iter().any(|kinds| kinds.has(kind));
        let first = kinds.iter().take(self.window.sink_pages).all(|kinds| kinds.exact);
        let last = positions.is_multiple_of(PAGE) || kinds.last().is_some_and(|kinds| kinds.exact);
        let exactly = if self.is_windowed() { first && last } else { !has(PageKind::Exact) };
        let seen = match self.sliding {
            Some(window) => kinds.iter().skip(window.first(positions)).all(|kinds| kinds.sliding),
            None => !has(PageKind::Sliding),
        };
        let states = !has(PageKind::State) || self.has_states();
        let after_full = kinds.iter().skip(positions / PAGE).all(|kinds| !kinds.state);
        exactly && seen && states && after_full && kinds.len() == pages_for(positions)
    }

    /// A kind of which fewer pages are free than `kinds` has.
    pub fn lacking(&self, kinds: &[PageKinds]) -> Option<PageKind> {
        let count = |kind: PageKind| kinds.iter().filter(|kinds| kinds.has(kind)).count();
        PageKind::ALL.into_iter().find(|kind| count(*kind) > self.pool(*kind).n_free())
    }

    /// The part of `kinds` that a sequence keeps between two steps, at `positions` positions; the rest
    /// belongs to earlier checkpoints.
    pub fn kept_kinds(&self, positions: usize, kinds: &[PageKinds]) -> Vec<PageKinds> {
        let first_exact = if self.is_windowed() { self.first_exact(positions) } else { 0 };
        let first_seen = self.sliding.map_or(0, |sliding| sliding.first_kept(positions));
        let states = kinds.iter().enumerate().rev().filter(|(_, kinds)| kinds.state).map(|(i, _)| i);
        let first_state = states.take(SLOTS - 1).last().unwrap_or(0);
        let kept = |(i, kinds): (usize, &PageKinds)| PageKinds {
            exact: kinds.exact && (i < self.window.sink_pages || i >= first_exact),
            sliding: kinds.sliding && i >= first_seen,
            state: kinds.state && i >= first_state,
        };
        kinds.iter().enumerate().map(kept).collect()
    }
}
