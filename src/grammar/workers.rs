//! Threads that compute token masks while the model runs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Maximum number of threads. A mask takes a tenth of a millisecond, so one thread keeps up with a CPU; GPU
/// steps with many constrained sequences need more.
const MOST: usize = 4;
/// Stack of a thread. Its pages are allocated as they are used.
const STACK_BYTES: usize = 16 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// Worker threads. They end when the last owner is dropped and the queue is empty.
#[derive(Debug)]
pub struct Workers {
    jobs: Sender<Job>,
    n_threads: usize,
}

impl Workers {
    /// Starts one thread per processor, at most four.
    pub fn new() -> Self {
        let (jobs, taken) = channel();
        let taken = Arc::new(Mutex::new(taken));
        let wanted = thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let start = |i: usize| {
            let taken = Arc::clone(&taken);
            let name = format!("mask-{i}");
            thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || work(&taken)).is_ok()
        };
        let n_threads = (0..wanted).take_while(|&i| start(i)).count();
        Self { jobs, n_threads }
    }

    /// Runs `job` on a worker, or directly if there are none.
    pub fn run(&self, job: Job) {
        match self.n_threads {
            0 => job(),
            _ => self.jobs.send(job).unwrap_or_else(|refused| (refused.0)()),
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting: one thread waits for the queue and the others for the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
