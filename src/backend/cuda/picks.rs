//! The tokens that were picked last for each sequence slot: on the device, where the next step is fed with
//! them, and in words of the host.

use super::alloc::Allocator;
use super::driver::{Address, Driver, Mailboxes};
use super::params::{MAILBOXES, NO_MAILBOX};
use crate::BackendError;
use crate::device::picks::{self, Slots};
use sterna_program::Step;

const _: () = assert!(picks::MAILBOXES == MAILBOXES as usize);

/// The part of memory that sampling takes.
pub const SAMPLING: &str = "sampling and counters";

/// Where they are, and which of a slot's words is the newest.
pub struct Picks {
    /// `[seqs]`.
    newest: Address,
    /// `[seqs, MAILBOXES]`.
    mailboxes: Mailboxes,
    slots: Slots,
}

impl Picks {
    /// Bytes on the device.
    pub fn bytes(seqs: usize) -> u64 {
        4 * seqs as u64
    }

    pub fn new<A: Allocator + ?Sized>(on: &mut A, seqs: usize) -> Result<Self, BackendError> {
        assert!(seqs < (NO_MAILBOX / MAILBOXES) as usize, "{seqs} slots");
        Ok(Self {
            newest: on.buffer(SAMPLING, Self::bytes(seqs))?,
            mailboxes: on.mailboxes(seqs * MAILBOXES as usize)?,
            slots: Slots::new(seqs),
        })
    }

    /// Where the newest of each slot is.
    pub fn newest(&self) -> Address {
        self.newest
    }

    /// Where the words of the host are.
    pub fn mailboxes(&self) -> Address {
        self.mailboxes.at
    }

    /// The word that the next pick for a slot goes to.
    pub fn next_mailbox(&self, seq: u32) -> u32 {
        self.slots.next(seq) as u32
    }

    /// That every row which is fed with a pick has one.
    ///
    /// # Panics
    /// Where one has not.
    pub fn assert_there(&self, step: &Step<'_>) {
        self.slots.assert_there(step);
    }

    /// A pick for a slot has been queued.
    pub fn keep(&mut self, driver: &mut dyn Driver, seq: u32, on_device: bool) -> Result<(), BackendError> {
        let mailbox = self.slots.next(seq);
        self.slots.keep(seq, on_device);
        if on_device { driver.mark(self.mailboxes, mailbox) } else { Ok(()) }
    }

    /// Another card has made a pick for a slot, which is on its way to where the newest are.
    pub fn know(&mut self, seq: u32, on_device: bool) {
        self.slots.keep(seq, on_device);
    }

    /// Waits for a pick for a slot: the newest, or the one before.
    pub fn wait(&self, driver: &mut dyn Driver, seq: u32, back: usize) -> Result<u32, BackendError> {
        driver.collect(self.mailboxes, self.slots.newest(seq, back))
    }
}
