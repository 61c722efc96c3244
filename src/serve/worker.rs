//! The engine thread, the only owner of the batch. Commands arrive through a channel, and updates leave
//! through one bounded channel per job. It never blocks on a reader: a sequence with a slow reader is paused
//! until the reader has caught up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;

use super::handover::Ticket;
use super::job::{Command, JobError, JobId, QueuedJob, Update};
use super::metrics::Metrics;
use super::slots::Slots;
use super::status::{EngineStatus, Slot, Snapshot};
use sterna_engine::{Batch, BatchStats, Error, Event, Fault, Request, SeqId, Stats, StopReason};

/// Maximum unread updates of a job before its sequences are paused.
pub const UPDATES: usize = 256;
/// Number of consecutive failed steps after which all jobs are ended.
const TRIES: u32 = 3;
/// Sleep of the thread when nothing can run.
const NAP: Duration = Duration::from_millis(20);

/// A sequence of a job.
struct Seq {
    id: SeqId,
    choice: usize,
    /// Time of its last token.
    last: Option<Instant>,
    /// Prompt tokens in the last progress update, if any.
    reported: Option<usize>,
    out_of_time: bool,
    has_ended: bool,
}

/// A job with sequences in the batch, or with unread updates.
struct ActiveJob {
    queued: QueuedJob,
    /// Number of prompts added to the batch.
    n_added: usize,
    seqs: Vec<Seq>,
    /// Updates that did not fit into the channel.
    held: VecDeque<Result<Update, JobError>>,
    is_paused: bool,
    /// Time when the first prompt was added to the batch.
    started: Instant,
}

impl ActiveJob {
    /// Sends held updates as long as there is room. `Err` if the reader is gone.
    fn flush(&mut self) -> Result<(), ()> {
        while let Some(update) = self.held.pop_front() {
            match self.queued.updates.try_send(update) {
                Ok(()) => {}
                Err(TrySendError::Full(update)) => {
                    self.held.push_front(update);
                    return Ok(());
                }
                Err(TrySendError::Closed(_)) => return Err(()),
            }
        }
        Ok(())
    }

