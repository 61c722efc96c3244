//! The only place that creates steps: rows of sequences go in, tokens and logits come out.
//!
//! It does not decide the order in which sequences run: [`Batch`](super::Batch) and
//! [`Session`](super::Session) do.

use std::ops::{Deref, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::mtp::{Block, Chain};
use super::pages::Pages;
use super::sequence::Sequence;
use super::vision::picture::{ImageRows, PlacedImage};
use crate::error::Error;
use sterna_backend::{Backend, BackendError, Exec, KvPage};
use sterna_program::{Buf, PAGE, Program, Row, Sampling, Stage, Step, TokenChange};

/// A backend with a compiled program, and the pages of its KV caches.
pub(super) struct Runner {
    pub backend: Box<dyn Backend>,
    pub exec: Exec,
    pub pages: Pages,
    pub free_slots: Vec<u32>,
    /// The MTP block, which runs after each step on the same rows.
    pub block: Option<Block>,
    /// Rows that the block needs of several layers, `[rows, layers * cols]`.
    tapped: Vec<f32>,
    /// `None` for a model without an output head.
    logits: Option<Buf>,
    /// The residual stream.
    x: Buf,
    /// True if runs are queued on a device while the host continues.
    is_device: bool,
    rows: Vec<Row>,
    /// Sampling per output row; `None` if the host reads the logits.
    sampling: Vec<Option<Sampling>>,
    /// Changes to the logits of output rows.
    changes: Vec<TokenChange>,
    /// Buffer for copying a page.
    page: Vec<u8>,
    places: Places,
    /// Rows of images in the step: the first of them, the image, and its first row there.
    images: Vec<RowsOfImage>,
}

/// The places of a program where rows of images are written, and the residual stream is read.
struct Places {
    /// Buffers that the first stages write the tokens' embeddings to.
    embedded: Vec<Buf>,
    /// Numbers of first stages after which further rows are added ([`sterna_model::Model::deepstack`]).
    deepstack: Vec<usize>,
    n_stages: usize,
    x: Buf,
}

/// Requested output of a sequence's rows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Only keys and values.
    Nothing,
    /// The residual stream of the rows, which stays on the backend until it is read.
    Rows,
    /// The token after the last row.
    Pick,
    /// The token after the last row, and the logits that it is sampled from.
    PickAndLogits,
    /// Logits of the last row.
    Logits,
    /// Logits of every row.
    All,
    /// The tokens after the last row of the known tokens and after each draft row.
    Verify,
}

/// The side that samples the token after a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PickedBy {
    Device,
    Host,
}

/// Validity of the logits that a token was sampled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PickedFrom {
    Numbers,
    /// NaN or infinite logits.
    Broken,
    /// Logits that the backend has not checked, which may all be NaN.
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
    /// True if a token is sampled.
    fn picks(self) -> bool {
        matches!(self, Self::Pick | Self::PickAndLogits | Self::Verify)
    }
}

impl Runner {
    pub fn new(
        backend: Box<dyn Backend>,
        exec: Exec,
        pages: Pages,
        program: &Program,
        deepstack: Vec<usize>,
        block: Option<Block>,
    ) -> Self {
        let logits = program.logits().map(|s| s.logits);
        let x = program.buf_named("x").expect("every model has a residual stream");
        let free_slots = (0..pages.table().n_seqs() as u32).rev().collect();
        let is_device = backend.runs_ahead(exec, &Sampling::GREEDY);
        let embedded = program.stages.iter().map_while(|(_, stage)| match stage {
            Stage::Embed(s) => Some(s.x),
            _ => None,
        });
        Self {
            backend,
            exec,
            pages,
            free_slots,
            block,
            tapped: Vec::new(),
            logits,
            x,
            is_device,
            rows: Vec::new(),
            sampling: Vec::new(),
            changes: Vec::new(),
            page: Vec::new(),
            places: Places { embedded: embedded.collect(), deepstack, n_stages: program.stages.len(), x },
            images: Vec::new(),
        }
    }

