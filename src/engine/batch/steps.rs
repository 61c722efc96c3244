//! The batch itself: requests come in, steps run, events go out.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::budget::Budget;
use super::image_keys::{ImageKeys, keys};
use super::options::{BatchOptions, BatchStats};
use super::prefix::{Block, PageEvent, PrefixCache};
use super::task::{Request, SeqId, SequenceRows, SequenceStatus, Task};
use crate::decoder::{Decoder, Event, StopReason};
use crate::error::Error;
use crate::handle::Engine;
use crate::handle::Shared;
use crate::logprobs::LogProbs;
use crate::pages::pages_for;
use crate::pool::Pool;
use crate::runner::{Ask, PickedBy, PickedFrom, RunnerLease, RunnerSlot};
use crate::sequence::Sequence;
use crate::speculate::{RowCost, Speculator};
use crate::stats::Stats;
use crate::vision::picture::ImageError;
use sterna_host::clock::Instant;
use sterna_program::PAGE;
use sterna_program::sampling::is_broken;

/// Time that a step may wait for the masks of drafted tokens, which follow each other within the step.
const DRAFT_PATIENCE: Duration = Duration::from_millis(2);

/// Sequences that run together on one engine. The batch uses the engine exclusively: sessions are refused
/// while it lives.
pub struct Batch {
    pub(super) engine: Engine,
    pub(super) runner: RunnerLease<SharedSlot>,
    pub(super) options: BatchOptions,
    /// Sequences in scheduling order: priority, then age.
    pub(super) tasks: Vec<Task>,
    next_id: u64,
    pub(super) prefix: PrefixCache,
    image_keys: ImageKeys,
    pub(super) budget: Budget,
    pub(super) row_cost: RowCost,
    pub(super) stats: BatchStats,
    /// Counter of sequence runs, for round-robin scheduling.
    turns: u64,
    /// On a device: the queued run whose tokens have not been read yet.
    queued: Option<Run>,
    /// Sequences that ended with the last step.
    ended: Vec<(SeqId, Ended)>,
    /// Events of a step that failed later on; the next step returns them.
    events: Vec<(SeqId, Event)>,
    /// Rung by constraints that are ready.
    pub(super) bell: Bell,
}

struct Ended {
    stats: Stats,
    /// The slot that it had, if any.
    slot: Option<u32>,
    tokens: Vec<u32>,
    scores: Vec<LogProbs>,
    vector: Vec<f32>,
}

#[derive(Default)]
struct Run {
    outputs: Vec<Output>,
    prompt_rows: usize,
    decode_rows: usize,
    drafted_rows: usize,
    /// Rows of logits that were read, `[n, n_vocab]`.
    logits: Vec<f32>,
    /// Tokens sampled by the backend, one per output row, if there are drafts to verify.
    picks: Vec<(u32, PickedFrom)>,
}

struct Output {
    id: SeqId,
    row: usize,
    picked_by: PickedBy,
    /// True if the host needs the logits.
    is_read: bool,
    /// Position of the row: its logits predict the token after it.
    position: usize,
    /// True if they score the next token of a prompt; no token is sampled then.
    scores: bool,
    /// The input token of the row, if it is part of a draft verification: a drafted token is accepted only if
    /// it is the one that was sampled for its position.
    fed: Option<u32>,
    /// Number of draft rows after it.
    n_later: usize,
}

/// The runner slot of an engine; keeps the engine alive.
pub(super) struct SharedSlot(Arc<Shared>);

impl Deref for SharedSlot {
    type Target = RunnerSlot;

    fn deref(&self) -> &RunnerSlot {
        &self.0.runner_slot
    }
}

