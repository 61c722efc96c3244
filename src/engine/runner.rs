//! The one place that makes steps: rows of sequences go in, tokens and logits come out.
//!
//! It knows no order in which sequences should run: [`Batch`](super::Batch) and [`Session`](super::Session)
//! decide that.

use std::ops::Deref;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::pages::Pages;
use super::sequence::Sequence;
use crate::Error;
use sterna_backend::{Backend, Exec};
use sterna_program::{Buf, PAGE, Program, Row, Sampling, Step, TokenChange};

/// A backend with a compiled program, and the pages of its KV caches.
pub(super) struct Runner {
    pub backend: Box<dyn Backend>,
    pub exec: Exec,
    pub pages: Pages,
    pub free_slots: Vec<u32>,
    /// `None` in a model without a head.
    logits: Option<Buf>,
    /// The residual stream.
    x: Buf,
    /// True if runs are queued on a device while the host goes on.
    is_device: bool,
    rows: Vec<Row>,
    /// Sampling per output row; `None` if the host reads the logits.
    sampling: Vec<Option<Sampling>>,
    /// What changes the logits of output rows.
    changes: Vec<TokenChange>,
    /// Space for a page that is copied.
    page: Vec<u8>,
}

/// Output that is wanted of a sequence's rows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Keys and values alone.
    Nothing,
    /// The residual stream of the rows, which stays on the backend until it is read.
    Rows,
    /// The token behind the last row.
    Pick,
    /// The token behind the last row, and the logits that it is picked from.
    PickAndLogits,
    /// Logits behind the last row.
    Logits,
    /// Logits behind every row.
    All,
    /// The token behind the last row whose token is known, and those behind the rows of the draft.
    Verify,
}

/// Side that picks the token behind a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PickedBy {
    Device,
    Host,
}

/// Logits that a token was picked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PickedFrom {
    Numbers,
    /// Logits that are no numbers.
    Broken,
    /// Logits that the backend has not looked at, and that may all be no numbers.
    Unseen,
}

impl PickedFrom {
    fn of(is_broken: Option<bool>, token: u32) -> Self {
        match is_broken {
            Some(true) => Self::Broken,
            None if token == 0 => Self::Unseen,
            Some(false) | None => Self::Numbers,
        }
    }
}

impl Ask {
    /// True if a token is picked.
    fn picks(self) -> bool {
        matches!(self, Self::Pick | Self::PickAndLogits | Self::Verify)
    }
}

impl Runner {
    pub fn new(backend: Box<dyn Backend>, exec: Exec, pages: Pages, program: &Program) -> Self {
        let logits = program.logits().map(|s| s.logits);
        let x = program.buf_named("x").expect("every model has a residual stream");
        let free_slots = (0..pages.table().n_seqs() as u32).rev().collect();
        let is_device = backend.runs_ahead(exec, &Sampling::GREEDY);
        let (rows, sampling, changes, page) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { backend, exec, pages, free_slots, logits, x, is_device, rows, sampling, changes, page }
    }

    /// True if runs are queued on a device while the host goes on.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Side that picks the next token of a sequence.
    pub fn picked_by(&self, seq: &Sequence) -> PickedBy {
        // What a row's draft adds to the recent tokens is known to the host alone.
        let by_host = seq.sampler.most_changes() > self.backend.most_changes()
            || !seq.draft.is_empty() && seq.sampler.penalises()
            || self.is_device && !self.backend.runs_ahead(self.exec, &seq.sampling());
        if by_host { PickedBy::Host } else { PickedBy::Device }
    }

    /// True if a step may be queued behind one of about so many rows whose pick for `seq` the host has not
    /// read. There is no gain where such steps take the host as long as they last.
    pub fn runs_ahead(&self, seq: &Sequence, rows: usize) -> bool {
        self.is_device
            && self.backend.returns_early(self.exec, rows)
            && self.picked_by(seq) == PickedBy::Device
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.rows.clear();
        self.sampling.clear();
        self.changes.clear();
    }

