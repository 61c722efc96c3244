//! Commands to the engine thread, and its updates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::handover::{ExportedPrompts, Ticket, TransferredPages};
use super::shares::Share;
use super::slots::{self, SlotOrder};
use sterna_engine::{AdapterScale, Engine, Event, GenerateOptions, LogProbs, PlacedImage, Pooled, Stats};

/// Text to be generated, or texts to be embedded or scored. Every endpoint family converts its requests to
/// jobs.
#[derive(Clone, Debug)]
pub struct Job {
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Options of the generated text. The seed is set: choice `i` of a prompt uses the seed plus `i`.
    pub options: GenerateOptions,
    /// Number of choices per prompt.
    pub n: usize,
    /// Client, whose slots and cached prompts are its own.
    pub client: Arc<str>,
    /// Key or address that it is from, for fair scheduling: requests of one sender never delay those of
    /// others for longer than its own.
    pub sender: Arc<str>,
    /// Prompts share cached pages only if their salts are equal.
    pub salt: Arc<str>,
    /// LoRA adapters; `None` is the server's default.
    pub adapters: Option<Arc<[AdapterScale]>>,
    /// Reuses pages of earlier prompts, and caches its own.
    pub cache_prompt: bool,
    /// Number of candidates to return per prompt token; `None` does not score prompts.
    pub score_prompt: Option<usize>,
    /// One entry per prompt if the prompts are texts to embed or score; `None` generates text.
    pub pooled: Option<Vec<Pooled>>,
    /// Sends progress updates of its prompts.
    pub progress: bool,
    /// Maximum time after its first token.
    pub time_limit: Option<Duration>,
    /// The slot that stores its text, instead of the one it runs in.
    pub slot: Option<u32>,
    /// Store that keeps the pages of its only prompt for another server, after they are computed.
    pub export_to: Option<Arc<ExportedPrompts>>,
    /// Pages of its only prompt that another server has computed.
    pub transferred: Option<TransferredPages>,
    /// Images among the tokens of its only prompt.
    pub images: Vec<PlacedImage>,
}

impl Job {
    /// A job that embeds or scores texts.
    pub fn pooled(client: &Arc<str>, sender: &Arc<str>, texts: Vec<(Vec<u32>, Pooled)>) -> Self {
        let (prompts, pooled) = texts.into_iter().unzip();
        Self {
            prompts,
            options: GenerateOptions::default(),
            n: 1,
            client: Arc::clone(client),
            sender: Arc::clone(sender),
            salt: slots::salt(client, ""),
            adapters: None,
            cache_prompt: false,
            score_prompt: None,
            pooled: Some(pooled),
            progress: false,
            time_limit: None,
            slot: None,
            export_to: None,
            transferred: None,
            images: Vec::new(),
        }
    }

    /// The salt of its pages in the prefix cache.
    pub fn page_salt(&self, engine: &Engine) -> Arc<str> {
        match &self.adapters {
            Some(adapters) => engine.salt_with(adapters, &self.salt),
            None => engine.salt_with(&engine.default_adapters(), &self.salt),
        }
    }

    /// Number of sequences that it needs.
    pub fn n_choices(&self) -> usize {
        self.prompts.len() * self.n
    }
}

/// Unique id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Progress of a job.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all updates are of the largest kind")]
pub enum Update {
    /// Progress of a prompt.
    Progress {
        /// Index of the choice: prompt times `n`, plus the choice within the prompt.
        choice: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Tokens found in the prefix cache.
        cached: usize,
        /// Tokens processed so far, including cached ones.
        processed: usize,
        /// Time since the job started.
        time: Duration,
    },
    /// The prompt of a choice has been computed and scored: log-probabilities of all its tokens except the
    /// first.
    Scores {
        /// Index of the prompt's first choice.
        choice: usize,
        /// Log-probabilities, one entry per token.
        scores: Vec<LogProbs>,
    },
    /// The vector or the scores of a prompt.
    Vector {
        /// Index of the prompt.
        choice: usize,
        /// Output of the engine, not normalised.
        vector: Vec<f32>,
    },
    /// A new token of a choice, or its end.
    Event {
        /// Index of the choice.
        choice: usize,
        /// The token, its text, and the reason of the end.
        event: Event,
        /// Token counts and times of the choice.
        stats: Stats,
        /// The slot that stores the choice, set at its end.
        slot: Option<u32>,
        /// Ticket for the pages of its prompt, set at the end if they are kept.
        ticket: Option<Box<Ticket>>,
    },
}

