//! The last picked token of each sequence slot: on the device, where the next step reads it, and in words of
//! host memory.

use super::alloc::Allocator;
use super::driver::{Address, Driver, Mailboxes};
use super::params::{MAILBOXES, NO_MAILBOX};
use crate::BackendError;
use crate::device::picks::{self, Slots};
use sterna_program::Step;

const _: () = assert!(picks::MAILBOXES == MAILBOXES as usize);

/// The memory part that sampling uses.
pub const SAMPLING: &str = "sampling and counters";

/// Addresses of the picks, and which of a slot's words is the newest.
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

    /// Address of the newest pick of each slot.
    pub fn newest(&self) -> Address {
        self.newest
    }

    /// Address of the words in host memory.
    pub fn mailboxes(&self) -> Address {
        self.mailboxes.at
    }

    /// Index of the word that receives the next pick for a slot.
    pub fn next_mailbox(&self, seq: u32) -> u32 {
        self.slots.next(seq) as u32
    }

    /// Asserts that every row fed with a pick has one.
    ///
    /// # Panics
    /// If a pick is missing.
    pub fn assert_there(&self, step: &Step<'_>) {
        self.slots.assert_there(step);
    }

    /// Records that a pick for a slot has been queued.
    pub fn keep(&mut self, driver: &mut dyn Driver, seq: u32, on_device: bool) -> Result<(), BackendError> {
        let mailbox = self.slots.next(seq);
        self.slots.keep(seq, on_device);
        if on_device { driver.mark(self.mailboxes, mailbox) } else { Ok(()) }
    }

    /// Records that another GPU has made a pick for a slot, which is being copied to the newest picks here.
    pub fn know(&mut self, seq: u32, on_device: bool) {
        self.slots.keep(seq, on_device);
    }

    /// Waits for a pick for a slot: the newest, or the one before.
    pub fn wait(&self, driver: &mut dyn Driver, seq: u32, back: usize) -> Result<u32, BackendError> {
        driver.collect(self.mailboxes, self.slots.newest(seq, back))
    }
}
