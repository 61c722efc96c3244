//! Rows of a step, and preemption when pages run out.

use std::cmp::Reverse;

use super::image_keys::keys;
use super::steps::Batch;
use super::task::{SeqId, SequenceRows, Task};
use crate::decoder::{Event, StopReason};
use crate::error::Error;
use crate::mtp::Chain;
use crate::pages::{PageKind, pages_for};
use crate::runner::Ask;
use sterna_program::PAGE;

/// Maximum number of prompts that share a step.
const PROMPTS: usize = 2;

/// Result of an attempt to grow.
enum Grown {
    /// The sequence has pages for its rows up to this position.
    To(usize),
    /// It must wait for others.
    Waits,
    /// It is the only sequence with pages, and there are still too few.
    Alone,
}

struct StepPlan {
    /// Rows that are left.
    rows: usize,
    /// Output rows that are left.
    outputs: usize,
    parts: Vec<SequenceRows>,
    /// Sequences that can never grow.
    ended: Vec<SeqId>,
}

impl Batch {
    /// Gives slots and pages to waiting sequences, in order, until they run out: no sequence overtakes an
    /// earlier one.
    pub(super) fn admit(&mut self) -> Result<(), Error> {
        loop {
            let waits = |at: &usize| {
                let task = &self.tasks[*at];
                !task.is_running() && !task.is_paused && task.late.is_none() && !self.waits_for_fork(*at)
            };
            let Some(at) = (0..self.tasks.len()).find(waits) else { return Ok(()) };
            if self.fork(at)? {
                continue;
            }
            if !self.admit_one(at)? && !self.make_way(at) {
                return Ok(());
            }
        }
    }

    /// True if the sequence is a fork of a prompt that is still being computed.
    fn waits_for_fork(&self, at: usize) -> bool {
        let source = self.tasks[at].fork_of.and_then(|id| self.tasks.iter().find(|task| task.id == id));
        source.is_some_and(|source| !source.has_prompt())
    }

    /// Forks a sequence from another one's prompt. `false` if that is impossible, now or at all.
    fn fork(&mut self, at: usize) -> Result<bool, Error> {
        let Some(id) = self.tasks[at].fork_of else { return Ok(false) };
        let source = self.tasks.iter().position(|task| task.id == id);
        let Some(source) = source.filter(|_| !self.runner.free_slots.is_empty()) else { return Ok(false) };
        // The last token is recomputed for its logits.
        let positions = self.tasks[at].n_prompt - 1;
        let slot = self.tasks[source].seq.slot.expect("it has its prompt");
        if !self.runner.pages.can_fork(slot, positions) || self.tasks[at].seq.tokens.len() > positions + 1 {
            self.tasks[at].fork_of = None;
            return Ok(false);
        }
        let [task, source] = self.tasks.get_disjoint_mut([at, source]).expect("two tasks");
        task.fork_of = None;
        task.seq.slot = self.runner.free_slots.pop();
        let tokens = std::mem::take(&mut task.seq.tokens);
        let forked = self.runner.fork(&source.seq, &mut task.seq, positions);
        task.seq.tokens = tokens;
        task.nodes = source.nodes[..source.nodes.len().min(task.seq.cached / PAGE)].to_vec();
        task.stats.cached_tokens = task.seq.cached;
        forked.map(|()| true)
    }

    fn admit_one(&mut self, at: usize) -> Result<bool, Error> {
        let n_running = self.tasks.iter().filter(|task| task.is_running()).count();
        let Some(&slot) = self.runner.free_slots.last() else { return Ok(false) };
        let task = &mut self.tasks[at];
        let pages = &mut self.runner.pages;
        let mut chain = match task.cache_prompt {
            true => self.prefix.find(pages, &task.salt, &keys(&task.seq, &task.image_keys)),
            false => Vec::new(),
        };
        let is_swapped_out = self.is_swapped_out(at, &chain);
        if is_swapped_out {
            chain.clear();
        }
        let (task, pages) = (&mut self.tasks[at], &mut self.runner.pages);
        let need = pages_for(task.seq.tokens.len()) - chain.len();
        // Each running sequence will need another page soon; without any, one page less is no reason to wait.
        let lacking = (need + n_running).saturating_sub(pages.n_free());
        if n_running > 0 && !self.prefix.can_spare(pages, &chain, lacking) {
            return Ok(false);
        }
        if is_swapped_out && self.swap_in(at, slot)? {
            self.runner.free_slots.pop();
            self.tasks[at].seq.slot = Some(slot);
            return Ok(true);
        }
        let (task, pages) = (&mut self.tasks[at], &mut self.runner.pages);
        task.swapped_out = None;
        if task.cache_prompt {
            self.prefix.count(task.seq.tokens.len(), &chain);
        }
        self.prefix.share(pages, slot, &chain);
        self.runner.free_slots.pop();
        task.seq.slot = Some(slot);
        task.seq.cached = chain.len() * PAGE;
        if task.stats.generated_tokens == 0 {
            task.stats.cached_tokens = task.seq.cached;
        }
        task.nodes = chain;
        Ok(true)
    }