    /// Sends held updates, or asks the reader to notify when there is room. `Err` if the reader is gone.
    fn send(&mut self) -> Result<(), ()> {
        self.flush()?;
        if !self.held.is_empty() {
            self.queued.waits_for_reader.store(true, Ordering::SeqCst);
            // The reader may have emptied its channel before it could see the flag.
            self.flush()?;
        }
        if self.held.is_empty() {
            self.queued.waits_for_reader.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.held.is_empty() && !self.has_more() && self.seqs.iter().all(|seq| seq.has_ended)
    }

    /// True if some of its prompts are not in the batch yet.
    fn has_more(&self) -> bool {
        self.n_added < self.queued.job.prompts.len()
    }

    /// Number of sequences that have not ended.
    fn n_open(&self) -> usize {
        self.seqs.iter().filter(|seq| !seq.has_ended).count()
    }

    /// Ends its sequences, and skips its remaining prompts.
    fn cancel(&mut self, batch: &mut Batch) {
        self.n_added = self.queued.job.prompts.len();
        self.seqs.iter().for_each(|seq| batch.cancel(seq.id));
    }

    /// Handles a token of the sequence at `at`. The first one comes with the scores and the progress of the
    /// prompt.
    fn on_token(&mut self, at: usize, stats: &Stats, batch: &mut Batch, metrics: &Metrics) {
        let Self { queued, seqs, held, started, .. } = self;
        let (seq, job) = (&mut seqs[at], &queued.job);
        if let Some(last) = seq.last.replace(Instant::now()) {
            return metrics.on_next_token(last.elapsed());
        }
        if job.score_prompt.is_some() && seq.choice % job.n == 0 {
            let scores = batch.take_scores(seq.id);
            held.push_back(Ok(Update::Scores { choice: seq.choice, scores }));
        }
        metrics.on_first_token(stats, queued.arrived.elapsed(), started.elapsed());
        if job.progress {
            held.extend(seq.progress(stats, stats.prompt_tokens, *started).into_iter().map(Ok));
        }
    }

    /// Handles the end of the sequence at `at`. Returns the slot that keeps its pages, and the ticket for
    /// those of its prompt.
    fn on_end(
        &mut self,
        at: usize,
        end: StopReason,
        stats: &Stats,
        batch: &mut Batch,
        slots: &mut Slots,
        metrics: &Metrics,
    ) -> (Option<u32>, Option<Box<Ticket>>) {
        let Self { queued, seqs, held, started, .. } = self;
        let (seq, job) = (&mut seqs[at], &queued.job);
        seq.has_ended = true;
        let vector = batch.take_vector(seq.id);
        metrics.on_end(end, vector.is_some(), stats, queued.arrived.elapsed());
        if let Some(vector) = vector {
            metrics.on_vector(stats, started.elapsed());
            held.push_back(Ok(Update::Vector { choice: seq.choice, vector }));
        }
        let exported = job.export_to.as_ref().filter(|_| is_answered(end));
        let salt = job.page_salt(batch.engine());
        let ticket = exported.and_then(|to| to.keep(batch, &job.prompts[0], &salt));
        // The pages of an embedded text are already gone.
        let kept = batch.take_ended(seq.id).filter(|_| job.pooled.is_none());
        let slot = kept.map(|(own, tokens)| {
            let slot = job.slot.unwrap_or(own);
            slots.hold(slot, tokens, &salt, &job.client, !job.images.is_empty());
            slot
        });
        (slot, ticket.map(Box::new))
    }

    /// Ends the job after a fault of one of its sequences.
    fn on_fault(&mut self, fault: &Fault, batch: &mut Batch) {
        self.held.push_back(Err(match fault {
            // The grammar was accepted, but is too complex to follow to the end.
            Fault::Constraint(err) => JobError::Refused(err.to_string()),
            Fault::BrokenLogits(err) => JobError::Failed(err.to_string()),
        }));
        self.seqs.iter().for_each(|seq| batch.cancel(seq.id));
    }
}

/// Runs the jobs of a model.
pub struct Worker {
    batch: Batch,
    commands: Receiver<Command>,
    status: Arc<EngineStatus>,
    metrics: Arc<Metrics>,
    queue: VecDeque<QueuedJob>,
    jobs: BTreeMap<JobId, ActiveJob>,
    by_seq: HashMap<SeqId, JobId>,
    slots: Slots,
    failures: u32,
    stops: bool,
}

impl Worker {
    /// A worker for `batch`.
    pub fn new(
        batch: Batch,
        commands: Receiver<Command>,
        status: Arc<EngineStatus>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let slots = Slots::new(batch.engine().program().limits.seqs);
        Self {
            batch,
            slots,
            commands,
            status,
            metrics,
            queue: VecDeque::new(),
            jobs: BTreeMap::new(),
            by_seq: HashMap::new(),
            failures: 0,
            stops: false,
        }
    }

    /// Runs until it is told to stop.
    pub fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.take(command);
            }
            self.end_cancelled();
            self.hand_over();
            if self.batch.is_idle() {
                self.publish();
                if self.stops && self.jobs.is_empty() {
                    return;
                }
                match self.commands.recv() {
                    Ok(command) => self.take(command),
                    Err(_) => return,
                }
                continue;
            }
            let steps = self.batch.stats().steps;
            let n_events = self.step();
            if n_events == 0 && self.batch.stats().steps == steps {
                // All sequences are paused, or the device fails: wait for a command or for time to pass.
                match self.commands.recv_timeout(NAP) {
                    Ok(command) => self.take(command),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Add(queued) => self.queue.push_back(*queued),
            Command::Leave(id) => self.leave(id),
            Command::Resume(id) => self.send_updates(id),
            Command::Slot(order) => self.slots.take(order, &mut self.batch),
            Command::EndAll => self.end_all(&JobError::Ending),
            Command::Stop => self.stops = true,
        }
    }

    /// Ends a job whose reader is gone.
    fn leave(&mut self, id: JobId) {
        if let Some(at) = self.queue.iter().position(|queued| queued.id == id) {
            self.queue.remove(at);
        }
        if let Some(active) = self.jobs.get_mut(&id) {
            active.held.clear();
            active.cancel(&mut self.batch);
        }
        self.send_updates(id);
    }

    /// Ends cancelled sequences, so that their pages are free for the next step.
    fn end_cancelled(&mut self) {
        let events = self.batch.end_cancelled();
        if !events.is_empty() {
            self.publish();
            events.into_iter().for_each(|(seq, event)| self.deliver(seq, event));
        }
    }

