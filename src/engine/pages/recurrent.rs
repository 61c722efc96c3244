//! Slots of recurrent states. A state cannot be cut back: an earlier one exists only if it was kept. So a
//! sequence keeps states at the end of full pages, each in its own slot. To resume from a kept state, it
//! writes the next state to another slot, and nothing is copied. A step that verifies a draft also writes the
//! states after its earlier rows, to slots that are reserved for that.

use super::pool::Pool;
use super::{PageKind, Pages};
use sterna_program::{PAGE, StateSlots};

/// Distance in positions between two states that prompts always keep.
const EVERY: usize = 64 * PAGE;

/// Maximum number of slots per sequence: the current state, which is also a kept one at the end of a full
/// page; another kept one; and the one being written.
pub const SLOTS: usize = 3;

/// Maximum number of slots for states after rows of a draft. Rows of a longer draft, and the rows after the
/// last of these slots, run again if a later one is rejected.
const ROW_SLOTS: usize = 8;

/// Number of slots that are reserved for the states after rows of drafts of `drafts` tokens.
pub fn row_slots(drafts: usize) -> usize {
    drafts.min(ROW_SLOTS)
}

/// The states of one sequence.
#[derive(Debug, Default)]
pub(super) struct Recurrent {
    /// Number of positions that have run.
    at: usize,
    /// The state after them; `None` at 0.
    live: Option<u32>,
    /// The slot that the next step writes, if it is not that of `live`.
    next: Option<u32>,
    /// The kept state at the end of each full page, if any.
    pub kept: Vec<Option<u32>>,
    /// The page of the newest state kept by a prompt: it stays when generated tokens keep theirs.
    anchor: Option<usize>,
}

impl Recurrent {
    /// The newest kept state at or before `positions`: its number of positions, and the slot.
    pub fn newest(&self, positions: usize) -> Option<(usize, u32)> {
        let kept = self.kept.iter().enumerate().take(positions / PAGE).rev();
        kept.filter_map(|(i, slot)| Some(((i + 1) * PAGE, (*slot)?))).next()
    }
}

impl Pages {
    /// Adds `states` slots for recurrent states, of which `of_rows` are reserved for states after rows of
    /// drafts.
    #[must_use]
    pub fn with_states(mut self, states: usize, of_rows: usize) -> Self {
        let mut pool = Pool::new(states);
        self.row_slots = (0..of_rows.min(states)).filter_map(|_| pool.take()).collect();
        *self.pool_mut(PageKind::State) = pool;
        let n_seqs = if states > 0 { self.table.n_seqs() } else { 0 };
        self.recurrent = (0..n_seqs).map(|_| Recurrent::default()).collect();
        self
    }

    /// True if sequences have recurrent states.
    pub fn has_states(&self) -> bool {
        !self.recurrent.is_empty()
    }

    /// Number of slots for recurrent states, without those for rows of drafts.
    pub fn n_states(&self) -> usize {
        let of_rows = (0..self.recurrent.len()).map(|seq| self.table.row_states(seq as u32).slots.len());
        self.pool(PageKind::State).n_pages() - self.row_slots.len() - of_rows.sum::<usize>()
    }

    /// Number of free slots for recurrent states.
    pub fn n_free_states(&self) -> usize {
        self.pool(PageKind::State).n_free()
    }

    /// Number of positions, up to `positions`, at which `seq` resumes.
    pub fn resume_position(&self, seq: u32, positions: usize) -> usize {
        if self.has_states() { self.recurrent[seq as usize].at.min(positions) } else { positions }
    }

    /// Maximum number of rows, up to `n`, that `seq` may run at once in a text of `len` tokens. A state is
    /// kept where another text is likely to branch off: near the end of a prompt, and at regular distances
    /// before.
    pub fn rows_up_to_kept(&self, cached: usize, len: usize, n: usize) -> usize {
        if !self.has_states() {
            return n;
        }
        let near_end = len.saturating_sub(1) / PAGE * PAGE;
        let next = (cached + 1).next_multiple_of(EVERY);
        [near_end, next].into_iter().filter(|at| *at > cached).fold(n, |n, at| n.min(at - cached))
    }

    /// True if `seq` is at a position where prompts always keep a state.
    pub fn is_at_kept(&self, seq: u32) -> bool {
        self.has_states() && self.recurrent[seq as usize].at.is_multiple_of(EVERY)
    }

    /// True if `seq` needs a slot for its next state, and none is free.
    pub fn lacks_state(&self, seq: u32) -> bool {
        let pool = self.pool(PageKind::State);
        let is_kept = |own: &Recurrent| own.live.is_none_or(|slot| pool.is_shared(slot));
        let lacks = |own: &Recurrent| own.next.is_none() && is_kept(own);
        pool.n_free() == 0 && self.recurrent.get(seq as usize).is_some_and(lacks)
    }

    /// Makes the next step of `seq` write to another slot, so that the current state is kept; `false` if no
    /// slot is free.
    pub fn keep_state(&mut self, seq: u32) -> bool {
        if !self.has_states() {
            return true;
        }
        let own = &mut self.recurrent[seq as usize];
        if own.next.is_none() {
            own.next = self.pools[PageKind::State as usize].take();
        }
        let is_kept = own.next.is_some();
        self.say_slots(seq);
        is_kept
    }

    /// Makes the next step of `seq` also write the states after `n` of its rows, the first of them row
    /// `first`, or after fewer if there are not enough slots. Its last row is a later one.
    pub fn keep_row_states(&mut self, seq: u32, first: usize, n: usize) {
        self.drop_row_states(seq);
        let left = self.row_slots.len().saturating_sub(n);
        let kept = self.table.row_states_mut(seq);
        kept.first = first;
        kept.slots.extend(self.row_slots.drain(left..));
    }