    /// Preempts the newest paused sequence, or else the newest one with a lower priority than `at`.
    fn make_way(&mut self, at: usize) -> bool {
        let priority = self.tasks[at].priority;
        let paused = |other: &usize| self.tasks[*other].is_running() && self.tasks[*other].is_paused;
        let lower = |other: &usize| self.tasks[*other].is_running() && self.tasks[*other].priority < priority;
        let newest = || (0..self.tasks.len()).rev();
        let Some(victim) = newest().find(paused).or_else(|| newest().find(lower)) else { return false };
        self.preempt(victim);
        true
    }

    /// Takes the slot and pages of a sequence away; it waits, and pages that do not fit on the host are
    /// recomputed later.
    fn preempt(&mut self, at: usize) {
        self.keep_pages(at, true);
        self.swap_out(at);
        let task = &mut self.tasks[at];
        self.runner.release(&mut task.seq);
        task.nodes.clear();
        task.forget_logits();
        self.stats.preemptions += 1;
    }

    /// Plans the rows of the next step and allocates their pages: decoding sequences first, then prompts.
    ///
    /// # Errors
    /// As [`Drafter::draft`](crate::Drafter::draft).
    pub(super) fn plan(&mut self, events: &mut Vec<(SeqId, Event)>) -> Result<Vec<SequenceRows>, Error> {
        let limits = self.engine.shared.program.limits;
        let mut step =
            StepPlan { rows: limits.rows, outputs: limits.outputs, parts: Vec::new(), ended: Vec::new() };
        // If a step has too few rows for all, sequences that ran longest ago go first.
        let is_prompt = |at: &usize| self.tasks[*at].prefills();
        let decode = !self.options.prompts_first || !(0..self.tasks.len()).any(|at| is_prompt(&at));
        let decodes = |at: &usize| decode && self.tasks[*at].decodes();
        let mut order: Vec<usize> = (0..self.tasks.len()).filter(decodes).collect();
        order.sort_by_key(|&at| (Reverse(self.tasks[at].priority), self.tasks[at].turn, self.tasks[at].id));
        let (cost, n_seqs) = (&self.row_cost, order.len());
        let mut waits = |at: usize| {
            let Task { seq, speculator, .. } = &mut self.tasks[at];
            // Its token is still being computed: drafting after it may be worth more than running ahead.
            seq.missing() == 0 && speculator.as_mut().is_some_and(|own| own.waits(&seq.tokens, cost, n_seqs))
        };
        order.retain(|&at| !waits(at));
        for at in order {
            self.add_rows(at, 1 + self.tasks[at].seq.again, &mut step);
        }
        self.add_drafts(&mut step)?;
        step.rows = step.rows.min(self.options.chunk.unwrap_or(step.rows));
        let mut left = step.rows;
        if !step.parts.is_empty() {
            step.rows = step.rows.min(self.budget.rows());
            left = step.rows.min(self.budget.pooled_rows());
        }
        let is_prompt = |at: &usize| self.tasks[*at].prefills();
        let prompts = (0..self.tasks.len()).filter(is_prompt);
        let (pooled, mut prompts): (Vec<usize>, Vec<usize>) =
            prompts.partition(|at| self.tasks[*at].pool.is_some());
        prompts.truncate(PROMPTS);
        if !prompts.is_empty() {
            left = left.min(step.rows / 2);
        }
        for at in pooled {
            let rows = step.rows;
            self.add_rows(at, left, &mut step);
            left = left.saturating_sub(rows - step.rows);
        }
        for (i, &at) in prompts.iter().enumerate() {
            let share = step.rows.div_ceil(prompts.len() - i);
            self.add_rows(at, share, &mut step);
        }
        // A sequence only ends this way if it is alone, and then nothing else was planned.
        for id in step.ended {
            if let Some(at) = self.tasks.iter().position(|task| task.id == id) {
                events.push((id, self.tasks[at].decoder.finish(StopReason::ContextFull)));
                self.end(at);
            }
        }
        Ok(step.parts)
    }

