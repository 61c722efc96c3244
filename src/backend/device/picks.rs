//! Which tokens were picked last for each sequence slot, and in which word of the host's each comes back: a
//! slot has two in turn, so that the host may read one while the next is on its way.

use sterna_program::{Row, Step};

/// Picks of a slot that can be read.
pub const MAILBOXES: usize = 2;

/// Picks of every slot.
pub struct Slots(Vec<Slot>);

/// Picks of one slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Number of picks.
    n: usize,
    /// True where the device made the pick: the newest, and the one before.
    on_device: [bool; MAILBOXES],
}

impl Slots {
    pub fn new(seqs: usize) -> Self {
        Self(vec![Slot::default(); seqs])
    }

    /// The word that the next pick for a slot comes back in.
    pub fn next(&self, seq: u32) -> usize {
        word(seq, self.0[seq as usize].n)
    }

    /// A pick for a slot has been queued.
    pub fn keep(&mut self, seq: u32, on_device: bool) {
        let slot = &mut self.0[seq as usize];
        slot.n += 1;
        slot.on_device.rotate_right(1);
        slot.on_device[0] = on_device;
    }

    /// The word in which the newest pick for a slot comes back, or the one before it.
    ///
    /// # Panics
    /// Where the device has not made such a pick.
    pub fn newest(&self, seq: u32, back: usize) -> usize {
        let slot = self.0[seq as usize];
        assert!(back < slot.n.min(MAILBOXES), "slot {seq} has no pick {back} runs ago");
        assert!(slot.on_device[back], "slot {seq}: the host made the pick {back} runs ago");
        word(seq, slot.n - 1 - back)
    }

    /// Asserts that every row which is fed with a pick has one.
    ///
    /// # Panics
    /// Where one has not.
    pub fn assert_there(&self, step: &Step<'_>) {
        for row in step.rows.iter().filter(|row| row.token == Row::PICKED) {
            self.newest(row.seq, 0);
        }
    }
}

/// The word of the `n`-th pick for a slot.
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
