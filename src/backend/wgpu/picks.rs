//! The last token picked for each sequence slot: on the device, where the next step reads it as its input,
//! and in small mapped buffers.

use wgpu::{Buffer, CommandEncoder, SubmissionIndex};

use super::alloc::Allocator;
use super::device::Gpu;
use crate::BackendError;
use crate::device::picks::{MAILBOXES, Slots};
use sterna_program::Step;

/// Memory part of tokens that are read back.
pub const HOST_SIDE: &str = "tokens on the host";

/// Picked tokens on the device, and which mailbox of a slot has the newest.
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
    /// The run that writes it.
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
    /// Asserts that every row whose input is a pick has one.
    ///
    /// # Panics
    /// Panics if a row has none.
    pub fn assert_there(&self, step: &Step<'_>) {
        self.slots.assert_there(step);
    }

    /// Copies this encoder's pick for a slot to the slot's next mailbox.
    pub fn send(&self, encoder: &mut CommandEncoder, seq: u32) {
        let mailbox = &self.mailboxes[self.slots.next(seq)];
        encoder.copy_buffer_to_buffer(&self.newest, 4 * u64::from(seq), &mailbox.buffer, 0, 4);
    }

    /// Records that the encoder has been submitted.
    pub fn keep(&mut self, seq: u32, on_device: bool, run: SubmissionIndex) {
        self.mailboxes[self.slots.next(seq)].run = Some(run);
        self.slots.keep(seq, on_device);
    }

    /// Waits for a slot's newest pick, or the one before.
    pub fn wait(&self, gpu: &Gpu, seq: u32, back: usize) -> Result<u32, BackendError> {
        let Mailbox { buffer, run } = &self.mailboxes[self.slots.newest(seq, back)];
        let mut token = [0];
        gpu.fetch(buffer, run.clone(), bytemuck::cast_slice_mut(&mut token))?;
        Ok(token[0])
    }
}
