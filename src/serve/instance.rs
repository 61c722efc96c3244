//! A model that is loaded: what requests are answered with, and the way to the thread that owns its engine.
//!
//! A request that is being answered holds its instance. Once none does, the thread finds its channel closed
//! and ends, and the model's memory is free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::ApiError;
use super::job::{Command, Handle, Job, JobId, QueuedJob};
use super::model::Served;
use super::status::{EngineStatus, Snapshot};
use super::worker::UPDATES;
use sterna_engine::SavedSize;

/// A model that is loaded.
pub struct Instance {
    /// The model as requests see it.
    pub served: Served,
    /// Status of its engine.
    pub status: Arc<EngineStatus>,
    /// Largest size of the saved pages of a prompt.
    pub saved_size: SavedSize,
    commands: Sender<Command>,
    next_job: AtomicU64,
    /// The last field: it is given back when the others are gone.
    _permit: Arc<MemoryPermit>,
}

impl Instance {
    /// `served`, whose engine thread listens at the other end of `commands`.
    pub fn new(
        served: Served,
        status: Arc<EngineStatus>,
        saved_size: SavedSize,
        commands: Sender<Command>,
        permit: Arc<MemoryPermit>,
    ) -> Self {
        Self { served, status, saved_size, commands, next_job: AtomicU64::new(0), _permit: permit }
    }

    /// Hands a job to the engine thread, where at most `queue` wait; a full queue says when to come again, if
    /// an answer takes `seconds` on average.
    ///
    /// # Errors
    /// 429 if too many wait; 500 if the engine has stopped.
    pub fn begin(&self, job: Job, queue: usize, seconds: f64) -> Result<Handle, ApiError> {
        self.status.queue(queue).map_err(|waiting| {
            // Half of those who wait will have been answered by then, as far as can be told.
            let seconds = seconds * waiting as f64 / (2 * self.served.n_slots()) as f64;
            ApiError::queue_full(waiting, (seconds.ceil() as u32).clamp(1, 120))
        })?;
        let id = JobId(self.next_job.fetch_add(1, Ordering::Relaxed));
        let (sender, updates) = tokio::sync::mpsc::channel(UPDATES);
        let queued = QueuedJob {
            id,
            job,
            updates: sender,
            waits_for_reader: Arc::new(AtomicBool::new(false)),
            came: Instant::now(),
        };
        let handle = Handle::new(&queued, updates, self.commands.clone());
        self.tell(Command::Add(Box::new(queued)))?;
        Ok(handle)
    }

    /// Tells the engine thread something.
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
    /// Most models.
    pub most: usize,
    /// Most bytes of all of them.
    pub most_bytes: u64,
    taken: Mutex<Taken>,
    given_back: Condvar,
    /// Counts of the engines that are gone.
    past: Mutex<Snapshot>,
}

#[derive(Debug, Default)]
struct Taken {
    models: usize,
    bytes: u64,
    /// Permits that have been given back so far.
    returns: u64,
}

impl ModelBudget {
    /// A budget for `most` models of `most_bytes` in all.
    pub fn new(most: usize, most_bytes: u64) -> Arc<Self> {
        let (taken, past) = (Mutex::default(), Mutex::default());
        Arc::new(Self { most, most_bytes, taken, given_back: Condvar::new(), past })
    }

    /// A permit for a model of `bytes`, if there is room. Otherwise the number of models unloaded so far, for
    /// [`wait`](Self::wait), or `None` if no model is loaded.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Arc<MemoryPermit>, Option<u64>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.models < self.most && bytes <= self.most_bytes.saturating_sub(taken.bytes) {
            taken.models += 1;
            taken.bytes += bytes;
            return Ok(Arc::new(MemoryPermit { budget: Arc::clone(self), bytes }));
        }
        Err((taken.models > 0).then_some(taken.returns))
    }

    /// Waits for a moment, or until more than `returns` models have been unloaded; then it is true.
    pub fn wait(&self, returns: u64) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |taken: &mut Taken| taken.returns == returns;
        let waited = self.given_back.wait_timeout_while(taken, Duration::from_millis(100), waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Models that are loaded or being loaded, those included that are on their way out, and how many have
    /// been unloaded.
    pub fn count(&self) -> (usize, u64) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        (taken.models, taken.returns)
    }

    /// Remembers what an engine did that is gone.
    pub fn remember(&self, snapshot: &Snapshot) {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).add(&snapshot.done());
    }

    /// Counts of the engines that are gone.
    pub fn past(&self) -> Snapshot {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The memory of one model. Its thread and its [`Instance`] hold it; it is free when both have let go.
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