    /// Adds drafts to decoding sequences: as many tokens as pay off, within the free rows and free pages.
    fn add_drafts(&mut self, step: &mut StepPlan) -> Result<(), Error> {
        let (n_seqs, n_ctx) = (step.parts.len(), self.engine.n_ctx());
        let mut left = self.engine.shared.drafts.min(step.rows).min(step.outputs);
        let (mut by_block, mut chains) = (Vec::new(), Vec::new());
        for i in 0..n_seqs {
            let part = step.parts[i];
            let Task { speculator: Some(speculator), seq, decoder, .. } = &mut self.tasks[part.task] else {
                continue;
            };
            // The token after a row that runs ahead is not known yet.
            if part.ask != Ask::Pick || seq.missing() != part.n {
                continue;
            }
            let share = left.div_ceil(n_seqs - i).min(n_ctx - seq.tokens.len()).min(decoder.remaining() - 1);
            let room = self.runner.draft_room(seq, share);
            if let Some(mtp) = speculator.mtp {
                // All sequences draft together.
                let most = speculator.wanted(room, &self.row_cost, n_seqs);
                let slot = seq.slot.expect("it runs");
                if most > 0 && self.runner.pages.grow(slot, seq.tokens.len() + most) {
                    by_block.push(i);
                    chains.push(Chain::after(seq, most, mtp));
                    left -= most;
                }
                continue;
            }
            if let Err(err) = speculator.draft(&seq.tokens, room, &self.row_cost, n_seqs, &mut seq.draft) {
                self.tasks.iter_mut().for_each(|task| task.seq.draft.clear());
                return Err(err);
            }
            left -= self.add_draft(i, step);
        }
        let drafted = self.runner.draft(&mut chains);
        if let Err(err) = drafted {
            self.tasks.iter_mut().for_each(|task| task.seq.draft.clear());
            return Err(err);
        }
        for (i, chain) in by_block.into_iter().zip(chains) {
            let task = &mut self.tasks[step.parts[i].task];
            task.seq.draft = chain.into_tokens();
            let n = task.seq.draft.len();
            task.speculator.iter_mut().for_each(|speculator| speculator.drafted(n));
            self.add_draft(i, step);
        }
        Ok(())
    }

    /// Adds the drafted rows of a sequence to its part of the step, and returns their number. Drops the draft
    /// if there is no page or no state for it.
    fn add_draft(&mut self, part: usize, step: &mut StepPlan) -> usize {
        let part = &mut step.parts[part];
        let seq = &mut self.tasks[part.task].seq;
        let (n, slot) = (seq.draft.len(), seq.slot.expect("it runs"));
        let mut is_ready = n > 0 && self.runner.pages.grow(slot, seq.tokens.len() + n);
        if is_ready {
            is_ready = self.runner.keep_states(seq);
            // The prefix cache may hold the slot that the sequence has for drafts.
            while !is_ready && self.prefix.evict(&mut self.runner.pages, PageKind::State) {
                is_ready = self.runner.keep_states(seq);
            }
        }
        if !is_ready {
            seq.draft.clear();
            return 0;
        }
        (part.n, part.ask) = (part.n + n, Ask::Verify);
        (step.rows, step.outputs) = (step.rows - n, step.outputs - n);
        n
    }

