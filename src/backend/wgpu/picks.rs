//! The tokens that were picked last for each sequence slot: on the device, where the next step is fed with
//! them, and in pieces of mapped memory.

use wgpu::{Buffer, CommandEncoder, SubmissionIndex};

use super::alloc::Allocator;
use super::device::Gpu;
use crate::BackendError;
use crate::device::picks::{MAILBOXES, Slots};
use sterna_program::Step;

/// The part of memory that tokens come back in.
pub const HOST_SIDE: &str = "tokens on the host's side";

/// Where they are, and which of a slot's pieces has the newest.
pub struct Picks<B = Buffer> {
    /// `[seqs]`.
    pub newest: B,
    /// `[seqs, MAILBOXES]`.
    mailboxes: Vec<Mailbox<B>>,
    slots: Slots,
}

/// One token.
struct Mailbox<B> {
    buffer: B,
    /// With what it is written.
    run: Option<SubmissionIndex>,
}

impl<B> Picks<B> {
    pub fn new(on: &mut impl Allocator<Buffer = B>, seqs: usize) -> Result<Self, BackendError> {
        let newest = on.scratch("picks", 4 * seqs as u64)?;
        let mailbox = |_| Ok(Mailbox { buffer: on.mapped(HOST_SIDE, 4)?, run: None });
        let mailboxes = (0..seqs * MAILBOXES).map(mailbox).collect::<Result<_, BackendError>>()?;
        Ok(Self { newest, mailboxes, slots: Slots::new(seqs) })
    }
}

impl Picks {
    /// Asserts that every row which is fed with a pick has one.
    ///
    /// # Panics
    /// Where one has not.
    pub fn assert_there(&self, step: &Step<'_>) {
        self.slots.assert_there(step);
    }

    /// Copies the pick that this encoder makes for a slot to the slot's next piece.
    pub fn send(&self, encoder: &mut CommandEncoder, seq: u32) {
        let mailbox = &self.mailboxes[self.slots.next(seq)];
        encoder.copy_buffer_to_buffer(&self.newest, 4 * u64::from(seq), &mailbox.buffer, 0, 4);
    }

    /// Notes that the encoder has been submitted.
    pub fn keep(&mut self, seq: u32, on_device: bool, run: SubmissionIndex) {
        self.mailboxes[self.slots.next(seq)].run = Some(run);
        self.slots.keep(seq, on_device);
    }

    /// Waits for a pick for a slot: the newest, or the one before.
    pub fn wait(&self, gpu: &Gpu, seq: u32, back: usize) -> Result<u32, BackendError> {
        let Mailbox { buffer, run } = &self.mailboxes[self.slots.newest(seq, back)];
        let mut token = [0];
        gpu.fetch(buffer, run.clone(), bytemuck::cast_slice_mut(&mut token))?;
        Ok(token[0])
    }
}
