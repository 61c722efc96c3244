//! The tokens that were picked last for each sequence slot: on the device, where the next step is fed with them, and in two
//! pieces of mapped memory a slot in turn, so that the host may read one while the next is on its way.

use wgpu::{Buffer, BufferUsages, CommandEncoder, SubmissionIndex};

use super::device::Gpu;
use crate::backend::BackendError;
use crate::program::{Row, Step};

/// Picks of a slot that can be read.
const POSTS: usize = 2;

/// Where they are, and which of a slot's pieces has the newest.
pub struct Picks {
    /// `[seqs]`.
    pub newest: Buffer,
    /// `[seqs, POSTS]`, one token each.
    posts: Vec<Buffer>,
    slots: Vec<Slot>,
}

/// What is known of a slot's picks.
#[derive(Default)]
struct Slot {
    /// How many there were.
    n: usize,
    /// The newest of them, and the one before.
    last: [Option<Pick>; POSTS],
}

/// A pick that is queued.
struct Pick {
    /// Whether the device makes it.
    on_device: bool,
    /// With what it is done.
    run: SubmissionIndex,
}

impl Picks {
    /// Bytes on the device.
    pub fn bytes(seqs: usize) -> u64 {
        4 * seqs as u64
    }

    pub fn new(gpu: &Gpu, seqs: usize) -> Result<Self, BackendError> {
        let post = |_| gpu.buffer(4, BufferUsages::COPY_DST | BufferUsages::MAP_READ);
        Ok(Self {
            newest: gpu.storage(Self::bytes(seqs))?,
            posts: (0..seqs * POSTS).map(post).collect::<Result<_, _>>()?,
            slots: (0..seqs).map(|_| Slot::default()).collect(),
        })
    }

    /// That every row which is fed with a pick has one.
    ///
    /// # Panics
    /// Where one has not.
    pub fn assert_there(&self, step: &Step<'_>) {
        for row in step.rows.iter().filter(|row| row.token == Row::PICKED) {
            self.pick(row.seq, 0);
        }
    }

    fn pick(&self, seq: u32, back: usize) -> &Pick {
        let pick = self.slots[seq as usize].last[back].as_ref();
        let pick = pick.unwrap_or_else(|| panic!("slot {seq} has no pick {back} runs ago"));
        assert!(pick.on_device, "slot {seq}: the host made the pick {back} runs ago");
        pick
    }

    /// The piece of the `n`-th pick for a slot.
    fn post(&self, seq: u32, n: usize) -> &Buffer {
        &self.posts[seq as usize * POSTS + n % POSTS]
    }

    /// Copies the pick that this encoder makes for a slot to the slot's next piece.
    pub fn send(&self, encoder: &mut CommandEncoder, seq: u32) {
        let post = self.post(seq, self.slots[seq as usize].n);
        encoder.copy_buffer_to_buffer(&self.newest, 4 * u64::from(seq), post, 0, 4);
    }

    /// That encoder has been submitted.
    pub fn keep(&mut self, seq: u32, on_device: bool, run: SubmissionIndex) {
        let slot = &mut self.slots[seq as usize];
        slot.n += 1;
        slot.last.rotate_right(1);
        slot.last[0] = Some(Pick { on_device, run });
    }

    /// Waits for a pick for a slot: the newest, or the one before.
    pub fn wait(&self, gpu: &Gpu, seq: u32, back: usize) -> Result<u32, BackendError> {
        let run = self.pick(seq, back).run.clone();
        let mut token = [0];
        let post = self.post(seq, self.slots[seq as usize].n - 1 - back);
        gpu.fetch(post, Some(run), bytemuck::cast_slice_mut(&mut token))?;
        Ok(token[0])
    }
}