    /// Appends the next `n` rows of a sequence to the step; their pages must be there. Returns the output row
    /// of the last, if anything is asked of it.
    pub fn push(&mut self, seq: &Sequence, n: usize, ask: Ask) -> Option<usize> {
        let slot = seq.slot.expect("a sequence that runs has a slot");
        self.pages.set_second(slot, seq.second);
        for at in seq.cached..seq.cached + n {
            let is_last = at + 1 == seq.cached + n;
            let logits = match ask {
                Ask::Nothing | Ask::Rows => false,
                Ask::All => true,
                Ask::Verify => at + 1 >= seq.tokens.len(),
                Ask::Pick | Ask::PickAndLogits | Ask::Logits => is_last,
            };
            let token = seq.token(at).unwrap_or(Row::PICKED);
            self.rows.push(Row { token, pos: at as u32, seq: slot, logits });
            if logits {
                let by_device = ask.picks() && self.picked_by(seq) == PickedBy::Device;
                if by_device {
                    let (output, is_ahead) = (self.sampling.len() as u32, token == Row::PICKED);
                    seq.sampler.changes(at + 1, is_ahead, output, &mut self.changes);
                }
                self.sampling.push(by_device.then(|| seq.sampler.sampling(at + 1)));
            }
        }
        (!matches!(ask, Ask::Nothing | Ask::Rows)).then(|| self.sampling.len() - 1)
    }

    /// Queues the step.
    ///
    /// # Errors
    /// [`Error::Backend`]: nothing of the step counts then, and [`undo`](Self::undo) takes its pages back.
    pub fn run(&mut self) -> Result<(), Error> {
        if self.sampling.iter().all(Option::is_none) {
            self.sampling.clear();
        }
        let step = Step {
            rows: &self.rows,
            pages: self.pages.table(),
            sampling: &self.sampling,
            changes: &self.changes,
        };
        let ran = self.backend.run(self.exec, &step);
        if ran.is_err() {
            self.rows.iter().for_each(|row| self.pages.spoil(row.seq));
        }
        Ok(ran?)
    }

    /// After a run that has `n` rows of `seq`: they are in the cache.
    pub fn ran(&mut self, seq: &mut Sequence, n: usize, ask: Ask) {
        if ask == Ask::Verify {
            // The rows of the draft come to these as they hold.
            seq.cached = seq.tokens.len();
            return;
        }
        seq.again = 0;
        if ask.picks() && self.picked_by(seq) == PickedBy::Device {
            seq.queued.push(seq.sampler.sampling(seq.cached + n));
        }
        seq.cached += n;
        if let Some(slot) = seq.slot {
            self.pages.ran(slot, seq.cached, n);
            self.pages.release_stale(slot, seq.cached);
        }
    }

    /// Number of drafted tokens, up to `most`, that can run behind those of `seq`: there are pages for them
    /// without taking any from others, and a recurrent state is kept behind each full page.
    pub fn draft_room(&self, seq: &Sequence, most: usize) -> usize {
        let Some(slot) = seq.slot else { return 0 };
        let len = seq.tokens.len();
        let end = self.pages.most(slot, len + most);
        let end = if self.pages.has_states() { end.min((seq.cached / PAGE + 1) * PAGE) } else { end };
        end.saturating_sub(len)
    }