    /// True if runs are queued on a device while the host continues.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// The side that samples the next token of a sequence.
    pub fn picked_by(&self, seq: &Sequence) -> PickedBy {
        // Only the host knows which draft tokens count as recent tokens for a row.
        let by_host = seq.sampler.most_changes() > self.backend.most_changes()
            || !seq.draft.is_empty() && seq.sampler.penalises()
            || self.is_device && !self.backend.runs_ahead(self.exec, &seq.sampling());
        if by_host { PickedBy::Host } else { PickedBy::Device }
    }

    /// True if a step may be queued after one of about `rows` rows whose token for `seq` the host has not
    /// read yet. Running ahead gains nothing if the host is blocked for as long as such steps take.
    pub fn runs_ahead(&self, seq: &Sequence, rows: usize) -> bool {
        // The MTP block needs the token.
        self.is_device
            && self.block.is_none()
            && self.backend.returns_early(self.exec, rows)
            && self.picked_by(seq) == PickedBy::Device
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.rows.clear();
        self.sampling.clear();
        self.changes.clear();
        self.images.clear();
    }

    /// Appends the next `n` rows of a sequence to the step; their pages must be allocated. Returns the output
    /// row of the last one, if output is requested.
    pub fn push(&mut self, seq: &Sequence, n: usize, ask: Ask) -> Option<usize> {
        let slot = seq.slot.expect("a sequence that runs has a slot");
        if ask != Ask::Verify {
            self.pages.drop_row_states(slot);
        }
        self.pages.set_second(slot, seq.second);
        self.pages.set_adapters(slot, &seq.adapters);
        self.pages.set_images(slot, seq.images.iter().map(PlacedImage::span));
        for image in &seq.images {
            let (from, to) = (image.at.max(seq.cached), image.end().min(seq.cached + n));
            if from < to {
                let first = self.rows.len() + from - seq.cached;
                for part in image.rows.of_pixels(from - image.at..to - image.at) {
                    let first = first + part.start - (from - image.at);
                    self.images.push((first..first + part.len(), Arc::clone(&image.rows), part.start));
                }
            }
        }
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
    /// [`Error::Backend`]: the step has no effect then, and [`undo`](Self::undo) releases its pages.
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
        let taps = self.block.as_ref().map_or(&[][..], Block::taps);
        let ran = match self.images.is_empty() && taps.is_empty() {
            true => self.backend.run(self.exec, &step),
            false => {
                let cols = self.block.as_ref().map_or(0, Block::cols);
                let run = InPieces { backend: &mut *self.backend, exec: self.exec, step: &step, done: 0 };
                run.all(&self.places, &self.images, (taps, cols, &mut self.tapped))
            }
        }
        .map_err(Error::from)
        .and_then(|()| self.fill_block());
        if ran.is_err() {
            self.rows.iter().for_each(|row| self.pages.spoil(row.seq));
        }
        ran
    }

    /// Writes the MTP block's keys and values of the rows that just ran.
    fn fill_block(&mut self) -> Result<(), Error> {
        let Some(block) = &mut self.block else { return Ok(()) };
        let mut x = std::mem::take(&mut self.tapped);
        if block.taps().is_empty() {
            x.resize(self.rows.len() * block.cols(), 0.0);
            self.backend.read(self.exec, self.x, 0, &mut x)?;
        }
        block.fill(&mut *self.backend, self.pages.table(), &self.rows, x)
    }

