//! What the engine thread lets everybody see: published after each step, so that nobody waits for a device to
//! learn how things stand.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::engine::BatchStats;

/// What a server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It loads its model.
    Loading,
    /// It answers.
    Ready,
    /// It takes no new requests.
    Ending,
    /// Its engine is gone.
    Failed,
}

const PHASES: [Phase; 4] = [Phase::Loading, Phase::Ready, Phase::Ending, Phase::Failed];

/// A sequence that has a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Number of the slot.
    pub id: u32,
    /// Number of its job.
    pub job: u64,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Its tokens that are computed.
    pub n_past: usize,
    /// Tokens that it has generated.
    pub n_generated: usize,
    /// Tokens that it may still generate, if that is limited.
    pub n_remaining: Option<usize>,
}

/// How things stand after a step.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// What the batch has done, and holds.
    pub stats: BatchStats,
    /// Slots in use.
    pub slots: Vec<Slot>,
}

/// Where it is published.
#[derive(Debug)]
pub struct Board {
    phase: AtomicU8,
    /// Requests that wait for a slot, and have not been handed to the batch.
    waiting: AtomicUsize,
    standing: Mutex<Arc<Standing>>,
    /// Told whenever the phase changes or a request has ended.
    pub changed: Notify,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            phase: AtomicU8::new(0),
            waiting: AtomicUsize::new(0),
            standing: Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl Board {
    /// What the server is doing.
    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::SeqCst))]
    }

    /// Goes on to a later phase; an earlier one is not gone back to.
    pub fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// How things stood after the last step.
    pub fn standing(&self) -> Arc<Standing> {
        Arc::clone(&self.standing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes how things stand.
    pub fn publish(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(standing);
    }

    /// Takes a place in the queue of at most `most`.
    ///
    /// # Errors
    /// If it is full: how many wait.
    pub fn queue(&self, most: usize) -> Result<(), usize> {
        let one_more = |waiting: usize| (waiting < most).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).map(|_| ())
    }

    /// Leaves the queue.
    pub fn leave_queue(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Requests in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