    /// Sends a job's held updates. Pauses its sequences while its reader is slow, and ends them if the reader
    /// is gone.
    fn send_updates(&mut self, id: JobId) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.send().is_err() {
            active.held.clear();
            active.cancel(&mut self.batch);
        }
        let is_paused = !active.held.is_empty();
        if active.is_paused != is_paused {
            active.is_paused = is_paused;
            active.seqs.iter().for_each(|seq| self.batch.pause(seq.id, is_paused));
        }
        if active.is_done() {
            self.jobs.remove(&id);
        }
    }

    fn end_all(&mut self, why: &JobError) {
        for queued in std::mem::take(&mut self.queue) {
            // The reader may be gone.
            let _ = queued.updates.try_send(Err(why.clone()));
        }
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in ids {
            let active = self.jobs.get_mut(&id).expect("a job of the list");
            active.held.push_back(Err(why.clone()));
            active.cancel(&mut self.batch);
            self.send_updates(id);
        }
    }

    /// Adds waiting prompts to the batch, as long as it has slots for their choices. Senders with the fewest
    /// running sequences go first, then the oldest job.
    fn hand_over(&mut self) {
        self.queue.retain(|queued| !queued.place.is_displaced() || displaced(queued));
        let n_seqs = self.batch.engine().program().limits.seqs;
        loop {
            let running = |queued: &QueuedJob| -> usize {
                let same = |active: &&ActiveJob| active.queued.job.sender == queued.job.sender;
                self.jobs.values().filter(same).map(ActiveJob::n_open).sum()
            };
            let started = self.jobs.values().filter(|active| active.has_more() && !active.is_paused);
            let waiting = started.map(|active| &active.queued).chain(&self.queue);
            let Some(next) = waiting.min_by_key(|queued| (running(queued), queued.id)) else { return };
            let (id, n, stats) = (next.id, next.job.n, self.batch.stats());
            if stats.running - stats.resting + stats.waiting + n > n_seqs {
                return;
            }
            if let Some(at) = self.queue.iter().position(|queued| queued.id == id) {
                let queued = self.queue.remove(at).expect("a job of the queue");
                if !queued.place.start() {
                    displaced(&queued);
                    continue;
                }
                self.begin(queued);
            }
            self.add_prompt(id);
        }
    }

    fn begin(&mut self, queued: QueuedJob) {
        self.metrics.on_start(queued.arrived.elapsed());
        let (id, started) = (queued.id, Instant::now());
        let (seqs, held) = (Vec::with_capacity(queued.job.n_choices()), VecDeque::new());
        self.jobs.insert(id, ActiveJob { queued, n_added: 0, seqs, held, is_paused: false, started });
    }

    fn add_prompt(&mut self, id: JobId) {
        let active = self.jobs.get_mut(&id).expect("a job that has begun");
        let job = &active.queued.job;
        if let Some(pages) = &job.transferred {
            let salt = job.page_salt(self.batch.engine());
            pages.restore(&mut self.batch, &job.prompts[active.n_added], &salt);
        }
        let request = Request {
            n: job.n,
            salt: Arc::clone(&job.salt),
            adapters: job.adapters.as_deref().map(<[_]>::to_vec),
            cache_prompt: job.cache_prompt,
            score_prompt: job.score_prompt,
            images: job.images.clone(),
            pooled: job.pooled.as_ref().map(|of_prompts| of_prompts[active.n_added]),
            ..Request::new(job.prompts[active.n_added].clone(), job.options.clone())
        };
        active.n_added += 1;
        match self.batch.add(&request) {
            Ok(ids) => {
                self.by_seq.extend(ids.iter().map(|seq| (*seq, id)));
                let first = active.seqs.len();
                active.seqs.extend(ids.into_iter().enumerate().map(|(at, seq)| Seq::new(seq, first + at)));
            }
            Err(err) => {
                active.held.push_back(Err(JobError::Refused(err.to_string())));
                active.cancel(&mut self.batch);
                self.send_updates(id);
            }
        }
    }

    /// Runs a step. Returns the number of events.
    fn step(&mut self) -> usize {
        let before = self.batch.stats();
        let status = Arc::clone(&self.status);
        let events = match status.during(|| self.batch.step()) {
            Ok(events) => events,
            Err(err) => {
                self.failed(&err);
                return 0;
            }
        };
        self.failures = 0;
        let after = self.batch.stats();
        let all = |stats: &BatchStats| stats.prompt_rows + stats.decode_rows + stats.drafted_tokens;
        self.metrics.on_step(all(&after) - all(&before));
        // A client that reads of an end may check for the pages that it freed.
        self.publish();
        self.tell_progress();
        let n_events = events.len();
        for (seq, event) in events {
            self.deliver(seq, event);
        }
        n_events
    }

    /// Handles a failed step. The device may recover; after several failures all jobs are ended.
    fn failed(&mut self, err: &Error) {
        self.failures += 1;
        tracing::error!(failures = self.failures, "a step failed: {err}");
        if self.failures >= TRIES {
            self.failures = 0;
            self.end_all(&JobError::Failed(err.to_string()));
        }
    }

    /// Handles an event of a sequence, and sends it to the job's reader.
    fn deliver(&mut self, seq: SeqId, mut event: Event) {
        let Some(&id) = self.by_seq.get(&seq) else { return };
        let stats = self.batch.stats_of(seq).unwrap_or_default();
        let active = self.jobs.get_mut(&id).expect("a job lives as long as its sequences");
        let at = active.seqs.iter().position(|of| of.id == seq).expect("a sequence of the job");
        if event.token.is_some() {
            active.on_token(at, &stats, &mut self.batch, &self.metrics);
        }
        if event.end == Some(StopReason::Cancelled) && active.seqs[at].out_of_time {
            event.end = Some(StopReason::Limit);
        }
        let (mut slot, mut ticket) = (None, None);
        if let Some(end) = event.end {
            self.by_seq.remove(&seq);
            (slot, ticket) = active.on_end(at, end, &stats, &mut self.batch, &mut self.slots, &self.metrics);
        } else if active.queued.job.time_limit.is_some_and(|limit| stats.generate_time > limit) {
            active.seqs[at].out_of_time = true;
            self.batch.cancel(seq);
        }
        if !active.queued.updates.is_closed() {
            let choice = active.seqs[at].choice;
            match &event.fault {
                Some(fault) => active.on_fault(fault, &mut self.batch),
                None => active.held.push_back(Ok(Update::Event { choice, event, stats, slot, ticket })),
            }
        }
        self.send_updates(id);
    }

    /// Sends progress updates to the jobs that requested them.
    fn tell_progress(&mut self) {
        let mut reported = Vec::new();
        for status in self.batch.statuses().filter(|status| status.stats.generated_tokens == 0) {
            let Some(id) = self.by_seq.get(&status.id) else { continue };
            let active = self.jobs.get_mut(id).expect("a job lives as long as its sequences");
            if !active.queued.job.progress {
                continue;
            }
            let seq = active.seqs.iter_mut().find(|seq| seq.id == status.id).expect("one of the job");
            let processed = status.n_cached.min(status.n_prompt);
            let news = seq.progress(&status.stats, processed, active.started);
            if !news.is_empty() {
                active.held.extend(news.into_iter().map(Ok));
                reported.push(*id);
            }
        }
        reported.into_iter().for_each(|id| self.send_updates(id));
    }

    /// Publishes a snapshot.
    fn publish(&self) {
        let slot = |status: sterna_engine::SequenceStatus| {
            let job = *self.by_seq.get(&status.id)?;
            let limit = self.jobs.get(&job)?.queued.job.options.max_tokens;
            Some(Slot {
                id: status.slot?,
                job: job.0,
                n_prompt: status.n_prompt,
                n_past: status.n_cached,
                n_generated: status.stats.generated_tokens,
                n_remaining: limit.map(|limit| limit.saturating_sub(status.stats.generated_tokens)),
            })
        };
        let slots = self.batch.statuses().filter_map(slot).collect();
        self.status.publish(Snapshot { stats: self.batch.stats(), slots });
    }
}

/// Tells the reader of a job that its place is taken. Returns false.
fn displaced(queued: &QueuedJob) -> bool {
    // The reader may be gone.
    let _ = queued.updates.try_send(Err(JobError::Displaced));
    false
}

/// True if the answer is complete.
fn is_answered(end: StopReason) -> bool {
    !matches!(end, StopReason::Cancelled | StopReason::Constraint | StopReason::BrokenLogits)
}

impl Seq {
    fn new(id: SeqId, choice: usize) -> Self {
        Self { id, choice, last: None, reported: None, out_of_time: false, has_ended: false }
    }

    /// Progress updates of its prompt: first the cached tokens, then the computed ones.
    fn progress(&mut self, stats: &Stats, processed: usize, started: Instant) -> Vec<Update> {
        let (total, cached) = (stats.prompt_tokens, stats.cached_tokens);
        let steps = [(cached, Duration::ZERO), (processed, started.elapsed())];
        let mut news = Vec::new();
        for (processed, time) in steps {
            if self.reported.is_none_or(|reported| reported < processed) {
                self.reported = Some(processed);
                news.push(Update::Progress { choice: self.choice, total, cached, processed, time });
            }
        }
        news
    }
}
