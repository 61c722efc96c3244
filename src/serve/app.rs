//! State shared by all handlers: options, phase of the server, and access to its models.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::error::{ApiError, ServeError};
use super::http::host::HostNames;
use super::instance::Instance;
use super::job::{Handle, Job};
use super::lanes::Lanes;
use super::metrics::Metrics;
use super::models::Models;
use super::options::ServeOptions;
use super::shares::{Share, Shares};
use super::status::{Life, Phase};
use sterna_engine::PageEvent;

/// Publisher of changes to the prefix cache.
pub struct PageEvents {
    /// Address where they are published.
    pub endpoint: String,
    /// Channel to the publisher.
    pub sender: UnboundedSender<PageEvent>,
    /// Notified after the last change has been published.
    pub ended: Arc<Notify>,
}

/// Bodies of the largest size that may arrive or wait at a time.
const BODIES: usize = 16;

/// The state of a server.
pub struct App {
    /// Options of the operator.
    pub options: ServeOptions,
    /// Host names that requests may use.
    pub hosts: HostNames,
    /// Phase of the server.
    pub life: Arc<Life>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Models that requests may ask for.
    pub models: Models,
    /// Threads that parse and tokenise requests.
    pub lanes: Lanes,
    /// Bytes of bodies that arrive or wait.
    pub bodies: Arc<Shares>,
    /// Seconds since 1970 when the server began.
    pub started: u64,
    /// Publisher of changes of the prefix cache, if a companion has set one.
    pub page_events: OnceLock<PageEvents>,
    /// The first failure.
    failure: Mutex<Option<ServeError>>,
    seeds: AtomicU64,
    /// Seed for the names of answers and requests, so that two runs of a server use different ones.
    random: RandomState,
}

impl App {
    /// The state of a new server. `on_loopback` is true if it only listens there.
    pub fn new(options: ServeOptions, on_loopback: bool, models: Models) -> Self {
        let hosts = HostNames::new(&options.hosts, on_loopback, !options.keys.is_empty());
        Self {
            bodies: Shares::new(options.max_body_bytes.saturating_mul(BODIES)),
            lanes: Lanes::default(),
            options,
            hosts,
            life: Arc::default(),
            metrics: Arc::default(),
            models,
            started: now(),
            page_events: OnceLock::new(),
            failure: Mutex::new(None),
            seeds: AtomicU64::new(0),
            random: RandomState::new(),
        }
    }

    /// Checks that the server takes requests.
    ///
    /// # Errors
    /// 503 if the server is shutting down, or while its only model is loading.
    pub fn check(&self) -> Result<(), ApiError> {
        match self.life.phase() {
            Phase::Failed => Err(ApiError::unavailable("the engine has stopped")),
            Phase::Ending => Err(ApiError::unavailable("the server is shutting down")),
            Phase::Loading => Err(ApiError::unavailable("Loading model")),
            Phase::Ready => Ok(()),
        }
    }

    /// A place in the queue of a model, for a request from `sender`.
    ///
    /// # Errors
    /// 429 if too many requests are waiting.
    pub fn place(&self, model: &Instance, sender: &Arc<str>) -> Result<Arc<Share>, ApiError> {
        model.place(sender, self.metrics.whole.mean())
    }

    /// Hands a job to the engine thread of its model.
    ///
    /// # Errors
    /// 429 if too many requests are waiting; 503 if the server is shutting down.
    pub fn begin(&self, model: &Instance, job: Job) -> Result<Handle, ApiError> {
        let place = self.place(model, &job.sender)?;
        self.begin_in(model, job, place)
    }

    /// Hands a job with a place in the queue to the engine thread of its model.
    ///
    /// # Errors
    /// 429 if it has been displaced; 503 if the server is shutting down.
    pub fn begin_in(&self, model: &Instance, job: Job, place: Arc<Share>) -> Result<Handle, ApiError> {
        self.check()?;
        let adapters = job.adapters.or_else(|| Some(model.served.adapters()));
        model.begin(Job { adapters, ..job }, place)
    }

    /// Ends the server because of `failure`.
    pub fn fail(&self, failure: ServeError) {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
        drop(first);
        self.life.advance(Phase::Failed);
    }

    /// Takes the failure that ended the server.
    pub fn failure(&self) -> Option<ServeError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A new unique name: `prefix` and 24 letters and digits.
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

    /// A seed for a request without one.
    pub fn seed(&self) -> u64 {
        RandomState::new().hash_one(self.seeds.fetch_add(1, Ordering::Relaxed)) >> 32
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
