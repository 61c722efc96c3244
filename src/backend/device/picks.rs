//! Tracks the last sampled tokens of each sequence slot, and the word of host memory that each is written to:
//! a slot alternates between two words, so that the host can read one while the next is written.

use sterna_program::{Row, Step};

/// Number of sampled tokens per slot that can be read.
pub const MAILBOXES: usize = 2;

/// Sampled tokens of all slots.
pub struct Slots(Vec<Slot>);

/// Sampled tokens of one slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Number of tokens sampled so far.
    n: usize,
    /// True if the device sampled it: for the newest token, and the one before.
    on_device: [bool; MAILBOXES],
}

impl Slots {
    pub fn new(seqs: usize) -> Self {
        Self(vec![Slot::default(); seqs])
    }

    /// Word that the next token of a slot is written to.
    pub fn next(&self, seq: u32) -> usize {
        word(seq, self.0[seq as usize].n)
    }

    /// Records that sampling for a slot has been queued.
    pub fn keep(&mut self, seq: u32, on_device: bool) {
        let slot = &mut self.0[seq as usize];
        slot.n += 1;
        slot.on_device.rotate_right(1);
        slot.on_device[0] = on_device;
    }

    /// Word with the newest token of a slot, or the one before it.
    ///
    /// # Panics
    /// If the device did not sample that token.
    pub fn newest(&self, seq: u32, back: usize) -> usize {
        let slot = self.0[seq as usize];
        assert!(back < slot.n.min(MAILBOXES), "slot {seq} has no pick {back} runs ago");
        assert!(slot.on_device[back], "slot {seq}: the host made the pick {back} runs ago");
        word(seq, slot.n - 1 - back)
    }

    /// Asserts that every row that is fed a sampled token has one.
    ///
    /// # Panics
    /// If one does not.
    pub fn assert_there(&self, step: &Step<'_>) {
        for row in step.rows.iter().filter(|row| row.token == Row::PICKED) {
            self.newest(row.seq, 0);
        }
    }
}

/// Word of the `n`-th token of a slot.
fn word(seq: u32, n: usize) -> usize {
    seq as usize * MAILBOXES + n % MAILBOXES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_newest_picks_of_a_slot_have_words_of_their_own() {
        let mut slots = Slots::new(2);
        for n in 0..5 {
            let next = slots.next(1);
            assert!((2..4).contains(&next));
            slots.keep(1, true);
            assert_eq!(slots.newest(1, 0), next);
            if n > 0 {
                assert_eq!(slots.newest(1, 1), 5 - next);
            }
        }
        let slots = std::panic::AssertUnwindSafe(slots);
        assert!(std::panic::catch_unwind(|| slots.newest(1, 2)).is_err());
        assert!(std::panic::catch_unwind(|| slots.newest(0, 0)).is_err());
    }
}
