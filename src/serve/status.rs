//! The phase of a server, and the status of its engines: published after each step, so that status requests
//! never wait for a device.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::shares::Shares;
use sterna_engine::BatchStats;

/// Phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Loading its model.
    Loading,
    /// Serving requests.
    Ready,
    /// Shutting down: new requests are refused.
    Ending,
    /// The engine has failed.
    Failed,
}

const PHASES: [Phase; 4] = [Phase::Loading, Phase::Ready, Phase::Ending, Phase::Failed];

/// A sequence in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Number of the slot.
    pub id: u32,
    /// Number of its job.
    pub job: u64,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Number of computed tokens.
    pub n_past: usize,
    /// Tokens that it has generated.
    pub n_generated: usize,
    /// Tokens that it may still generate, if limited.
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
    /// Adds the counters and usage of another engine.
    pub fn add(&mut self, other: &Self) {
        let (stats, more) = (&mut self.stats, &other.stats);
        stats.steps += more.steps;
        stats.prompt_rows += more.prompt_rows;
        stats.decode_rows += more.decode_rows;
        stats.drafts += more.drafts;
        stats.drafted_tokens += more.drafted_tokens;
        stats.accepted_at.add_all(&more.accepted_at);
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

    /// The counters to keep of an engine that has ended.
    pub fn done(&self) -> Self {
        // It no longer holds any resources.
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

/// Current phase of a server, which can be awaited.
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

    /// Advances to a later phase; never goes back.
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
    step_time: Duration,
    /// Start of the running step.
    step: Mutex<Option<Instant>>,
    /// Places of the requests whose texts are read, that wait for a slot, or that run.
    pub queue: Arc<Shares>,
    snapshot: Mutex<Arc<Snapshot>>,
}

impl EngineStatus {
    /// Status of an engine whose steps may take `step_time`, and for which `queue` requests may wait.
    pub fn new(step_time: Duration, queue: usize) -> Self {
        let (step, queue, snapshot) = (Mutex::new(None), Shares::new(queue), Mutex::default());
        Self { step_time, step, queue, snapshot }
    }

    /// Runs a step, visibly for other threads.
    pub fn during<T>(&self, step: impl FnOnce() -> T) -> T {
        let now = |at| *self.step.lock().unwrap_or_else(PoisonError::into_inner) = at;
        now(Some(Instant::now()));
        let done = step();
        now(None);
        done
    }

    /// The time limit of a step, if the running step exceeds it.
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

    /// Requests in the queue.
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }
}