    /// Waits for the last run that was queued, and returns the tokens that it picked for its first `n` output
    /// rows, with what is known of the logits that each was picked from. Entries of rows that the host picks
    /// for mean nothing.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn picks(&mut self, n: usize) -> Result<Vec<(u32, PickedFrom)>, Error> {
        let mut tokens = vec![0; n];
        self.backend.tokens(self.exec, 0, &mut tokens)?;
        let of = |(row, token)| (token, PickedFrom::of(self.backend.row_is_broken(self.exec, row), token));
        Ok(tokens.into_iter().enumerate().map(of).collect())
    }

    /// A row of the draft of `seq` holds, the one behind what is in the cache. Behind the `last` the step
    /// counts as any other.
    pub fn row_holds(&mut self, seq: &mut Sequence, last: bool) {
        seq.cached += 1;
        if let Some(slot) = seq.slot.filter(|_| last) {
            seq.again = 0;
            self.pages.ran(slot, seq.cached, 1);
        }
    }

    /// After the draft of `seq` was verified: gives back what its rows have taken that do not hold.
    pub fn settle(&mut self, seq: &mut Sequence) {
        seq.draft.clear();
        let Some(slot) = seq.slot else { return };
        let at = self.pages.stands_at(slot, seq.cached);
        (seq.again, seq.cached) = (seq.cached - at, at);
        self.pages.release_stale(slot, seq.cached);
        self.trim(seq);
    }

    /// Waits for the oldest token that is queued for `seq`, and says what is known of the logits that it was
    /// picked from.
    ///
    /// # Errors
    /// [`Error::Backend`].
    ///
    /// # Panics
    /// If nothing is queued.
    pub fn collect(&mut self, seq: &mut Sequence) -> Result<(u32, PickedFrom), Error> {
        let back = seq.queued.len().checked_sub(1).expect("a pick is queued");
        let slot = seq.slot.expect("a sequence that runs has a slot");
        let token = self.backend.picked(self.exec, slot, back)?;
        seq.queued.remove(0);
        seq.picked = Some(token);
        Ok((token, PickedFrom::of(self.backend.picked_from_broken(self.exec, slot, back), token)))
    }

    /// Waits for the last run that was queued, and copies rows of its logits from output row `first` on.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn logits(&mut self, first: usize, out: &mut [f32]) -> Result<(), Error> {
        let logits = self.logits.expect("who asks for logits has checked that there are any");
        Ok(self.backend.read(self.exec, logits, first, out)?)
    }

    /// Waits for the last run that was queued, and copies rows of its residual stream from row `first` on.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn stream(&mut self, first: usize, out: &mut [f32]) -> Result<(), Error> {
        Ok(self.backend.read(self.exec, self.x, first, out)?)
    }

    /// Gives the pages of `seq` back that lie behind what is in the cache, and counts what of a page cannot
    /// be written on as not in the cache.
    pub fn trim(&mut self, seq: &mut Sequence) {
        if let Some(slot) = seq.slot {
            seq.cached = self.pages.cut_back(slot, seq.cached);
        }
    }

    /// After a run that failed: nothing is queued for `seq`, and its pages are those of what is in the cache.
    pub fn undo(&mut self, seq: &mut Sequence) {
        seq.discard_queued();
        self.trim(seq);
    }

    /// Gives the slot and the pages of `seq` back; its tokens stay.
    pub fn release(&mut self, seq: &mut Sequence) {
        seq.discard_queued();
        seq.cached = 0;
        seq.slot.take().into_iter().for_each(|slot| self.release_slot(slot));
    }

    /// Gives a slot and its pages back.
    pub fn release_slot(&mut self, slot: u32) {
        self.pages.cut_back(slot, 0);
        self.free_slots.push(slot);
    }

    /// Makes `to`, which has a slot and no pages, a copy of the first `positions` positions of `from`. Full
    /// pages are shared; the rest is copied if a page for it is free, and computed again otherwise.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn fork(&mut self, from: &Sequence, to: &mut Sequence, positions: usize) -> Result<(), Error> {
        let (Some(source), Some(slot)) = (from.slot, to.slot) else { return Ok(()) };
        let cached = positions.min(from.cached).min(from.tokens.len());
        to.tokens.extend_from_slice(&from.tokens[..positions]);
        to.cached = self.pages.share(source, slot, cached);
        let is_part = to.cached < cached && cached - to.cached < PAGE && !self.pages.has_states();
        if is_part && self.copy_page(source, slot, to.cached / PAGE, cached)? {
            to.cached = cached;
        }
        Ok(())
    }

    /// Copies the page `i` of `from`, which is not full, as that of `to`, so that `to` holds `cached`
    /// positions. `false` if no page is free, or the exact positions or those of a window are gone.
    fn copy_page(&mut self, from: u32, to: u32, i: usize, cached: usize) -> Result<bool, Error> {
        if !self.pages.has_all(from, i) || !self.pages.grow(to, cached) {
            return Ok(false);
        }
        for (source, target) in self.pages.kv_pages(from, i).zip(self.pages.kv_pages(to, i)) {
            self.page.resize(self.backend.page_bytes(self.exec, source), 0);
            self.backend.read_page(self.exec, source, &mut self.page)?;
            self.backend.write_page(self.exec, target, &self.page)?;
        }
        Ok(true)
    }
}

