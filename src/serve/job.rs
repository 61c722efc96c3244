//! What is asked of the engine thread, and what it answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::handover::{ExportedPrompts, Handed, Ticket};
use super::slots::{self, SlotOrder};
use sterna_engine::{Event, GenerateOptions, LogProbs, Pooled, Stats};

/// Text to be generated, or vectors of texts: every family of endpoints turns its requests into jobs.
#[derive(Clone, Debug)]
pub struct Job {
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Options of the text behind them. A seed is given: choice `i` of a prompt draws with the seed plus `i`.
    pub options: GenerateOptions,
    /// Choices of each prompt.
    pub n: usize,
    /// Client: requests of one client never keep those of others waiting for longer than its own.
    pub client: Arc<str>,
    /// Prompts find each other's pages if their salts are equal.
    pub salt: Arc<str>,
    /// Pages of earlier prompts are looked for, and its own kept.
    pub cache_prompt: bool,
    /// Number of tokens told beside each token of its prompts; `None` scores no prompt.
    pub score_prompt: Option<usize>,
    /// Its prompts are texts whose vectors or scores are wanted, an entry per prompt; `None` generates text.
    pub pooled: Option<Vec<Pooled>>,
    /// Updates say how far its prompts are.
    pub progress: bool,
    /// Longest time behind its first token.
    pub time_limit: Option<Duration>,
    /// The slot that it is remembered as, in place of the one that it has.
    pub slot: Option<u32>,
    /// Store that keeps the pages of its only prompt for another server, once they are computed.
    pub export_to: Option<Arc<ExportedPrompts>>,
    /// The pages of its only prompt that another server has computed.
    pub handed: Option<Handed>,
}

impl Job {
    /// The vectors or scores of texts.
    pub fn pooled(client: &Arc<str>, texts: Vec<(Vec<u32>, Pooled)>) -> Self {
        let (prompts, pooled) = texts.into_iter().unzip();
        Self {
            prompts,
            options: GenerateOptions::default(),
            n: 1,
            client: Arc::clone(client),
            salt: slots::salt(client, ""),
            cache_prompt: false,
            score_prompt: None,
            pooled: Some(pooled),
            progress: false,
            time_limit: None,
            slot: None,
            export_to: None,
            handed: None,
        }
    }

    /// Sequences that it needs.
    pub fn n_choices(&self) -> usize {
        self.prompts.len() * self.n
    }
}

/// Name of a job; none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Progress of a job.
#[derive(Clone, Debug)]
pub enum Update {
    /// Its prompt has come further.
    Progress {
        /// Number of the choice: prompt times `n`, plus the choice of the prompt.
        choice: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Tokens that the prefix cache had.
        cached: usize,
        /// Tokens that are computed, the cached ones included.
        processed: usize,
        /// Time since it began.
        time: Duration,
    },
    /// The prompt of a choice has been computed, and scored: log-probabilities of all its tokens but the
    /// first.
    Scores {
        /// Number of the first choice of the prompt.
        choice: usize,
        /// Log-probabilities, one entry per token.
        scores: Vec<LogProbs>,
    },
    /// The vector of a prompt has been computed, or its scores.
    Vector {
        /// Number of the prompt.
        choice: usize,
        /// As the engine makes it.
        vector: Vec<f32>,
    },
    /// A choice has a token more, or has ended.
    Event {
        /// Number of the choice.
        choice: usize,
        /// The token, its text, and the end.
        event: Event,
        /// Counts and times of the choice.
        stats: Stats,
        /// The slot that the choice is remembered as, when it has ended.
        slot: Option<u32>,
        /// Ticket for the pages of its prompt, when it has ended and they are kept.
        ticket: Option<Box<Ticket>>,
    },
}

/// Error that ends a job.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum JobError {
    /// The engine refuses it.
    #[error("{0}")]
    Refused(String),
    /// The device or the engine failed.
    #[error("{0}")]
    Failed(String),
    /// The server ends.
    #[error("the server is shutting down")]
    Ending,
}

/// Command to the engine thread.
pub enum Command {
    /// Run this job.
    Add(Box<QueuedJob>),
    /// The reader of that job has left.
    Leave(JobId),
    /// Its reader has caught up.
    Resume(JobId),
    /// Save a slot, or take one up.
    Slot(SlotOrder),
    /// End all jobs that are there.
    EndAll,
    /// End the thread, when the jobs that are there have ended.
    Stop,
}

/// A job, and where its updates go.
pub struct QueuedJob {
    /// Its name.
    pub id: JobId,
    /// The job itself.
    pub job: Job,
    /// Channel of its updates.
    pub updates: tokio::sync::mpsc::Sender<Result<Update, JobError>>,
    /// Set while the engine waits for its reader.
    pub waits_for_reader: Arc<AtomicBool>,
    /// Time of its arrival.
    pub came: Instant,
}

/// The reader's end of a job. Dropping it cancels the job.
pub struct Handle {
    id: JobId,
    updates: Receiver<Result<Update, JobError>>,
    waits_for_reader: Arc<AtomicBool>,
    commands: Sender<Command>,
    /// Updates that were looked at and not taken.
    back: VecDeque<Result<Update, JobError>>,
    /// Choices that have not ended.
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

    /// The next update; `None` when every choice has ended.
    pub async fn next(&mut self) -> Option<Result<Update, JobError>> {
        if let Some(update) = self.back.pop_front() {
            return Some(self.count(update));
        }
        if self.open == 0 || self.has_failed {
            return None;
        }
        let update = match self.updates.recv().await {
            Some(update) => update,
            // The engine thread says goodbye before it drops a job, unless it panics.
            None => Err(JobError::Failed("the engine has stopped".into())),
        };
        self.resume();
        Some(self.count(update))
    }

    /// The next update if it is there already.
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

    /// Waits until there is an update or the end, and leaves it there.
    pub async fn ready(&mut self) -> Option<&Result<Update, JobError>> {
        if self.back.is_empty() {
            let update = self.next().await?;
            // It has not been taken yet.
            self.open += usize::from(ends(&update));
            self.has_failed = false;
            self.back.push_back(update);
        }
        self.back.front()
    }

    fn resume(&self) {
        if self.waits_for_reader.swap(false, Ordering::SeqCst) {
            // A thread that is gone needs no telling.
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