/// Error that ends a job.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum JobError {
    /// The engine refused it.
    #[error("{0}")]
    Refused(String),
    /// The device or the engine failed.
    #[error("{0}")]
    Failed(String),
    /// A sender with fewer requests has got its place in the queue.
    #[error("the place in the queue is needed by a client with fewer requests")]
    Displaced,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Ending,
}

/// Command to the engine thread.
pub enum Command {
    /// Runs a job.
    Add(Box<QueuedJob>),
    /// The reader of a job is gone.
    Leave(JobId),
    /// The reader of a job has caught up.
    Resume(JobId),
    /// Saves, restores or erases a slot.
    Slot(SlotOrder),
    /// Ends all current jobs.
    EndAll,
    /// Ends the thread after the current jobs have ended.
    Stop,
}

/// A job, and the channel for its updates.
pub struct QueuedJob {
    /// Id of the job.
    pub id: JobId,
    /// The job itself.
    pub job: Job,
    /// Its place in the queue, and then among the running jobs.
    pub place: Arc<Share>,
    /// Channel of its updates.
    pub updates: tokio::sync::mpsc::Sender<Result<Update, JobError>>,
    /// Set while the engine waits for the reader.
    pub waits_for_reader: Arc<AtomicBool>,
    /// Time of its arrival.
    pub arrived: Instant,
}

/// The reader's end of a job. Dropping it cancels the job.
pub struct Handle {
    id: JobId,
    updates: Receiver<Result<Update, JobError>>,
    waits_for_reader: Arc<AtomicBool>,
    commands: Sender<Command>,
    /// Updates that were peeked at but not taken.
    back: VecDeque<Result<Update, JobError>>,
    /// Number of choices that have not ended.
    open: usize,
    has_failed: bool,
}

impl Handle {
    /// The reader's end of the channel of `queued`.
    pub fn new(
        queued: &QueuedJob,
        updates: Receiver<Result<Update, JobError>>,
        commands: Sender<Command>,
    ) -> Self {
        Self {
            id: queued.id,
            updates,
            waits_for_reader: Arc::clone(&queued.waits_for_reader),
            commands,
            back: VecDeque::new(),
            open: queued.job.n_choices(),
            has_failed: false,
        }
    }

    /// Waits for the next update; `None` after every choice has ended.
    pub async fn next(&mut self) -> Option<Result<Update, JobError>> {
        if let Some(update) = self.back.pop_front() {
            return Some(self.count(update));
        }
        if self.open == 0 || self.has_failed {
            return None;
        }
        let update = match self.updates.recv().await {
            Some(update) => update,
            // The engine thread sends an error before it drops a job, unless it panics.
            None => Err(JobError::Failed("the engine has stopped".into())),
        };
        self.resume();
        Some(self.count(update))
    }

    /// The next update, if it is available.
    pub fn try_next(&mut self) -> Option<Result<Update, JobError>> {
        if let Some(update) = self.back.pop_front() {
            return Some(self.count(update));
        }
        let update = match self.updates.try_recv() {
            Ok(update) => update,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
        };
        self.resume();
        Some(self.count(update))
    }

    /// Waits for the next update or the end, without taking it.
    pub async fn ready(&mut self) -> Option<&Result<Update, JobError>> {
        if self.back.is_empty() {
            let update = self.next().await?;
            // It has not been taken, so undo the bookkeeping.
            self.open += usize::from(ends(&update));
            self.has_failed = false;
            self.back.push_back(update);
        }
        self.back.front()
    }

    fn resume(&self) {
        if self.waits_for_reader.swap(false, Ordering::SeqCst) {
            // The engine thread may be gone.
            let _ = self.commands.send(Command::Resume(self.id));
        }
    }

    fn count(&mut self, update: Result<Update, JobError>) -> Result<Update, JobError> {
        match &update {
            Err(_) => self.has_failed = true,
            update if ends(update) => self.open -= 1,
            Ok(_) => {}
        }
        update
    }
}

/// True for the last update of its choice.
fn ends(update: &Result<Update, JobError>) -> bool {
    matches!(update, Ok(Update::Event { event, .. }) if event.end.is_some())
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.open > 0 {
            let _ = self.commands.send(Command::Leave(self.id));
        }
    }
}