    /// Makes the next step of `seq` write no states after its earlier rows.
    pub fn drop_row_states(&mut self, seq: u32) {
        self.row_slots.append(&mut self.table.row_states_mut(seq).slots);
    }

    /// Called after a step that verified a draft of `seq`, of which only the first `positions` positions
    /// count: moves the sequence to its newest state there, and returns the number of positions of that.
    pub fn resume_after_draft(&mut self, seq: u32, positions: usize) -> usize {
        let Some(own) = self.recurrent.get_mut(seq as usize) else { return positions };
        let kept = self.table.row_states_mut(seq);
        let newest = kept.iter().map(|(rows, _)| own.at + rows).take_while(|at| *at <= positions).last();
        if let (Some(at), Some(next)) = (newest, own.next.take_if(|_| newest.is_some())) {
            // The slot of the state after all rows is free now: it is reserved in place of this one.
            let slot = std::mem::replace(&mut kept.slots[at - own.at - kept.first - 1], next);
            self.pools[PageKind::State as usize].give_back_some(own.live.replace(slot));
            own.at = at;
        }
        self.drop_row_states(seq);
        self.say_slots(seq);
        self.resume_position(seq, positions)
    }

    /// Allocates a slot for the state that the next step of `seq` writes; `false` if none is free.
    pub(super) fn take_next(&mut self, seq: u32) -> bool {
        if !self.has_states() {
            return true;
        }
        let pool = &mut self.pools[PageKind::State as usize];
        let own = &mut self.recurrent[seq as usize];
        let is_shared = |pool: &Pool, own: &Recurrent| own.live.is_none_or(|slot| pool.is_shared(slot));
        if own.next.is_none() && is_shared(pool, own) {
            own.next = pool.take();
        }
        if own.next.is_none() && is_shared(pool, own) {
            // To be able to continue is more important than to be able to go back.
            own.kept.iter_mut().for_each(|slot| pool.give_back_some(slot.take()));
            own.next = if is_shared(pool, own) { pool.take() } else { None };
        }
        self.say_slots(seq)
    }

    /// Writes the slots of `seq` to the page table; `false` if there is none to write to.
    fn say_slots(&mut self, seq: u32) -> bool {
        let Recurrent { live, next, .. } = self.recurrent[seq as usize];
        let own = live.filter(|slot| !self.pool(PageKind::State).is_shared(*slot));
        let slots = next.or(own).map(|to| StateSlots { from: live, to });
        self.table.set_state(seq, slots);
        slots.is_some()
    }

    /// Called after a step of `rows` rows of `seq`, which now has `positions` positions: keeps the state at
    /// the end of a full page.
    pub fn ran(&mut self, seq: u32, positions: usize, rows: usize) {
        if !self.has_states() {
            return;
        }
        self.drop_row_states(seq);
        let pool = &mut self.pools[PageKind::State as usize];
        let own = &mut self.recurrent[seq as usize];
        if let Some(next) = own.next.take() {
            pool.give_back_some(own.live.replace(next));
        }
        own.at = positions;
        if positions.is_multiple_of(PAGE) {
            let last = positions / PAGE - 1;
            let anchor = if rows > 1 { Some(last) } else { own.anchor };
            for (i, slot) in own.kept.iter_mut().enumerate().filter(|(i, _)| Some(*i) != anchor) {
                if i != last {
                    pool.give_back_some(slot.take());
                }
            }
            own.anchor = anchor;
            if own.kept[last].is_none() {
                own.kept[last] = own.live.map(|slot| pool.share(slot));
            }
        }
        self.say_slots(seq);
    }

    /// Called for the states of a saved sequence: the prompt's, which generated tokens do not replace, is the
    /// one before the newest, if it is there.
    pub(super) fn anchor_kept(&mut self, seq: u32) {
        let Some(own) = self.recurrent.get_mut(seq as usize) else { return };
        let kept = own.kept.iter().enumerate().rev().filter(|(_, slot)| slot.is_some());
        own.anchor = kept.take(SLOTS - 1).last().map(|(i, _)| i);
    }

    /// Called after a failed step of `seq`: if the step overwrote its own input state, that state is lost.
    pub fn spoil(&mut self, seq: u32) {
        self.drop_row_states(seq);
        if !self.has_states() || self.recurrent[seq as usize].next.is_some() {
            return;
        }
        self.set_position(seq, 0);
    }

    /// The maximum number of positions, up to `positions`, whose state exists.
    pub(super) fn newest_state(&self, seq: u32, positions: usize) -> usize {
        let Some(own) = self.recurrent.get(seq as usize) else { return positions };
        let newest = own.newest(positions).map_or(0, |(at, _)| at);
        if own.at == positions { positions } else { newest }
    }

    /// Moves `seq` to `positions` positions, whose state exists.
    pub(super) fn set_position(&mut self, seq: u32, positions: usize) {
        let Some(own) = self.recurrent.get_mut(seq as usize) else { return };
        let pool = &mut self.pools[PageKind::State as usize];
        if own.at != positions || positions == 0 {
            self.row_slots.append(&mut self.table.row_states_mut(seq).slots);
            pool.give_back_some(own.live.take());
            pool.give_back_some(own.next.take());
            own.live =
                own.newest(positions).filter(|(at, _)| *at == positions).map(|(_, slot)| pool.share(slot));
            own.at = positions;
        }
        own.anchor = own.anchor.filter(|page| *page < own.kept.len());
        self.say_slots(seq);
    }
}