/// The place of the runner between steps. A step takes it out, so no lock is held while a device works.
pub(super) struct RunnerSlot {
    state: Mutex<SlotState>,
    returned: Condvar,
}

struct SlotState {
    runner: Option<Box<Runner>>,
    /// True if a [`Batch`](super::Batch) has it, which keeps it.
    is_kept: bool,
    /// Slots of sessions that ended while the runner was away.
    ended: Vec<u32>,
}

/// The runner, taken out of its slot. It goes back when this is dropped.
pub(super) struct RunnerLease<D: Deref<Target = RunnerSlot>> {
    runner_slot: D,
    /// `None` in `drop` alone.
    pub runner: Option<Box<Runner>>,
}

impl RunnerSlot {
    pub fn new(runner: Runner) -> Self {
        let state = SlotState { runner: Some(Box::new(runner)), is_kept: false, ended: Vec::new() };
        Self { state: Mutex::new(state), returned: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the runner; waits while another session runs a step.
    ///
    /// # Errors
    /// [`Error::InBatch`] while a batch has it.
    pub fn take<D: Deref<Target = Self>>(runner_slot: D) -> Result<RunnerLease<D>, Error> {
        let runner = {
            let mut state = runner_slot.state();
            loop {
                if state.is_kept {
                    return Err(Error::InBatch);
                }
                match state.runner.take() {
                    Some(runner) => break runner,
                    None => state = runner_slot.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        Ok(RunnerLease { runner_slot, runner: Some(runner) })
    }

    /// Takes a session's slot back, at once or when the runner is there again.
    pub fn end_session(&self, slot: u32) {
        let mut state = self.state();
        match &mut state.runner {
            Some(runner) => runner.release_slot(slot),
            None => state.ended.push(slot),
        }
    }
}

impl<D: Deref<Target = RunnerSlot>> RunnerLease<D> {
    /// Keeps the runner: sessions that wait for it or ask for it are refused.
    pub fn keep(self) -> Self {
        self.runner_slot.state().is_kept = true;
        self.runner_slot.returned.notify_all();
        self
    }
}

impl<D: Deref<Target = RunnerSlot>> Deref for RunnerLease<D> {
    type Target = Runner;

    fn deref(&self) -> &Runner {
        self.runner.as_ref().expect("the runner is here until it is dropped")
    }
}

impl<D: Deref<Target = RunnerSlot>> std::ops::DerefMut for RunnerLease<D> {
    fn deref_mut(&mut self) -> &mut Runner {
        self.runner.as_mut().expect("the runner is here until it is dropped")
    }
}

impl<D: Deref<Target = RunnerSlot>> Drop for RunnerLease<D> {
    fn drop(&mut self) {
        let Some(mut runner) = self.runner.take() else { return };
        let mut state = self.runner_slot.state();
        state.ended.drain(..).for_each(|slot| runner.release_slot(slot));
        state.runner = Some(runner);
        state.is_kept = false;
        drop(state);
        self.runner_slot.returned.notify_one();
    }
}