impl Engine {
    /// Creates a batch, which uses the engine exclusively until it is dropped.
    ///
    /// # Errors
    /// [`Error::InBatch`] if a batch already exists; [`Error::Sessions`] while sessions live;
    /// [`Error::Tokenizer`] if the file has no usable vocabulary; [`Error::Option`].
    pub fn batch(&self, options: BatchOptions) -> Result<Batch, Error> {
        self.tokenizer()?;
        if options.chunk == Some(0) {
            return Err(Error::Option {
                option: "BatchOptions::chunk",
                want: "at least 1".into(),
                got: "0".into(),
            });
        }
        let runner = RunnerSlot::take(SharedSlot(Arc::clone(&self.shared)))?;
        let live = self.shared.program.limits.seqs - runner.free_slots.len();
        if live > 0 {
            return Err(Error::Sessions { live });
        }
        let default = Duration::from_millis(if runner.is_device() { 25 } else { 200 });
        let mut hasher = DefaultHasher::new();
        self.form()?.hash(&mut hasher);
        Ok(Batch {
            engine: self.clone(),
            budget: Budget::new(options.step_time.unwrap_or(default)),
            row_cost: RowCost::new(runner.is_device()),
            options,
            runner: runner.keep(),
            tasks: Vec::new(),
            next_id: 0,
            prefix: PrefixCache::new(hasher.finish()),
            image_keys: ImageKeys::default(),
            stats: BatchStats::default(),
            turns: 0,
            queued: None,
            ended: Vec::new(),
            events: Vec::new(),
            bell: Bell::default(),
        })
    }
}

