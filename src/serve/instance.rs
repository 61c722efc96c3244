//! A loaded model: what requests need of it, and the channel to the thread that owns its engine.
//!
//! A request holds its instance while it is being answered. After the last reference is dropped, the thread
//! finds its channel closed and ends, and the model's memory is freed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::ApiError;
use super::job::{Command, Handle, Job, JobId, QueuedJob};
use super::model::Served;
use super::shares::Share;
use super::status::{EngineStatus, Snapshot};
use super::worker::UPDATES;
use sterna_engine::SavedSize;

/// A loaded model.
pub struct Instance {
    /// The model as requests see it.
    pub served: Served,
    /// Status of its engine.
    pub status: Arc<EngineStatus>,
    /// Largest size of the saved pages of a prompt.
    pub saved_size: SavedSize,
    commands: Sender<Command>,
    next_job: AtomicU64,
    /// Must be the last field: the permit is returned after the others are dropped.
    _permit: Arc<MemoryPermit>,
}

impl Instance {
    /// An instance of `served`, whose engine thread receives from `commands`.
    pub fn new(
        served: Served,
        status: Arc<EngineStatus>,
        saved_size: SavedSize,
        commands: Sender<Command>,
        permit: Arc<MemoryPermit>,
    ) -> Self {
        Self { served, status, saved_size, commands, next_job: AtomicU64::new(0), _permit: permit }
    }

    /// A place in the queue for a request from `sender`. If the queue is full, the error says when to retry,
    /// given that an answer takes `seconds` on average.
    ///
    /// # Errors
    /// 429 if too many requests are waiting.
    pub fn place(&self, sender: &Arc<str>, seconds: f64) -> Result<Arc<Share>, ApiError> {
        let place = self.status.queue.take(sender, 1).map(Arc::new);
        place.ok_or_else(|| {
            let waiting = self.status.waiting();
            // By then about half of the waiting requests will have been answered.
            let seconds = seconds * waiting as f64 / (2 * self.served.n_slots()) as f64;
            ApiError::queue_full(waiting, (seconds.ceil() as u32).clamp(1, 120))
        })
    }

    /// Sends a job to the engine thread.
    ///
    /// # Errors
    /// 429 if it has been displaced from its place; 500 if the engine has stopped.
    pub fn begin(&self, job: Job, place: Arc<Share>) -> Result<Handle, ApiError> {
        if place.is_displaced() {
            return Err(ApiError::displaced());
        }
        let id = JobId(self.next_job.fetch_add(1, Ordering::Relaxed));
        let (sender, updates) = tokio::sync::mpsc::channel(UPDATES);
        let queued = QueuedJob {
            id,
            job,
            place,
            updates: sender,
            waits_for_reader: Arc::new(AtomicBool::new(false)),
            arrived: Instant::now(),
        };
        let handle = Handle::new(&queued, updates, self.commands.clone());
        self.tell(Command::Add(Box::new(queued)))?;
        Ok(handle)
    }

    /// Sends a command to the engine thread.
    ///
    /// # Errors
    /// 500 if it is gone.
    pub fn tell(&self, command: Command) -> Result<(), ApiError> {
        let told = self.commands.send(command);
        told.map_err(|_| ApiError::ours("the engine has stopped; the server is ending"))
    }
}

/// Limits on the number of loaded models and on their memory.
#[derive(Debug)]
pub struct ModelBudget {
    /// Maximum number of models.
    pub most: usize,
    /// Maximum bytes of all models together.
    pub most_bytes: u64,
    taken: Mutex<Taken>,
    given_back: Condvar,
    /// Counters of engines that have ended.
    past: Mutex<Snapshot>,
}

#[derive(Debug, Default)]
struct Taken {
    models: usize,
    bytes: u64,
    /// Number of permits returned so far.
    returns: u64,
}

impl ModelBudget {
    /// A budget for `most` models of `most_bytes` in total.
    pub fn new(most: usize, most_bytes: u64) -> Arc<Self> {
        let (taken, past) = (Mutex::default(), Mutex::default());
        Arc::new(Self { most, most_bytes, taken, given_back: Condvar::new(), past })
    }

    /// Returns a permit for a model of `bytes`, if there is room. Otherwise returns the number of models
    /// unloaded so far, for [`wait`](Self::wait), or `None` if no model is loaded.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Arc<MemoryPermit>, Option<u64>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.models < self.most && bytes <= self.most_bytes.saturating_sub(taken.bytes) {
            taken.models += 1;
            taken.bytes += bytes;
            return Ok(Arc::new(MemoryPermit { budget: Arc::clone(self), bytes }));
        }
        Err((taken.models > 0).then_some(taken.returns))
    }

    /// Waits for a short time, or until more than `returns` models have been unloaded; returns true in that
    /// case.
    pub fn wait(&self, returns: u64) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |taken: &mut Taken| taken.returns == returns;
        let waited = self.given_back.wait_timeout_while(taken, Duration::from_millis(100), waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Number of models that are loaded, loading or unloading, and number that have been unloaded.
    pub fn count(&self) -> (usize, u64) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        (taken.models, taken.returns)
    }

    /// Adds the counters of an engine that has ended.
    pub fn remember(&self, snapshot: &Snapshot) {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).add(&snapshot.done());
    }

    /// Counters of engines that have ended.
    pub fn past(&self) -> Snapshot {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Permit for the memory of one model, held by its thread and its [`Instance`]. The memory is free when both
/// have dropped it.
#[derive(Debug)]
pub struct MemoryPermit {
    budget: Arc<ModelBudget>,
    bytes: u64,
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.models -= 1;
        taken.bytes -= self.bytes;
        taken.returns += 1;
        drop(taken);
        self.budget.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_held_until_the_last_holder_is_gone() {
        let budget = ModelBudget::new(2, 10);
        let first = budget.take(6).unwrap();
        assert_eq!(budget.take(5).unwrap_err(), Some(0), "too many bytes");
        let second = budget.take(4).unwrap();
        assert_eq!(budget.take(0).unwrap_err(), Some(0), "too many models");
        let again = Arc::clone(&first);
        drop(first);
        assert!(!budget.wait(0) && budget.count() == (2, 0));
        drop(again);
        assert!(budget.wait(0) && budget.count() == (1, 1));
        drop(second);
        assert_eq!(budget.take(11).unwrap_err(), None, "it would not fit alone");
    }
}
