//! What every handler has: options, the board, and the way to the engine thread.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::board::{Board, Phase};
use super::error::ApiError;
use super::job::{Command, Handle, Job, JobId, Order};
use super::metrics::Metrics;
use super::model::Served;
use super::options::ServeOptions;
use super::worker::UPDATES;

/// The state of a server.
pub struct App {
    /// What the operator said.
    pub options: ServeOptions,
    /// Whether the server listens on loopback alone.
    pub on_loopback: bool,
    /// How things stand.
    pub board: Arc<Board>,
    /// What has been counted.
    pub metrics: Arc<Metrics>,
    /// The model, once it is loaded.
    pub served: Arc<OnceLock<Served>>,
    /// The way to the engine thread.
    pub commands: Sender<Command>,
    /// Seconds since 1970 when the server began.
    pub started: u64,
    next_job: AtomicU64,
    /// Names of answers and requests rest on it, so that two runs of a server give different ones.
    random: RandomState,
}

impl App {
    /// The state of a server that begins now.
    pub fn new(options: ServeOptions, on_loopback: bool, commands: Sender<Command>) -> Self {
        Self {
            options,
            on_loopback,
            board: Arc::default(),
            metrics: Arc::default(),
            served: Arc::default(),
            commands,
            started: now(),
            next_job: AtomicU64::new(0),
            random: RandomState::new(),
        }
    }

    /// The model.
    ///
    /// # Errors
    /// 503 as long as it is not there, or when it is there no more.
    pub fn served(&self) -> Result<&Served, ApiError> {
        match (self.board.phase(), self.served.get()) {
            (Phase::Failed, _) => Err(ApiError::unavailable("the engine has stopped")),
            (Phase::Ending, _) => Err(ApiError::unavailable("the server is shutting down")),
            (_, Some(served)) => Ok(served),
            (_, None) => Err(ApiError::unavailable("Loading model")),
        }
    }

    /// Hands a job to the engine thread.
    ///
    /// # Errors
    /// 429 if too many wait; 503 if the server ends.
    pub fn begin(&self, job: Job) -> Result<Handle, ApiError> {
        self.served()?;
        self.board
            .queue(self.options.queue)
            .map_err(|waiting| ApiError::queue_full(waiting, self.retry_after(waiting)))?;
        let id = JobId(self.next_job.fetch_add(1, Ordering::Relaxed));
        let (sender, updates) = tokio::sync::mpsc::channel(UPDATES);
        let order = Order {
            id,
            job,
            updates: sender,
            waits_for_reader: Arc::new(AtomicBool::new(false)),
            came: Instant::now(),
        };
        let handle = Handle::new(&order, updates, self.commands.clone());
        match self.commands.send(Command::Add(Box::new(order))) {
            Ok(()) => Ok(handle),
            Err(_) => Err(ApiError::ours("the engine has stopped; the server is ending")),
        }
    }

    /// Seconds until half of those who wait will have been answered, as far as can be told.
    fn retry_after(&self, waiting: usize) -> u32 {
        let slots = self.served.get().map_or(1, Served::n_slots);
        let seconds = self.metrics.whole.mean() * waiting as f64 / (2 * slots) as f64;
        (seconds.ceil() as u32).clamp(1, 120)
    }

    /// A name that has not been given before: `prefix`, and 24 letters and digits.
    pub fn name(&self, prefix: &str) -> String {
        const DIGITS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut name = prefix.to_owned();
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        for half in 0..2u8 {
            let mut bits = self.random.hash_one((next, half, self.started));
            for _ in 0..12 {
                name.push(DIGITS[(bits % 32) as usize] as char);
                bits /= 32;
            }
        }
        name
    }

    /// A seed for a request that names none.
    pub fn seed(&self) -> u64 {
        RandomState::new().hash_one(self.next_job.load(Ordering::Relaxed)) >> 32
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