    /// Adds up to `most` of the missing rows of a sequence to the step, as far as there are pages for them.
    fn add_rows(&mut self, at: usize, most: usize, step: &mut StepPlan) {
        let task = &self.tasks[at];
        if !task.is_running() || !self.has_next(at) {
            return;
        }
        let (cached, missing, is_scored) = (task.seq.cached, task.seq.missing(), task.is_scored());
        let is_pooled = task.pool.is_some();
        let is_prompt = missing > 1 + task.seq.again || task.stats.generated_tokens == 0;
        // A token that is still being sampled takes a row, too.
        let left = missing.max(1);
        let n = most.min(step.rows).min(match is_scored {
            // The last row samples a token, in a step of its own.
            true => step.outputs.min(task.n_prompt - 1 - cached),
            // Without an output row, the last token waits for the next step.
            false if step.outputs == 0 && !is_pooled => left - 1,
            false => left,
        });
        let sees_images = self.engine.shared.program.sees_whole_images();
        let n = if sees_images {
            let used: usize = step.parts.iter().map(|part| part.n).sum();
            // Beyond the share of a prompt, if the step has room for the image.
            task.seq.whole_rows(n, self.engine.max_rows() - used)
        } else {
            n
        };
        let is_whole = is_pooled && self.engine.shared.pooler.sees_ahead();
        // An image at the end needs a row of logits, too.
        let lacks_output = step.outputs == 0 && n == left && !is_pooled;
        if n == 0 || is_whole && n < left || lacks_output {
            return;
        }
        let n = self.runner.pages.rows_up_to_kept(cached, task.seq.tokens.len(), n);
        match self.grow(at, cached + n, &step.parts) {
            Grown::To(positions) => {
                let mut n = positions - cached;
                if sees_images {
                    n = self.tasks[at].seq.whole_rows(n, n);
                    if n == 0 {
                        return;
                    }
                }
                if is_whole && n < left {
                    return;
                }
                let (ask, outputs) = match is_scored {
                    _ if is_pooled => (Ask::Rows, 0),
                    true => (Ask::All, n),
                    false if n == left => (Ask::Pick, 1),
                    false => (Ask::Nothing, 0),
                };
                (step.rows, step.outputs) = (step.rows.saturating_sub(n), step.outputs - outputs);
                step.parts.push(SequenceRows { task: at, n, ask, is_prompt });
            }
            // While its last token is still being sampled, the sequence merely does not run ahead.
            Grown::Alone if missing > 0 => step.ended.push(self.tasks[at].id),
            Grown::Waits | Grown::Alone => {}
        }
    }

    /// True if a decoding sequence has a row to run: its last token, or the token that is being sampled.
    fn has_next(&self, at: usize) -> bool {
        let task = &self.tasks[at];
        match task.seq.missing() {
            0 => {
                task.seq.queued.len() == 1
                    && task.decoder.remaining() > 1
                    && task.seq.cached < self.engine.n_ctx()
                    && self.runner.runs_ahead(&task.seq, self.tasks.iter().filter(|t| t.is_running()).count())
            }
            _ => true,
        }
    }

    /// Allocates pages so that a sequence can grow to `positions`, or to fewer. Evicts cached pages first,
    /// then preempts the newest sequence that is not in `parts`.
    fn grow(&mut self, at: usize, positions: usize, parts: &[SequenceRows]) -> Grown {
        let (slot, cached) = match &self.tasks[at].seq {
            seq if seq.slot.is_none() => return Grown::Waits,
            seq => (seq.slot.expect("checked above"), seq.cached),
        };
        loop {
            let pages = &mut self.runner.pages;
            if pages.grow(slot, positions) {
                return Grown::To(positions);
            }
            let kinds = [PageKind::Exact, PageKind::Sliding, PageKind::State, PageKind::Quantised];
            let evicted = kinds.into_iter().any(|kind| {
                let helps = match kind {
                    PageKind::Quantised => true,
                    PageKind::State => pages.lacks_state(slot),
                    PageKind::Exact | PageKind::Sliding => pages.lacks(kind, slot, positions),
                };
                helps && self.prefix.evict(pages, kind)
            });
            if evicted {
                continue;
            }
            let most = pages.most(slot, positions);
            if most > cached && pages.grow(slot, most) {
                return Grown::To(most);
            }
            let running = || (0..self.tasks.len()).filter(|&other| self.tasks[other].is_running());
            if running().count() == 1 {
                return Grown::Alone;
            }
            let is_planned = |other: usize| parts.iter().any(|part| part.task == other);
            let paused = running().rfind(|&other| self.tasks[other].is_paused);
            let victim = paused.or_else(|| running().rfind(|&other| !is_planned(other))).unwrap_or(at);
            self.preempt(victim);
            if victim == at {
                return Grown::Waits;
            }
        }
    }
}
