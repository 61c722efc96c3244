//! The tokens that were picked last for each sequence slot: on the device, where the next step is fed with them, and in words
//! of the host, two a slot in turn, so that the host may read one while the next is on its way.

use super::driver::{Address, Driver, Posts};
use super::params::{NO_POST, POSTS};
use crate::backend::BackendError;
use crate::program::{Row, Step};

/// Where they are, and which of a slot's words is the newest.
pub struct Picks {
    /// `[seqs]`.
    newest: Address,
    /// `[seqs, POSTS]`.
    posts: Posts,
    slots: Vec<Slot>,
}

/// What is known of a slot's picks.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// How many there were.
    n: usize,
    /// Whether the device made the newest of them, and the one before.
    on_device: [bool; POSTS as usize],
}

impl Picks {
    /// Bytes on the device.
    pub fn bytes(seqs: usize) -> u64 {
        4 * seqs as u64
    }

    pub fn new(driver: &mut dyn Driver, seqs: usize) -> Result<Self, BackendError> {
        assert!(seqs < (NO_POST / POSTS) as usize, "{seqs} slots");
        Ok(Self {
            newest: driver.alloc(Self::bytes(seqs))?,
            posts: driver.posts(seqs * POSTS as usize)?,
            slots: vec![Slot::default(); seqs],
        })
    }

    /// Where the newest of each slot is.
    pub fn newest(&self) -> Address {
        self.newest
    }

    /// Where the words of the host are.
    pub fn posts(&self) -> Address {
        self.posts.at
    }

    /// The word that the next pick for a slot goes to.
    pub fn next_post(&self, seq: u32) -> u32 {
        self.post(seq, self.slots[seq as usize].n) as u32
    }

    /// The word of the `n`-th pick for a slot.
    fn post(&self, seq: u32, n: usize) -> usize {
        seq as usize * POSTS as usize + n % POSTS as usize
    }

    /// That every row which is fed with a pick has one.
    ///
    /// # Panics
    /// Where one has not.
    pub fn assert_there(&self, step: &Step<'_>) {
        for row in step.rows.iter().filter(|row| row.token == Row::PICKED) {
            self.assert_has(row.seq, 0);
        }
    }

    fn assert_has(&self, seq: u32, back: usize) {
        let slot = self.slots[seq as usize];
        assert!(back < slot.n.min(POSTS as usize), "slot {seq} has no pick {back} runs ago");
        assert!(slot.on_device[back], "slot {seq}: the host made the pick {back} runs ago");
    }

    /// A pick for a slot has been queued.
    pub fn keep(&mut self, driver: &mut dyn Driver, seq: u32, on_device: bool) -> Result<(), BackendError> {
        let post = self.next_post(seq) as usize;
        let slot = &mut self.slots[seq as usize];
        slot.n += 1;
        slot.on_device.rotate_right(1);
        slot.on_device[0] = on_device;
        if on_device { driver.post(self.posts, post) } else { Ok(()) }
    }

    /// Waits for a pick for a slot: the newest, or the one before.
    pub fn wait(&self, driver: &mut dyn Driver, seq: u32, back: usize) -> Result<u32, BackendError> {
        self.assert_has(seq, back);
        let newest = self.slots[seq as usize].n - 1;
        driver.collect(self.posts, self.post(seq, newest - back))
    }
}