    /// Logits of the MTP block for the rows of the last step, `[rows, n_vocab]`. The step has at most as many
    /// rows as outputs.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn block_logits(&mut self, out: &mut [f32]) -> Result<(), Error> {
        let Some(block) = &self.block else { return Ok(()) };
        block.logits(&mut *self.backend, self.pages.table(), &self.rows, out)
    }

    /// Drafts with the MTP block.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn draft(&mut self, chains: &mut [Chain]) -> Result<(), Error> {
        let Some(block) = &self.block else { return Ok(()) };
        block.draft(&mut *self.backend, self.pages.table(), chains)
    }

    /// Called after a run with `n` rows of `seq`, which are in the cache now.
    pub fn ran(&mut self, seq: &mut Sequence, n: usize, ask: Ask) {
        if ask == Ask::Verify {
            // Draft rows are added as they are accepted.
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

    /// Prepares the recurrent states for a step that verifies the draft of `seq`: the current one is kept,
    /// and those after its rows are written, too. `false` if no slot is free.
    pub fn keep_states(&mut self, seq: &Sequence) -> bool {
        let Some(slot) = seq.slot else { return false };
        let keeps = self.pages.keep_state(slot);
        if keeps {
            self.pages.keep_row_states(slot, seq.missing() - 1, seq.draft.len());
        }
        keeps
    }

    /// Number of drafted tokens, up to `most`, that can run after those of `seq`: with free pages only, and
    /// so that a recurrent state can be kept at the end of each full page.
    pub fn draft_room(&self, seq: &Sequence, most: usize) -> usize {
        let Some(slot) = seq.slot else { return 0 };
        let len = seq.tokens.len();
        let end = self.pages.most(slot, len + most);
        let end = if self.pages.has_states() { end.min((seq.cached / PAGE + 1) * PAGE) } else { end };
        end.saturating_sub(len)
    }

    /// Waits for the last queued run, and returns the tokens sampled for its first `n` output rows, with the
    /// validity of the logits of each. Entries of rows that are sampled on the host are meaningless.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn picks(&mut self, n: usize) -> Result<Vec<(u32, PickedFrom)>, Error> {
        let mut tokens = vec![0; n];
        self.backend.tokens(self.exec, 0, &mut tokens)?;
        let of = |(row, token)| (token, PickedFrom::of(self.backend.row_is_broken(self.exec, row), token));
        Ok(tokens.into_iter().enumerate().map(of).collect())
    }

    /// Accepts the next draft row of `seq`, which extends the cached positions. After the `last` one, the
    /// step counts like any other.
    pub fn row_holds(&mut self, seq: &mut Sequence, last: bool) {
        seq.cached += 1;
        if let Some(slot) = seq.slot.filter(|_| last) {
            seq.again = 0;
            self.pages.ran(slot, seq.cached, 1);
        }
    }

    /// Called after the draft of `seq` was verified: releases the pages of rejected rows.
    pub fn finish_draft(&mut self, seq: &mut Sequence) {
        seq.draft.clear();
        let Some(slot) = seq.slot else { return };
        let at = self.pages.resume_after_draft(slot, seq.cached);
        (seq.again, seq.cached) = (seq.cached - at, at);
        self.pages.release_stale(slot, seq.cached);
        self.trim(seq);
    }

    /// Waits for the oldest queued token of `seq`, and returns it with the validity of its logits.
    ///
    /// # Errors
    /// [`Error::Backend`].
    ///
    /// # Panics
    /// If no token is queued.
    pub fn collect(&mut self, seq: &mut Sequence) -> Result<(u32, PickedFrom), Error> {
        let back = seq.queued.len().checked_sub(1).expect("a pick is queued");
        let slot = seq.slot.expect("a sequence that runs has a slot");
        let token = self.backend.picked(self.exec, slot, back)?;
        seq.queued.remove(0);
        seq.picked = Some(token);
        Ok((token, PickedFrom::of(self.backend.picked_from_broken(self.exec, slot, back), token)))
    }

    /// Waits for the last queued run, and copies rows of its logits, starting at output row `first`.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn logits(&mut self, first: usize, out: &mut [f32]) -> Result<(), Error> {
        let logits = self.logits.expect("the caller has checked that the model has logits");
        Ok(self.backend.read(self.exec, logits, first, out)?)
    }

    /// Waits for the last queued run, and copies rows of its residual stream, starting at row `first`.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn stream(&mut self, first: usize, out: &mut [f32]) -> Result<(), Error> {
        Ok(self.backend.read(self.exec, self.x, first, out)?)
    }

    /// Releases the pages of `seq` after its cached positions. If the last page cannot be appended to, its
    /// positions no longer count as cached.
    pub fn trim(&mut self, seq: &mut Sequence) {
        if let Some(slot) = seq.slot {
            seq.cached = self.pages.cut_back(slot, seq.cached);
        }
    }

    /// Called after a failed run: drops the queued tokens of `seq` and the pages after its cached positions.
    pub fn undo(&mut self, seq: &mut Sequence) {
        seq.discard_queued();
        self.trim(seq);
    }

    /// Releases the slot and the pages of `seq`; keeps its tokens.
    pub fn release(&mut self, seq: &mut Sequence) {
        seq.discard_queued();
        seq.cached = 0;
        seq.slot.take().into_iter().for_each(|slot| self.release_slot(slot));
    }

    /// Releases a slot and its pages.
    pub fn release_slot(&mut self, slot: u32) {
        self.pages.cut_back(slot, 0);
        self.free_slots.push(slot);
        self.block.iter_mut().for_each(|block| block.forget(slot));
    }

    /// Makes `to`, which has a slot and no pages, a copy of the first `positions` positions of `from`. Full
    /// pages are shared; the rest is copied if a page is free, and recomputed otherwise.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn fork(&mut self, from: &Sequence, to: &mut Sequence, positions: usize) -> Result<(), Error> {
        let (Some(source), Some(slot)) = (from.slot, to.slot) else { return Ok(()) };
        let cached = positions.min(from.cached).min(from.tokens.len());
        to.tokens.extend_from_slice(&from.tokens[..positions]);
        to.cached = self.pages.share(source, slot, cached);
        self.block.iter_mut().for_each(|block| block.fork(source, slot));
        let is_part = to.cached < cached && cached - to.cached < PAGE && !self.pages.has_states();
        if is_part && self.copy_page(source, slot, to.cached / PAGE, cached)? {
            to.cached = cached;
        }
        Ok(())
    }

    /// Copies the partial page `i` of `from` to `to`, so that `to` has `cached` positions. `false` if no page
    /// is free, or if exact or sliding-window pages have been released.
    fn copy_page(&mut self, from: u32, to: u32, i: usize, cached: usize) -> Result<bool, Error> {
        if !self.pages.has_all(from, i) || !self.pages.grow(to, cached) {
            return Ok(false);
        }
        let pairs: Vec<_> = self.pages.kv_pages(from, i).zip(self.pages.kv_pages(to, i)).collect();
        let mut page = std::mem::take(&mut self.page);
        for (source, target) in pairs {
            self.read_page(source, &mut page)?;
            self.write_page(target, &page)?;
        }
        self.page = page;
        Ok(true)
    }

    /// Bytes of a page, with that of the MTP block.
    pub fn page_bytes(&self, page: KvPage) -> usize {
        let of_block = self.block.as_ref().map_or(0, |block| block.page_bytes(&*self.backend, page));
        self.backend.page_bytes(self.exec, page) + of_block
    }

    /// Copies a page to `bytes`, followed by that of the MTP block.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn read_page(&mut self, page: KvPage, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.resize(self.page_bytes(page), 0);
        let (own, of_block) = bytes.split_at_mut(self.backend.page_bytes(self.exec, page));
        self.backend.read_page(self.exec, page, own)?;
        match &self.block {
            Some(block) => block.read_page(&mut *self.backend, page, of_block),
            None => Ok(()),
        }
    }

    /// Overwrites a page with the bytes of [`read_page`](Self::read_page).
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn write_page(&mut self, page: KvPage, bytes: &[u8]) -> Result<(), Error> {
        let (own, of_block) = bytes.split_at(self.backend.page_bytes(self.exec, page));
        self.backend.write_page(self.exec, page, own)?;
        match &self.block {
            Some(block) => block.write_page(&mut *self.backend, page, of_block),
            None => Ok(()),
        }
    }
}

