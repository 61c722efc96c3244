//! Which slots of recurrent states a sequence has. A state has no positions: what it was behind fewer of them
//! is there only if it was kept. So a sequence keeps states behind full pages, each in a slot of its own: it
//! goes on from there by writing to another slot, and nothing is copied.

use super::pool::Pool;
use super::{PageKind, Pages};
use sterna_program::{PAGE, StateSlots};

/// Positions from one state that prompts always keep to the next.
const EVERY: usize = 64 * PAGE;

/// Slots that a sequence holds at most: the state that it goes on from, which is kept, too, where it stands
/// behind a full page; another kept one; and the one that it writes.
pub const SLOTS: usize = 3;

/// The states of one sequence.
#[derive(Debug, Default)]
pub(super) struct Recurrent {
    /// Positions that have run.
    at: usize,
    /// The state behind them; `None` at 0.
    live: Option<u32>,
    /// The slot that the next step writes, if it is not that of `live`.
    next: Option<u32>,
    /// The kept state behind each full page, if there is one.
    pub kept: Vec<Option<u32>>,
    /// The page behind which a prompt kept the newest state: that stays when generated tokens keep theirs.
    anchor: Option<usize>,
}

impl Recurrent {
    /// The newest kept state behind at most so many positions: positions, and the slot.
    pub fn newest(&self, positions: usize) -> Option<(usize, u32)> {
        let kept = self.kept.iter().enumerate().take(positions / PAGE).rev();
        kept.filter_map(|(i, slot)| Some(((i + 1) * PAGE, (*slot)?))).next()
    }
}

impl Pages {
    /// The same with `states` slots of recurrent states.
    #[must_use]
    pub fn with_states(mut self, states: usize) -> Self {
        *self.pool_mut(PageKind::State) = Pool::new(states);
        let n_seqs = if states > 0 { self.table.n_seqs() } else { 0 };
        self.recurrent = (0..n_seqs).map(|_| Recurrent::default()).collect();
        self
    }

    /// True if sequences have recurrent states.
    pub fn has_states(&self) -> bool {
        self.n_states() > 0
    }

    /// Slots of recurrent states.
    pub fn n_states(&self) -> usize {
        self.pool(PageKind::State).n_pages()
    }

    /// Slots of recurrent states without a holder.
    pub fn n_free_states(&self) -> usize {
        self.pool(PageKind::State).n_free()
    }

    /// Positions of at most `positions` that `seq` goes on behind.
    pub fn stands_at(&self, seq: u32, positions: usize) -> usize {
        if self.has_states() { self.recurrent[seq as usize].at.min(positions) } else { positions }
    }

    /// The most rows, up to `n`, that `seq` may run at once of a text of `len` tokens: a state is kept where
    /// another text is likely to go on, which is near the end of a prompt, and now and then before.
    pub fn rows_up_to_kept(&self, cached: usize, len: usize, n: usize) -> usize {
        if !self.has_states() {
            return n;
        }
        let near_end = len.saturating_sub(1) / PAGE * PAGE;
        let next = (cached + 1).next_multiple_of(EVERY);
        [near_end, next].into_iter().filter(|at| *at > cached).fold(n, |n, at| n.min(at - cached))
    }

    /// True if `seq` stands where prompts always keep a state.
    pub fn is_at_kept(&self, seq: u32) -> bool {
        self.has_states() && self.recurrent[seq as usize].at.is_multiple_of(EVERY)
    }

    /// True if no slot is free for what `seq` writes, and its own is kept by others.
    pub fn lacks_state(&self, seq: u32) -> bool {
        let pool = self.pool(PageKind::State);
        let is_kept = |own: &Recurrent| own.live.is_none_or(|slot| pool.is_shared(slot));
        let lacks = |own: &Recurrent| own.next.is_none() && is_kept(own);
        pool.n_free() == 0 && self.recurrent.get(seq as usize).is_some_and(lacks)
    }

    /// Makes the next step of `seq` leave the state as it is that it goes on from, and write to another slot;
    /// `false` if no slot is free.
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

    /// Gives `seq` a slot for what its next step writes; `false` if there is none.
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
            // Better nothing to go back to than nothing to go on with.
            own.kept.iter_mut().for_each(|slot| pool.give_back_some(slot.take()));
            own.next = if is_shared(pool, own) { pool.take() } else { None };
        }
        self.say_slots(seq)
    }

    /// Tells steps which slots `seq` has; `false` if none is there to be written.
    fn say_slots(&mut self, seq: u32) -> bool {
        let Recurrent { live, next, .. } = self.recurrent[seq as usize];
        let own = live.filter(|slot| !self.pool(PageKind::State).is_shared(*slot));
        let slots = next.or(own).map(|to| StateSlots { from: live, to });
        self.table.set_state(seq, slots);
        slots.is_some()
    }

    /// After a step of `rows` rows of `seq`, which has `positions` positions now: keeps its state behind a
    /// full page.
    pub fn ran(&mut self, seq: u32, positions: usize, rows: usize) {
        if !self.has_states() {
            return;
        }
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

    /// After a step of `seq` that failed: where it wrote over what it went on from, that is lost.
    pub fn spoil(&mut self, seq: u32) {
        if !self.has_states() || self.recurrent[seq as usize].next.is_some() {
            return;
        }
        self.stand(seq, 0);
    }

    /// The most positions, up to `positions`, whose state is there.
    pub(super) fn state_behind(&self, seq: u32, positions: usize) -> usize {
        let Some(own) = self.recurrent.get(seq as usize) else { return positions };
        let newest = own.newest(positions).map_or(0, |(at, _)| at);
        if own.at == positions { positions } else { newest }
    }

    /// Makes `seq` stand behind `positions` positions, whose state is there.
    pub(super) fn stand(&mut self, seq: u32, positions: usize) {
        let Some(own) = self.recurrent.get_mut(seq as usize) else { return };
        let pool = &mut self.pools[PageKind::State as usize];
        if own.at != positions || positions == 0 {
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