impl Batch {
    /// The engine that it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// True if every sequence has ended, and every event has been returned.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.events.is_empty()
    }

    /// Counters and current state of the batch.
    pub fn stats(&self) -> BatchStats {
        let count = |wanted: fn(&Task) -> bool| self.tasks.iter().filter(|task| wanted(task)).count();
        BatchStats {
            prefix: self.prefix.stats(),
            running: count(Task::is_running),
            resting: count(|task| task.is_running() && task.is_paused),
            waiting: count(|task| !task.is_running() && !task.is_paused),
            pages: self.runner.pages.n_pages(),
            free_pages: self.runner.pages.n_free(),
            states: self.runner.pages.n_states(),
            free_states: self.runner.pages.n_free_states(),
            ..self.stats
        }
    }

    /// Counters and times of a sequence that is active or ended with the last step.
    pub fn stats_of(&self, id: SeqId) -> Option<Stats> {
        let ended = || self.ended.iter().find(|(ended, _)| *ended == id).map(|(_, ended)| ended.stats);
        self.tasks.iter().find(|task| task.id == id).map(|task| task.stats).or_else(ended)
    }

    /// Takes the slot and all tokens of a sequence that ended with the last step. In the places of images are
    /// the numbers that [`forget`](Self::forget) knows them by, and no tokens.
    pub fn take_ended(&mut self, id: SeqId) -> Option<(u32, Vec<u32>)> {
        let (_, ended) = self.ended.iter_mut().find(|(ended, _)| *ended == id)?;
        Some((ended.slot?, std::mem::take(&mut ended.tokens)))
    }

    /// The status of each active sequence, in scheduling order.
    pub fn statuses(&self) -> impl Iterator<Item = SequenceStatus> {
        self.tasks.iter().map(|task| SequenceStatus {
            id: task.id,
            slot: task.seq.slot,
            n_prompt: task.n_prompt,
            n_cached: task.seq.cached,
            stats: task.stats,
        })
    }

    /// Takes the scores of a sequence's prompt. The first token has no score, because nothing precedes it.
    /// Empty unless [`Request::score_prompt`] asked for them.
    pub fn take_scores(&mut self, id: SeqId) -> Vec<LogProbs> {
        let ended = self.ended.iter_mut().find(|(ended, _)| *ended == id).map(|(_, ended)| &mut ended.scores);
        let task = self.tasks.iter_mut().find(|task| task.id == id).map(|task| &mut task.scores);
        task.or(ended).map(std::mem::take).unwrap_or_default()
    }

    /// Takes the embedding or the scores of a text that ended with the last step: pooled as
    /// [`Engine::pooling`](crate::Engine::pooling) specifies, not [normalised](crate::normalise). `None` for
    /// a sequence that requested none, or failed.
    pub fn take_vector(&mut self, id: SeqId) -> Option<Vec<f32>> {
        let (_, ended) = self.ended.iter_mut().find(|(ended, _)| *ended == id)?;
        Some(std::mem::take(&mut ended.vector)).filter(|vector| !vector.is_empty())
    }

    /// The sampling seed of an active sequence.
    pub fn seed_of(&self, id: SeqId) -> Option<u64> {
        self.tasks.iter().find(|task| task.id == id).map(|task| task.seq.sampler.seed())
    }

    /// Adds the sequences of a request after those of the same priority; they run in the next steps. Returns
    /// their ids.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::Token`], [`Error::Sampler`]; [`Error::ContextFull`] and
    /// [`Error::NeverFits`] for a prompt that could never run here; [`Error::Option`] if `n` is 0; as
    /// [`Speculation::start`](crate::Speculation::start).
    pub fn add(&mut self, request: &Request) -> Result<Vec<SeqId>, Error> {
        let Request {
            prompt,
            options,
            n,
            priority,
            salt,
            cache_prompt,
            score_prompt,
            pooled,
            adapters,
            images,
        } = request;
        let adapters = match adapters {
            Some(chosen) => self.engine.chosen_adapters(chosen)?,
            None => self.engine.default_adapters(),
        };
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        match pooled {
            None => self.engine.check_generates()?,
            Some(_) if *n != 1 => {
                let (want, got) = ("1 for a vector".into(), n.to_string());
                return Err(Error::Option { option: "Request::n", want, got });
            }
            Some(_) => {}
        }
        if *n == 0 {
            return Err(Error::Option { option: "Request::n", want: "at least 1".into(), got: "0".into() });
        }
        self.engine.check_tokens(prompt)?;
        let n_ctx = self.engine.n_ctx();
        if prompt.len() > n_ctx {
            return Err(Error::ContextFull { n_ctx, used: 0, more: prompt.len() });
        }
        let (need, pages) = (pages_for(prompt.len()), self.runner.pages.n_pages());
        if need > pages {
            return Err(Error::NeverFits { tokens: prompt.len(), need, pages });
        }
        if !images.is_empty() && (pooled.is_some() || score_prompt.is_some()) {
            return Err(ImageError::Unsupported.into());
        }
        let others = self.engine.shared.program.limits.seqs - 1;
        images.iter().try_for_each(|image| self.engine.check_image(image.rows(), others))?;
        let image_keys: Option<Vec<u32>> =
            images.iter().map(|image| self.image_keys.of(image.rows())).collect();
        let mut options = options.clone();
        let seed = options.sampler.seed;
        let mut ids = Vec::with_capacity(*n);
        for i in 0..*n {
            options.sampler.seed = seed.map(|seed| seed.wrapping_add(i as u64));
            let mut seq = Sequence::new(options.sampler(self.engine.tokenizer()?, prompt.len())?);
            seq.tokens.clone_from(prompt);
            seq.adapters = Arc::clone(&adapters);
            // A model with one token type distinguishes the two texts only by their separators.
            let has_types = self.engine.shared.program.token_types() > 1;
            seq.second = pooled.and_then(|pooled| pooled.second).filter(|_| has_types).map(|at| at as u32);
            seq.images.clone_from(images);
            let text: Vec<u32> = seq.text().collect();
            text.into_iter().for_each(|token| seq.sampler.accept(token));
            let speculation = options.speculation.as_deref().filter(|_| self.engine.shared.drafts > 0);
            let speculator = speculation.map(Speculator::start).transpose()?;
            let id = SeqId(self.next_id);
            self.next_id += 1;
            let task = Task {
                id,
                seq,
                decoder: Decoder::new(self.engine.tokenizer()?, prompt, &options),
                options: options.clone(),
                speculator,
                priority: *priority,
                salt: self.engine.salt_with(&adapters, salt),
                cache_prompt: *cache_prompt
                    && image_keys.is_some()
                    && self.options.prefix_cache
                    && score_prompt.is_none()
                    && pooled.is_none(),
                n_prompt: prompt.len(),
                score_prompt: score_prompt.filter(|_| ids.is_empty()),
                pool: pooled.map(|_| Pool::default()),
                scores: Vec::new(),
                image_keys: image_keys.clone().unwrap_or_default(),
                nodes: Vec::new(),
                fork_of: ids.first().copied(),
                host_picks: false,
                late: None,
                turn: 0,
                is_cancelled: false,
                is_paused: false,
                swapped_out: None,
                stats: Stats { prompt_tokens: prompt.len(), ..Stats::default() },
                added: Instant::now(),
                first: None,
            };
            let at = self.tasks.partition_point(|other| other.is_scheduled_before(&task));
            self.tasks.insert(at, task);
            ids.push(id);
        }
        Ok(ids)
    }

    /// Cancels a sequence; the next step ends it and returns its last event. Does nothing if it has ended.
    pub fn cancel(&mut self, id: SeqId) {
        if let Some(task) = self.tasks.iter_mut().find(|task| task.id == id) {
            task.is_cancelled = true;
        }
    }

    /// Ends the cancelled sequences, as the next step would, and returns their last events. Frees their pages
    /// without a step.
    pub fn end_cancelled(&mut self) -> Vec<(SeqId, Event)> {
        let mut events = Vec::new();
        self.sweep(&mut events);
        self.prefix.tell_changes(&self.runner.pages);
        events
    }

    /// Pauses or resumes a sequence. A paused one runs nothing, and keeps its slot and pages until another
    /// sequence needs them. On a device, a token that is being sampled is still returned.
    pub fn pause(&mut self, id: SeqId, is_paused: bool) {
        if let Some(task) = self.tasks.iter_mut().find(|task| task.id == id) {
            task.is_paused = is_paused;
        }
    }

    /// Runs one step, and returns an event for each sampled token and for each sequence that ended. An
    /// accepted draft gives several events for one sequence. On a device the events are those of the previous
    /// run, whose tokens are inputs of this one. A sequence whose mask is not ready does not run; if no other
    /// can, the step waits for the first mask, at most 20 ms.
    ///
    /// # Errors
    /// [`Error::Backend`]: no sequence has lost a token then, and the next step tries again and also returns
    /// the events of this one.
    pub fn step(&mut self) -> Result<Vec<(SeqId, Event)>, Error> {
        let mut events = std::mem::take(&mut self.events);
        let is_told = |(id, _): &(SeqId, Ended)| events.iter().all(|(other, _)| other != id);
        self.ended.retain(|ended| !is_told(ended));
        let advanced = self.advance(&mut events);
        self.prefix.tell_changes(&self.runner.pages);
        match advanced {
            Ok(()) => Ok(events),
            Err(err) => {
                self.events = events;
                Err(err)
            }
        }
    }

    /// Runs steps until every sequence has ended, and passes each event to `each`.
    ///
    /// # Errors
    /// As [`step`](Self::step), and any error of `each`.
    pub fn run<E: From<Error>>(
        &mut self,
        mut each: impl FnMut(SeqId, Event) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.is_idle() {
            self.step()?.into_iter().try_for_each(|(id, event)| each(id, event))?;
        }
        Ok(())
    }

    fn advance(&mut self, events: &mut Vec<(SeqId, Event)>) -> Result<(), Error> {
        self.sweep(events);
        self.pick_late(events)?;
        let begun = Instant::now();
        // A draft has to be verified before the next one is made.
        if let Some(run) = self.queued.take_if(|run| run.drafted_rows > 0) {
            self.collect(run, events, begun)?;
        }
        self.keep_logits()?;
        self.admit()?;
        let parts = self.plan(events)?;
        let next = self.queue(&parts)?;
        self.end_pooled(events)?;
        let due = match self.runner.is_device() {
            true => std::mem::replace(&mut self.queued, next),
            false => next,
        };
        match due {
            Some(run) => self.collect(run, events, begun),
            None if self.queued.is_none() => self.wait_for_mask(events),
            None => Ok(()),
        }
    }

    /// Queues a run of `parts`; `None` if `parts` is empty.
    fn queue(&mut self, parts: &[SequenceRows]) -> Result<Option<Run>, Error> {
        if parts.is_empty() {
            return Ok(None);
        }
        self.runner.begin();
        let mut run = Run::default();
        for part in parts {
            let task = &self.tasks[part.task];
            if let Some(row) = self.runner.push(&task.seq, part.n, part.ask) {
                let picked_by = self.runner.picked_by(&task.seq);
                let is_read = picked_by == PickedBy::Host || task.options.logprobs.is_some();
                let (id, first) = (task.id, task.seq.cached);
                let n_drafted = task.seq.draft.len();
                run.drafted_rows += n_drafted;
                match part.ask {
                    Ask::All => run.outputs.extend((0..part.n).map(|i| {
                        let (row, position) = (row + 1 + i - part.n, first + i);
                        let (is_read, scores) = (true, true);
                        let (picked_by, fed, n_later) = (PickedBy::Host, None, 0);
                        Output { id, row, picked_by, is_read, position, scores, fed, n_later }
                    })),
                    _ => run.outputs.extend((0..=n_drafted).rev().map(|n_later| {
                        let (row, position) = (row - n_later, first + part.n - 1 - n_later);
                        let fed = task.seq.token(position).filter(|_| part.ask == Ask::Verify);
                        Output { id, row, picked_by, is_read, position, scores: false, fed, n_later }
                    })),
                }
            }
            let rows = if part.is_prompt { &mut run.prompt_rows } else { &mut run.decode_rows };
            *rows += part.n - task.seq.draft.len();
        }
        if let Err(err) = self.runner.run().and_then(|()| self.pool_rows(parts)) {
            parts.iter().for_each(|part| self.run_again(part.task, None));
            return Err(err);
        }
        self.stats.steps += 1;
        self.stats.prompt_rows += run.prompt_rows as u64;
        self.stats.decode_rows += run.decode_rows as u64;
        self.stats.drafted_tokens += run.drafted_rows as u64;
        for part in parts {
            let task = &mut self.tasks[part.task];
            let had_prompt = task.has_prompt();
            self.turns += 1;
            task.turn = self.turns;
            task.host_picks = part.ask == Ask::Pick && self.runner.picked_by(&task.seq) == PickedBy::Host;
            if !part.is_prompt {
                task.stats.generate_bytes += self.engine.decode_cost(task.seq.cached).bytes();
            }
            if part.ask == Ask::Verify {
                self.stats.drafts += 1;
                task.stats.drafts += 1;
                task.stats.drafted_tokens += task.seq.draft.len();
            }
            self.runner.ran(&mut task.seq, part.n, part.ask);
            let is_end = !had_prompt && task.has_prompt();
            self.keep_pages(part.task, is_end);
        }
        Ok(Some(run))
    }

    /// Reads the rows of a run that are needed for pooling.
    fn pool_rows(&mut self, parts: &[SequenceRows]) -> Result<(), Error> {
        let (pooler, dim) = (&self.engine.shared.pooler, self.engine.hyper().dim);
        let mut of_parts = Vec::new();
        let mut first = 0;
        for part in parts {
            let task = &self.tasks[part.task];
            if part.ask == Ask::Rows {
                let cached = task.seq.cached;
                let wanted = pooler.wanted(cached..cached + part.n, task.n_prompt);
                let mut rows = vec![0.0; wanted.len() * dim];
                if !wanted.is_empty() {
                    self.runner.stream(first + wanted.start - cached, &mut rows)?;
                }
                of_parts.push((part.task, cached, rows));
            }
            first += part.n;
        }
        for (task, cached, rows) in of_parts {
            let pool = self.tasks[task].pool.as_mut().expect("its rows were requested");
            if cached == 0 {
                *pool = Pool::default();
            }
            pooler.add(pool, &rows);
        }
        Ok(())
    }

    /// Ends the sequences whose embeddings are complete.
    fn end_pooled(&mut self, events: &mut Vec<(SeqId, Event)>) -> Result<(), Error> {
        while let Some(at) = self.tasks.iter().position(|task| task.pool.is_some() && task.has_prompt()) {
            let task = &mut self.tasks[at];
            let vector = self.engine.shared.pooler.finish(task.pool.take().expect("checked above"));
            if !vector.iter().all(|x| x.is_finite()) {
                let last = task.n_prompt - 1;
                self.break_off(at, last, events)?;
                continue;
            }
            let id = task.id;
            events.push((id, task.decoder.finish(StopReason::Limit)));
            task.stats.prompt_time = task.added.elapsed();
            self.end(at);
            self.ended.iter_mut().filter(|(ended, _)| *ended == id).for_each(|(_, ended)| {
                ended.vector.clone_from(&vector);
            });
        }
        Ok(())
    }

    /// Reads the logits of a run that the host needs, and the sampled tokens that drafts are verified
    /// against.
    fn read_logits(&mut self, run: &mut Run) -> Result<(), Error> {
        let n_vocab = self.engine.hyper().n_vocab;
        let verifies = |output: &Output| output.fed.is_some() && output.picked_by == PickedBy::Device;
        if let Some(last) = run.outputs.iter().rfind(|output| verifies(output)) {
            run.picks = self.runner.picks(last.row + 1)?;
        }
        let wanted = run.outputs.iter().filter(|output| output.is_read).count();
        if run.logits.len() == wanted * n_vocab {
            return Ok(());
        }
        run.logits.resize(wanted * n_vocab, 0.0);
        let read = run.outputs.iter().filter(|output| output.is_read);
        let mut rows = read.zip(run.logits.chunks_exact_mut(n_vocab));
        let copied = rows.try_for_each(|(output, logits)| self.runner.logits(output.row, logits));
        if copied.is_err() {
            run.logits.clear();
        }
        copied
    }

    /// Processes the tokens of a run; the step started at `begun`. After an error its sequences sample again.
    fn collect(
        &mut self,
        mut run: Run,
        events: &mut Vec<(SeqId, Event)>,
        begun: Instant,
    ) -> Result<(), Error> {
        let collected = self.read_logits(&mut run).and_then(|()| self.take_all(&mut run, events));
        if collected.is_ok() {
            self.finish_drafts(&run);
            let time = begun.elapsed();
            self.budget.add(run.prompt_rows, run.decode_rows > 0, time);
            if run.prompt_rows == 0 {
                self.row_cost.add(run.drafted_rows, time);
            }
        } else {
            for output in &run.outputs {
                let at = self.tasks.iter().position(|task| task.id == output.id);
                let scored = output.scores.then_some(output.position);
                at.into_iter().for_each(|at| self.run_again(at, scored));
            }
        }
        collected
    }

    /// Completes the drafts that a run has verified.
    fn finish_drafts(&mut self, run: &Run) {
        for output in run.outputs.iter().filter(|output| output.fed.is_some()) {
            let task = self.tasks.iter_mut().find(|task| task.id == output.id);
            // The first row of a sequence completes its draft.
            let Some(task) = task.filter(|task| !task.seq.draft.is_empty()) else { continue };
            let (n_drafted, n_tokens) = (task.seq.draft.len(), task.seq.tokens.len());
            if let (Some(speculator), None) = (&mut task.speculator, &task.late) {
                speculator.verified(n_drafted, n_tokens - 2 - output.position);
            }
            self.runner.finish_draft(&mut task.seq);
        }
    }

    /// Discards the queued work of a sequence, so that its last token runs again and the next one is sampled
    /// again, or its prompt is scored again from position `scores`.
    fn run_again(&mut self, at: usize, scores: Option<usize>) {
        let task = &mut self.tasks[at];
        task.forget_logits();
        task.seq.discard_queued();
        task.seq.cached = task.seq.cached.min(scores.unwrap_or(task.seq.tokens.len() - 1));
        self.runner.trim(&mut task.seq);
        task.nodes.truncate(task.seq.cached / PAGE);
    }

    fn take_all(&mut self, run: &mut Run, events: &mut Vec<(SeqId, Event)>) -> Result<(), Error> {
        let mut rows = run.logits.chunks_exact_mut(self.engine.hyper().n_vocab);
        let patience = Instant::now() + DRAFT_PATIENCE;
        for output in &run.outputs {
            let mut logits = if output.is_read { rows.next() } else { None };
            // A sequence that has ended or lost its pages meanwhile does not need the token; its next run
            // samples it again.
            let Some(at) = self.tasks.iter().position(|task| task.id == output.id) else { continue };
            // Two runs may therefore have the same position: only one of them yields a token.
            if !output.scores && output.position + 1 != self.tasks[at].seq.tokens.len() {
                continue;
            }
            if let Some(fed) = output.fed {
                let task = &mut self.tasks[at];
                // The row follows a rejected draft token, or its run has to be repeated.
                if task.seq.draft.is_empty() || task.seq.tokens[output.position] != fed {
                    continue;
                }
                if output.position >= task.seq.cached {
                    self.runner.row_holds(&mut task.seq, output.n_later == 0);
                    let at = task.seq.draft.len() - 1 - output.n_later;
                    for stats in [&mut task.stats.accepted_at, &mut self.stats.accepted_at] {
                        stats.add(at);
                    }
                    task.stats.accepted_tokens += 1;
                    self.stats.accepted_tokens += 1;
                }
            }
            if logits.as_deref().is_some_and(is_broken) {
                self.break_off(at, output.position, events)?;
                continue;
            }
            let task = &mut self.tasks[at];
            if let (true, Some(logits)) = (output.scores, &logits) {
                task.score(output.position, logits);
                continue;
            }
            let is_queued = output.fed.is_some() || !task.seq.queued.is_empty();
            if !task.is_running() || output.picked_by == PickedBy::Device && !is_queued {
                continue;
            }
            if let (PickedBy::Host, Some(logits)) = (output.picked_by, &mut logits) {
                self.pick(at, logits, output.fed.map(|_| patience), events)?;
                continue;
            }
            let picked = match output.fed {
                Some(_) => run.picks[output.row],
                None => self.runner.collect(&mut task.seq)?,
            };
            let token = match picked {
                (token, PickedFrom::Numbers) => token,
                (token, from) => {
                    let position = output.position;
                    if from == PickedFrom::Broken || self.is_broken_again(at, position)? {
                        self.break_off(at, position, events)?;
                        continue;
                    }
                    token
                }
            };
            self.picked(at, token, logits.as_deref(), events)?;
        }
        Ok(())
    }

    /// Handles the token that was picked from `logits`, if these are known.
    pub(super) fn picked(
        &mut self,
        at: usize,
        token: u32,
        logits: Option<&[f32]>,
        events: &mut Vec<(SeqId, Event)>,
    ) -> Result<(), Error> {
        let task = &mut self.tasks[at];
        task.seq.picked = None;
        let (id, n_top) = (task.id, task.options.logprobs);
        let logprobs = logits.zip(n_top).map(|(logits, n)| LogProbs::of(logits, token, n));
        let event = self.take(at, token, logprobs)?;
        let has_ended = event.end.is_some();
        events.push((id, event));
        if has_ended {
            self.end(at);
        }
        Ok(())
    }

    /// Reads the logits of the queued run before another run overwrites them.
    pub(super) fn keep_logits(&mut self) -> Result<(), Error> {
        let Some(mut run) = self.queued.take() else { return Ok(()) };
        let read = self.read_logits(&mut run);
        self.queued = Some(run);
        read
    }

    fn take(&mut self, at: usize, token: u32, logprobs: Option<LogProbs>) -> Result<Event, Error> {
        let task = &mut self.tasks[at];
        task.seq.tokens.push(token);
        task.seq.sampler.accept(token);
        let stats = &mut task.stats;
        stats.generated_tokens += 1;
        match task.first {
            None => {
                task.first = Some(Instant::now());
                stats.prompt_time = task.added.elapsed();
            }
            Some(first) => stats.generate_time = first.elapsed(),
        }
        let mut event = task.decoder.push(self.engine.tokenizer()?, token, logprobs);
        if task.seq.sampler.is_done() {
            task.decoder.complete(&mut event);
        }
        // The token has no position.
        if event.end.is_none() && task.seq.tokens.len() > self.engine.n_ctx() {
            let last = task.decoder.finish(StopReason::ContextFull);
            (event.text, event.end) = (event.text + &last.text, last.end);
        }
        self.keep_pages(at, false);
        Ok(event)
    }

    /// Adds the full pages of a sequence to the prefix cache, with a checkpoint at the end of a prompt or a
    /// generation.
    pub(super) fn keep_pages(&mut self, at: usize, is_end: bool) {
        let task = &mut self.tasks[at];
        let Some(slot) = task.seq.slot.filter(|_| task.cache_prompt) else { return };
        let known = task.seq.tokens.len().min(task.seq.cached);
        if known / PAGE > task.nodes.len() {
            let keys = keys(&task.seq, &task.image_keys);
            let blocks: &[Block] = keys[..known].as_chunks().0;
            for (i, block) in blocks.iter().enumerate().skip(task.nodes.len()) {
                let parent = task.nodes.last().copied();
                let node = self.prefix.insert(&mut self.runner.pages, slot, i, parent, &task.salt, block);
                task.nodes.push(node);
            }
        }
        if is_end || self.runner.pages.is_at_kept(slot) {
            self.prefix.checkpoint(&mut self.runner.pages, slot, &task.nodes);
        }
    }

    /// True if the logits after position `row` of a sequence, computed once more, contain NaN or infinity.
    fn is_broken_again(&mut self, at: usize, row: usize) -> Result<bool, Error> {
        self.keep_logits()?;
        self.runner.is_broken_again(&self.engine.shared.program, &self.tasks[at].seq, row)
    }

    /// Ends a sequence whose logits after position `row` are broken. Drops its pages from the prefix cache.
    fn break_off(&mut self, at: usize, row: usize, events: &mut Vec<(SeqId, Event)>) -> Result<(), Error> {
        self.keep_logits()?;
        let task = &mut self.tasks[at];
        let fault = self.runner.broken(&self.engine.shared.program, &task.seq, row);
        events.push((task.id, task.decoder.fail(fault.into())));
        task.cache_prompt = false;
        let nodes = std::mem::take(&mut task.nodes);
        self.end(at);
        self.prefix.forget(&mut self.runner.pages, &nodes);
        Ok(())
    }

    pub(super) fn end(&mut self, at: usize) {
        self.keep_pages(at, true);
        let mut task = self.tasks.remove(at);
        let slot = task.seq.slot;
        self.runner.release(&mut task.seq);
        let (stats, scores) = (task.stats, task.scores);
        let keys = match keys(&task.seq, &task.image_keys) {
            Cow::Borrowed(_) => None,
            Cow::Owned(keys) => Some(keys),
        };
        let tokens = keys.unwrap_or(task.seq.tokens);
        self.ended.push((task.id, Ended { stats, slot, tokens, scores, vector: Vec::new() }));
        self.tasks
            .iter_mut()
            .filter(|other| other.fork_of == Some(task.id))
            .for_each(|other| other.fork_of = None);
    }

    fn sweep(&mut self, events: &mut Vec<(SeqId, Event)>) {
        for at in (0..self.tasks.len()).rev() {
            let task = &mut self.tasks[at];
            let reason = match (task.is_cancelled || task.options.is_cancelled(), task.decoder.remaining()) {
                (true, _) => StopReason::Cancelled,
                (false, 0) => StopReason::Limit,
                (false, _) => continue,
            };
            events.push((task.id, task.decoder.finish(reason)));
            self.end(at);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        while !self.tasks.is_empty() {
            self.end(self.tasks.len() - 1);
        }
        if let Some(mut listener) = self.prefix.listener.take() {
            listener(PageEvent::Cleared);
        }
        self.prefix.clear(&mut self.runner.pages);
        debug_assert!(self.runner.pages.is_whole() || std::thread::panicking(), "pages are still in use");
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("engine", &self.engine)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