/// A step whose stages run in several pieces, with buffers read or written in between.
struct InPieces<'a> {
    backend: &'a mut dyn Backend,
    exec: Exec,
    step: &'a Step<'a>,
    /// Number of stages that have run.
    done: usize,
}

/// Rows of images in a step: the first of them, the image, and its first row there.
type RowsOfImage = (Range<usize>, Arc<ImageRows>, usize);

impl InPieces<'_> {
    /// Runs all stages. Rows of images take the place of the embeddings of tokens, and their further rows are
    /// added to the residual stream. Before each of `taps`, which ascend, the stream's `cols` elements of
    /// each row are read: `out` is `[rows, taps * cols]`.
    fn all(
        mut self,
        places: &Places,
        images: &[RowsOfImage],
        (taps, cols, out): (&[usize], usize, &mut Vec<f32>),
    ) -> Result<(), BackendError> {
        if !images.is_empty() {
            self.write_images(images, &places.embedded)?;
        }
        let n_rows = self.step.rows.len();
        out.resize(n_rows * taps.len() * cols, 0.0);
        let mut rows = vec![0.0; if taps.is_empty() { 0 } else { n_rows * cols }];
        let mut ends = places.deepstack.iter().enumerate().filter(|_| !images.is_empty()).peekable();
        for (i, tap) in taps.iter().enumerate() {
            // A layer reads what was added after the layer before it.
            while let Some((at, end)) = ends.next_if(|(_, end)| *end <= tap) {
                self.up_to(*end)?;
                self.add_images(images, at, places.x)?;
            }
            self.up_to(*tap)?;
            self.backend.read(self.exec, places.x, 0, &mut rows)?;
            let all = out.chunks_exact_mut(taps.len() * cols).zip(rows.chunks_exact(cols));
            all.for_each(|(out, row)| out[i * cols..(i + 1) * cols].copy_from_slice(row));
        }
        for (at, end) in ends {
            self.up_to(*end)?;
            self.add_images(images, at, places.x)?;
        }
        self.up_to(places.n_stages)
    }

    /// Runs the stages before `end` that have not run yet.
    fn up_to(&mut self, end: usize) -> Result<(), BackendError> {
        if end > self.done {
            self.backend.run_stages(self.exec, self.done..end, self.step)?;
            self.done = end;
        }
        Ok(())
    }

    /// Runs the first stages, which write embeddings of tokens, and replaces those of rows of images.
    fn write_images(&mut self, images: &[RowsOfImage], embedded: &[Buf]) -> Result<(), BackendError> {
        self.up_to(embedded.len())?;
        for (rows, image, first) in images {
            let values = part(image.values(), rows, image, *first);
            for buf in embedded {
                self.backend.write(self.exec, *buf, rows.start, values)?;
            }
        }
        Ok(())
    }

    /// Adds the further rows `at` of images to the residual stream.
    fn add_images(&mut self, images: &[RowsOfImage], at: usize, x: Buf) -> Result<(), BackendError> {
        for (rows, image, first) in images {
            let further = part(&image.deepstack()[at], rows, image, *first);
            let mut sum = vec![0.0; further.len()];
            self.backend.read(self.exec, x, rows.start, &mut sum)?;
            sum.iter_mut().zip(further).for_each(|(sum, further)| *sum += further);
            self.backend.write(self.exec, x, rows.start, &sum)?;
        }
        Ok(())
    }
}

