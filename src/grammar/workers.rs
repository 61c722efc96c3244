//! Threads that compute token masks while the model runs.
//!
//! One thread is for sequences whose last mask was fast, and of the waiting ones the fastest goes first. So
//! one grammar does not hold up the masks of the others.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum number of threads. A mask takes a tenth of a millisecond, so one thread keeps up with a CPU; GPU
/// steps with many constrained sequences need more.
const MAX_WORKERS: usize = 4;
/// Minimum number of threads: one of them is for fast masks only.
const MIN_WORKERS: usize = 3;
/// Stack of a thread. Its pages are allocated as they are used.
const STACK_BYTES: usize = 16 << 20;
/// Masks of a sequence are slow if its last one took longer than this.
const SLOW: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

/// Worker threads. They end when the last owner is dropped and the queue is empty.
pub struct Workers {
    queue: Arc<Queue>,
    n_threads: usize,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Waiting jobs, each with the time that the last mask of its sequence took, if it had one; the oldest
    /// first.
    jobs: Vec<(Option<Duration>, Job)>,
    /// Number of running jobs that may be slow.
    n_slow: usize,
    is_closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Takes the next job, of which at most `most_slow` that may be slow run at a time. Also returns true for
    /// such a job.
    fn take(&mut self, most_slow: usize) -> Option<(bool, Job)> {
        let (at, (last, _)) =
            self.jobs.iter().enumerate().min_by_key(|(_, (last, _))| last.unwrap_or_default())?;
        let may_be_slow = !is_fast(*last);
        let (at, may_be_slow) = match may_be_slow && self.n_slow >= most_slow {
            true => (self.jobs.iter().position(|(last, _)| is_fast(*last))?, false),
            false => (at, may_be_slow),
        };
        self.n_slow += usize::from(may_be_slow);
        Some((may_be_slow, self.jobs.remove(at).1))
    }
}

/// True if the masks of a sequence are fast, as the last one was.
pub fn is_fast(last: Option<Duration>) -> bool {
    last.is_some_and(|last| last <= SLOW)
}

impl Workers {
    /// Starts one thread per processor, but at least three and at most four.
    pub fn new() -> Self {
        let queue = Arc::new(Queue::default());
        let wanted = thread::available_parallelism().map_or(1, usize::from).clamp(MIN_WORKERS, MAX_WORKERS);
        let start = |i: usize| {
            let queue = Arc::clone(&queue);
            let name = format!("mask-{i}");
            let work = move || work(&queue, wanted - 1);
            thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(work).is_ok()
        };
        let n_threads = (0..wanted).take_while(|&i| start(i)).count();
        Self { queue, n_threads }
    }

    /// Runs `job` on a worker, or directly if there are none. `last` is the time of its sequence's last mask.
    pub fn run(&self, last: Option<Duration>, job: Job) {
        if self.n_threads == 0 {
            return job();
        }
        self.queue.state().jobs.push((last, job));
        self.queue.changed.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.state().is_closed = true;
        self.queue.changed.notify_all();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("n_threads", &self.n_threads).finish_non_exhaustive()
    }
}

fn work(queue: &Queue, most_slow: usize) {
    let mut state = queue.state();
    loop {
        match state.take(most_slow) {
            Some((may_be_slow, job)) => {
                drop(state);
                job();
                state = queue.state();
                if may_be_slow {
                    state.n_slow -= 1;
                    queue.changed.notify_all();
                }
            }
            None if state.is_closed && state.jobs.is_empty() => return,
            None => state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn slow_jobs_leave_a_thread_to_fast_ones() {
        let workers = Workers::new();
        let (ended, ends) = channel();
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for i in 0..2 * MAX_WORKERS {
            let (held, ended) = (Arc::clone(&held), ended.clone());
            let wait = move || {
                let _ = held.lock().unwrap().recv();
                ended.send("slow").unwrap();
            };
            workers.run((i % 2 == 0).then_some(2 * SLOW), Box::new(wait));
        }
        workers.run(Some(Duration::ZERO), Box::new(move || ended.send("fast").unwrap()));
        assert_eq!(ends.recv(), Ok("fast"));
        drop(release);
        assert_eq!(ends.iter().collect::<Vec<_>>(), ["slow"; 2 * MAX_WORKERS]);
    }
}
