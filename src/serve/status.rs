//! The phase of a server, and the status of its engines: published after each step, so that a request for it
//! never waits for a device.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use sterna_engine::BatchStats;

/// Phase of a server.
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

/// State of an engine after a step.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts of the batch.
    pub stats: BatchStats,
    /// Slots in use.
    pub slots: Vec<Slot>,
}

impl Snapshot {
    /// Adds what another engine has done and holds.
    pub fn add(&mut self, other: &Self) {
        let (stats, more) = (&mut self.stats, &other.stats);
        stats.steps += more.steps;
        stats.prompt_rows += more.prompt_rows;
        stats.decode_rows += more.decode_rows;
        stats.drafts += more.drafts;
        stats.drafted_tokens += more.drafted_tokens;
        stats.accepted_tokens += more.accepted_tokens;
        stats.preemptions += more.preemptions;
        stats.swapped_out += more.swapped_out;
        stats.swapped_in += more.swapped_in;
        stats.prefix.queried_tokens += more.prefix.queried_tokens;
        stats.prefix.hit_tokens += more.prefix.hit_tokens;
        stats.running += more.running;
        stats.resting += more.resting;
        stats.waiting += more.waiting;
        stats.pages += more.pages;
        stats.free_pages += more.free_pages;
        stats.states += more.states;
        stats.free_states += more.free_states;
        self.slots.extend(&other.slots);
    }

    /// Counts that are left of an engine that is gone.
    pub fn done(&self) -> Self {
        // What it holds is held no more.
        let stats = BatchStats {
            running: 0,
            resting: 0,
            waiting: 0,
            pages: 0,
            free_pages: 0,
            states: 0,
            free_states: 0,
            ..self.stats
        };
        Self { stats, slots: Vec::new() }
    }
}

/// Current phase of a server, to be waited for.
#[derive(Debug, Default)]
pub struct Life {
    phase: AtomicU8,
    changed: Notify,
}

impl Life {
    /// The current phase.
    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::SeqCst))]
    }

    /// Goes on to a later phase; an earlier one is not gone back to.
    pub fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until the phase is one of `wanted`.
    pub async fn until(&self, wanted: impl Fn(Phase) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if wanted(self.phase()) {
                return;
            }
            changed.await;
        }
    }
}

/// Status of an engine, published by its thread.
#[derive(Debug)]
pub struct EngineStatus {
    /// Longest step.
    step_time: Duration,
    /// Begin of the step that runs.
    step: Mutex<Option<Instant>>,
    /// Requests that wait for a slot, and have not been handed to the batch.
    waiting: AtomicUsize,
    snapshot: Mutex<Arc<Snapshot>>,
}

impl EngineStatus {
    /// Status of an engine whose steps may take `step_time`.
    pub fn new(step_time: Duration) -> Self {
        let (step, waiting, snapshot) = (Mutex::new(None), AtomicUsize::new(0), Mutex::default());
        Self { step_time, step, waiting, snapshot }
    }

    /// Does a step, while which others see that it runs.
    pub fn during<T>(&self, step: impl FnOnce() -> T) -> T {
        let now = |at| *self.step.lock().unwrap_or_else(PoisonError::into_inner) = at;
        now(Some(Instant::now()));
        let done = step();
        now(None);
        done
    }

    /// The time that a step may take, if one has taken longer.
    pub fn hangs(&self) -> Option<Duration> {
        let began = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        began.filter(|began| began.elapsed() > self.step_time).map(|_| self.step_time)
    }

    /// The snapshot after the last step.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes a snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
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