/// The part of an image's rows that a step has.
fn part<'a>(values: &'a [f32], rows: &Range<usize>, image: &ImageRows, first: usize) -> &'a [f32] {
    let dim = values.len() / image.len();
    &values[first * dim..(first + rows.len()) * dim]
}

/// Holds the runner between steps. A step takes it out, so no lock is held while a device works.
pub(super) struct RunnerSlot {
    state: Mutex<SlotState>,
    returned: Condvar,
}

struct SlotState {
    runner: Option<Box<Runner>>,
    /// True if a [`Batch`](super::Batch) keeps the runner.
    is_kept: bool,
    /// Slots of sessions that ended while the runner was taken.
    ended: Vec<u32>,
}

/// The runner, taken out of its slot. It is put back on drop.
pub(super) struct RunnerLease<D: Deref<Target = RunnerSlot>> {
    runner_slot: D,
    /// `None` only in `drop`.
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
    /// [`Error::InBatch`] while a batch keeps it.
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

    /// Releases a session's slot, at once or when the runner is put back.
    pub fn end_session(&self, slot: u32) {
        let mut state = self.state();
        match &mut state.runner {
            Some(runner) => runner.release_slot(slot),
            None => state.ended.push(slot),
        }
    }
}

impl<D: Deref<Target = RunnerSlot>> RunnerLease<D> {
    /// Keeps the runner: sessions that wait for it or ask for it get an error.
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
