//! One sequence that its owner runs step by step: feed tokens, sample, cut back, branch.

use std::sync::Arc;

use super::error::Error;
use super::handle::Engine;
use super::mtp::Chain;
use super::pages::pages_for;
use super::runner::{Ask, PickedBy, PickedFrom, Runner};
use super::sampler::Sampler;
use super::sequence::Sequence;
use super::speculate::{MtpDrafts, OwnDrafts, Speculation};
use super::stats::Stats;
use super::vision::picture::{ImageError, ImageRows, PlacedImage};
use sterna_host::clock::Instant;
use sterna_program::AdapterScale;
use sterna_program::sampling::is_broken;

/// One sequence of an engine. Dropping it releases its slot and pages.
///
/// A session stores the tokens that were fed to the model. The keys and values of [`tokens`](Self::tokens)
/// are in the cache, except for the last few after a cut or in a branch, which the next step computes.
///
/// Sessions of one engine may run on several threads: they alternate step by step. A [`Batch`](super::Batch)
/// runs many sequences in the same step.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    seq: Sequence,
    logits: Vec<f32>,
}

impl Engine {
    /// A new session with an empty context.
    ///
    /// # Errors
    /// [`Error::NoSession`] if all [`EngineOptions::n_seqs`](super::EngineOptions::n_seqs) are in use;
    /// [`Error::InBatch`] while a [`Batch`](super::Batch) uses the engine.
    pub fn session(&self) -> Result<Session, Error> {
        self.new_session(self.default_adapters())
    }

    /// As [`session`](Self::session), with these adapters instead of the default ones.
    ///
    /// # Errors
    /// As [`session`](Self::session); [`Error::Option`] as [`chosen_adapters`](Self::chosen_adapters).
    pub fn session_with(&self, adapters: &[AdapterScale]) -> Result<Session, Error> {
        self.new_session(self.chosen_adapters(adapters)?)
    }

    fn new_session(&self, adapters: Arc<[AdapterScale]>) -> Result<Session, Error> {
        self.check_generates()?;
        let n_seqs = self.shared.program.limits.seqs;
        let slot = self.runner()?.free_slots.pop().ok_or(Error::NoSession { n_seqs })?;
        Session::new(self, slot, adapters)
    }
}

impl Session {
    fn new(engine: &Engine, slot: u32, adapters: Arc<[AdapterScale]>) -> Result<Self, Error> {
        let mut seq = Sequence { adapters, ..Sequence::greedy()? };
        seq.tokens.reserve_exact(engine.n_ctx());
        seq.slot = Some(slot);
        let logits = vec![0.0; engine.hyper().n_vocab];
        Ok(Self { engine: engine.clone(), seq, logits })
    }

    /// A session whose first `cached` positions are in the pages of its slot.
    pub(super) fn of_pages(mut self, tokens: &[u32], cached: usize) -> Self {
        self.seq.tokens.extend_from_slice(tokens);
        self.seq.cached = cached;
        self
    }

    pub(super) fn slot(&self) -> u32 {
        self.seq.slot.expect("a session has a slot until it is dropped")
    }

    /// The LoRA adapters of its tokens.
    pub fn adapters(&self) -> &[AdapterScale] {
        &self.seq.adapters
    }

    /// The engine it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokens fed to the model, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.seq.tokens
    }

    /// Position of the next token: the number of tokens fed.
    pub fn position(&self) -> usize {
        self.seq.tokens.len()
    }

    /// Number of positions whose keys and values are in the cache. After a cut it may be less than
    /// [`position`](Self::position): the next step computes the others.
    pub fn n_cached(&self) -> usize {
        self.seq.cached.min(self.position())
    }

    /// Number of positions that the next step computes first.
    pub(super) fn n_missing(&self) -> usize {
        self.seq.missing()
    }

    /// The tokens that are not placeholders of images.
    pub(super) fn text(&self) -> impl Iterator<Item = u32> {
        self.seq.text()
    }

    /// Its images, in order.
    pub(super) fn images(&self) -> &[PlacedImage] {
        &self.seq.images
    }

    /// True if it contains images.
    pub(super) fn has_images(&self) -> bool {
        !self.seq.images.is_empty()
    }

    /// Number of positions left.
    pub fn remaining(&self) -> usize {
        self.engine.n_ctx() - self.position()
    }

    /// Sets the sampler that [`decode`](Self::decode) uses from now on; a new session samples greedily.
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.seq.discard_queued();
        self.seq.sampler = sampler;
    }

    /// True if its constraint allows nothing after the last sampled token.
    pub(super) fn is_done(&self) -> bool {
        self.seq.ahead.is_empty() && self.seq.sampler.is_done()
    }

    /// True if the next token has already been sampled, together with the last one.
    pub(super) fn is_ahead(&self) -> bool {
        !self.seq.ahead.is_empty()
    }

    /// The sampler of its tokens.
    pub fn sampler(&self) -> &Sampler {
        &self.seq.sampler
    }

    /// Appends tokens, which the next step computes.
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::Token`].
    pub fn push(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        self.append(tokens);
        Ok(())
    }

    /// Appends an image, whose rows the next step computes.
    ///
    /// # Errors
    /// [`Error::ContextFull`]; [`Error::Image`] if no step can hold the image.
    pub fn push_image(&mut self, rows: &Arc<ImageRows>) -> Result<(), Error> {
        let (n_ctx, used, more) = (self.engine.n_ctx(), self.position(), rows.len());
        if more > self.remaining() {
            return Err(Error::ContextFull { n_ctx, used, more });
        }
        self.engine.check_image(rows, 0)?;
        self.seq.discard_queued();
        self.seq.images.push(PlacedImage::append(Arc::clone(rows), &mut self.seq.tokens));
        Ok(())
    }

    /// Passes the logits after each position that the next step would compute to `each`: its index among all
    /// positions, and `[n_vocab]`. An image whose rows see each other takes as many
    /// [`EngineOptions::outputs`](super::EngineOptions::outputs) as it has rows.
    ///
    /// # Errors
    /// As [`logits_each`](Self::logits_each).
    pub fn pushed_logits<E: From<Error>>(
        &mut self,
        each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.missing_logits(self.seq.cached, each)
    }

    /// Feeds `tokens` to the model, in steps of at most
    /// [`EngineOptions::batch`](super::EngineOptions::batch).
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::Token`] before anything runs; [`Error::OutOfPages`];
    /// [`Error::InBatch`]; [`Error::Backend`]. After these last ones the session keeps the steps that ran.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        self.feed(tokens, Ask::Nothing)
    }

    /// Feeds `tokens` to the model and returns the logits after the last one, `[n_vocab]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); [`Error::EmptyPrompt`] for no tokens; [`Error::BrokenLogits`].
    pub fn logits(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.check_some(tokens)?;
        self.feed(tokens, Ask::Logits)?;
        self.check_logits()?;
        Ok(&self.logits)
    }

    /// Feeds `tokens` to the model and passes the logits after each to `each`: its index in `tokens`, and
    /// `[n_vocab]`. Steps have at most [`EngineOptions::outputs`](super::EngineOptions::outputs) tokens.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill), and any error of `each`, at once; [`Error::BrokenLogits`].
    pub fn logits_each<E: From<Error>>(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check(tokens)?;
        self.complete()?;
        let known = self.append(tokens);
        let logits = self.missing_logits(known, |at, logits| each(at - known, logits));
        if logits.is_err() {
            self.forget(known);
        }
        logits
    }

    /// Computes the missing rows, and passes the logits of those from `first` on to `each`.
    fn missing_logits<E: From<Error>>(
        &mut self,
        first: usize,
        mut each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let n_vocab = self.engine.hyper().n_vocab;
        let size = self.engine.max_rows().min(self.engine.max_outputs());
        let mut logits = vec![0.0; size.min(self.seq.missing()) * n_vocab];
        while self.seq.missing() > 0 {
            let (cached, n) = (self.seq.cached, self.rows_of_step(size)?);
            let logits = &mut logits[..n * n_vocab];
            self.step(n, Ask::All, |runner, _| runner.logits(0, logits))?;
            for (at, logits) in (cached..).zip(logits.chunks_exact(n_vocab)).filter(|(at, _)| *at >= first) {
                if is_broken(logits) {
                    return Err(self.broken(at)?.into());
                }
                each(at, logits)?;
            }
        }
        Ok(())
    }

    /// Number of missing rows that a step of up to `most` rows runs.
    fn rows_of_step(&self, most: usize) -> Result<usize, Error> {
        let n = self.seq.missing().min(most);
        if !self.engine.program().sees_whole_images() {
            return Ok(n);
        }
        match self.seq.whole_rows(n, most) {
            0 if n > 0 => Err(ImageError::Batch { rows: self.seq.missing(), room: most }.into()),
            n => Ok(n),
        }
    }

    /// Feeds `tokens` to the model and samples the next token, which is not fed yet. The backend samples if
    /// it supports the sampler's options; the result is the same.
    ///
    /// # Errors
    /// As [`logits`](Self::logits); [`Error::Constraint`].
    pub fn decode(&mut self, tokens: &[u32]) -> Result<u32, Error> {
        self.pick(tokens, 0, false, None)
    }

    /// Feeds `tokens` to the model, samples the next token, feeds that one, and so on until `n` tokens are
    /// sampled, ignoring stop rules; returns the last. If the backend supports it, it runs ahead of the host.
    ///
    /// # Errors
    /// As [`decode`](Self::decode); [`Error::ContextFull`] when the context is full.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn decode_many(&mut self, tokens: &[u32], n: usize) -> Result<u32, Error> {
        assert!(n > 0, "at least one token is sampled");
        let mut token = self.pick(tokens, n - 1, false, None)?;
        for left in (0..n - 1).rev() {
            token = self.pick(&[token], left, false, None)?;
        }
        Ok(token)
    }

    /// As [`decode_many`](Self::decode_many), with drafts. Returns their counters. The session may end before
    /// tokens that the last step sampled in addition.
    ///
    /// # Errors
    /// As [`decode_many`](Self::decode_many); as [`Speculation::start`].
    pub fn decode_drafted(
        &mut self,
        tokens: &[u32],
        n: usize,
        speculation: &dyn Speculation,
    ) -> Result<Stats, Error> {
        let is_device = self.engine.runner()?.is_device();
        let mut drafts = OwnDrafts::start(speculation, is_device)?;
        let mut token = self.pick(tokens, n.saturating_sub(1), false, Some(&mut drafts))?;
        for left in (0..n.saturating_sub(1)).rev() {
            token = self.pick(&[token], left, false, Some(&mut drafts))?;
        }
        Ok(drafts.stats)
    }

    /// As [`decode`](Self::decode). If up to `more` tokens may follow in the same way, each fed to the model
    /// unless something ends the text, then a backend that runs ahead gets the next step before this one's
    /// token is read, or the step verifies drafted tokens. Later calls return the additional tokens.
    ///
    /// If it `keeps_logits`, for [`last_logits`](Self::last_logits), nothing runs ahead: the next step would
    /// overwrite them.
    pub(super) fn pick(
        &mut self,
        tokens: &[u32],
        more: usize,
        keeps_logits: bool,
        mut drafts: Option<&mut OwnDrafts>,
    ) -> Result<u32, Error> {
        self.check_some(tokens)?;
        if let Some((token, logits)) = self.seq.take_ahead(tokens) {
            if keeps_logits {
                self.logits = logits;
            }
            return Ok(token);
        }
        tokens.iter().for_each(|&token| self.seq.sampler.accept(token));
        if keeps_logits || !self.seq.try_advance(tokens) {
            let begun = Instant::now();
            let known = self.append(tokens);
            let ran = match &mut drafts {
                Some(drafts) => self.draft(more, drafts),
                None => Ok(0),
            };
            let ran = ran.and_then(|n| match n {
                0 => self.steps(if keeps_logits { Ask::PickAndLogits } else { Ask::Pick }).map(|()| 0),
                n => self.step(self.seq.missing() + n, Ask::Verify, |_, _| Ok(())).map(|()| n),
            });
            let n = ran.inspect_err(|_| self.forget(known))?;
            let verified = if n > 0 { Some(self.verify(keeps_logits, drafts.as_deref_mut())?) } else { None };
            if let Some(drafts) = drafts.as_deref_mut().filter(|_| tokens.len() == 1) {
                drafts.count(n, self.seq.ahead.len(), begun.elapsed());
            }
            if let Some(token) = verified {
                return Ok(token);
            }
        }
        let position = self.position();
        if keeps_logits || self.seq.queued.is_empty() {
            self.check_logits()?;
        }
        if self.seq.queued.is_empty() {
            return Ok(match keeps_logits {
                true => self.seq.sampler.pick(&mut self.logits.clone(), position)?,
                false => self.seq.sampler.pick(&mut self.logits, position)?,
            });
        }
        let goes_on = more > 0 && !keeps_logits && position < self.engine.n_ctx();
        let mut waits = || drafts.as_mut().is_some_and(|drafts| drafts.waits(&self.seq.tokens));
        let mut runner = self.engine.runner()?;
        let has_page = runner.pages.most(self.slot(), self.seq.cached + 1) > self.seq.cached;
        if goes_on && has_page && runner.runs_ahead(&self.seq, 1) && !waits() {
            step(&mut runner, &mut self.seq, 1, Ask::Pick)?;
        }
        let (token, from) = runner.collect(&mut self.seq)?;
        let program = &self.engine.shared.program;
        let is_broken = match from {
            PickedFrom::Numbers => false,
            PickedFrom::Broken => true,
            PickedFrom::Unseen => runner.is_broken_again(program, &self.seq, position - 1)?,
        };
        drop(runner);
        if is_broken { Err(self.broken(position - 1)?) } else { Ok(token) }
    }

    /// Drafts up to `most` tokens after the session's tokens. Returns the number of drafted tokens.
    fn draft(&mut self, most: usize, drafts: &mut OwnDrafts) -> Result<usize, Error> {
        let missing = self.seq.missing();
        if missing != 1 + self.seq.again {
            return Ok(0);
        }
        let rows = self.engine.max_rows() - missing;
        let room = [self.engine.shared.drafts, self.engine.max_outputs() - 1, rows, self.remaining()];
        let most = {
            let mut runner = self.engine.runner()?;
            runner.trim(&mut self.seq);
            runner.draft_room(&self.seq, room.into_iter().fold(most, usize::min))
        };
        match drafts.speculator.mtp {
            None => drafts.speculator.draft(&self.seq.tokens, most, &drafts.cost, 1, &mut self.seq.draft)?,
            Some(mtp) => {
                let most = drafts.speculator.wanted(most, &drafts.cost, 1);
                let mut runner = self.engine.runner()?;
                if most > 0 && runner.pages.grow(self.slot(), self.seq.tokens.len() + most) {
                    let mut chain = [Chain::after(&self.seq, most, mtp)];
                    runner.draft(&mut chain)?;
                    let [chain] = chain;
                    self.seq.draft = chain.into_tokens();
                }
                drafts.speculator.drafted(self.seq.draft.len());
            }
        }
        if !self.seq.draft.is_empty() && !self.engine.runner()?.keep_states(&self.seq) {
            self.seq.draft.clear();
        }
        Ok(self.seq.draft.len())
    }

    /// Samples tokens from the rows of the last step: the accepted draft tokens and one more. Returns the
    /// first.
    fn verify(&mut self, keeps_logits: bool, mut drafts: Option<&mut OwnDrafts>) -> Result<u32, Error> {
        let (engine, first) = (self.engine.clone(), self.position());
        let (tokenizer, n_vocab) = (engine.tokenizer()?, engine.hyper().n_vocab);
        let mut runner = engine.runner()?;
        let seq = &mut self.seq;
        let (by_host, n) = (runner.picked_by(seq) == PickedBy::Host, seq.draft.len());
        let picks = if by_host { Vec::new() } else { runner.picks(n + 1)? };
        let mut logits = Vec::new();
        if by_host || keeps_logits {
            logits.resize((n + 1) * n_vocab, 0.0);
            runner.logits(0, &mut logits)?;
        }
        let mut rows = logits.chunks_exact_mut(n_vocab);
        for i in 0..=n {
            let (pick, mut row) = (picks.get(i), rows.next());
            let kept = row.as_deref().filter(|_| keeps_logits).map_or(Vec::new(), <[f32]>::to_vec);
            let is_broken = match (&row, pick) {
                (Some(row), _) => is_broken(row),
                (None, Some((_, PickedFrom::Unseen))) if i == 0 => {
                    runner.is_broken_again(engine.program(), seq, first - 1)?
                }
                (None, from) => from.is_none_or(|(_, from)| *from != PickedFrom::Numbers),
            };
            let picked = match (pick, &mut row) {
                _ if is_broken => Err(None),
                (Some((token, _)), _) => Ok(*token),
                (None, Some(row)) => seq.sampler.pick(row, first + i).map_err(Some),
                (None, None) => Err(None),
            };
            let token = match picked {
                Ok(token) => token,
                // It is sampled again as the first of the next step, which then reports the failure.
                Err(_) if i > 0 => break,
                Err(Some(fault)) => return Err(fault.into()),
                Err(None) => {
                    drop(runner);
                    return Err(self.broken(first - 1)?);
                }
            };
            let token = match (&mut drafts, seq.draft.get(i)) {
                (Some(drafts), Some(drafted)) => drafts.forced(token, *drafted),
                _ => token,
            };
            match i {
                0 => {
                    seq.picked = Some(token);
                    if keeps_logits {
                        self.logits = kept;
                    }
                }
                _ => {
                    runner.row_holds(seq, i == n);
                    seq.ahead.push_back((token, kept));
                }
            }
            if seq.draft.get(i) != Some(&token) || tokenizer.is_eog(token) || seq.sampler.is_done() {
                break;
            }
            seq.sampler.accept(token);
        }
        runner.finish_draft(seq);
        Ok(seq.picked.expect("the first row samples a token"))
    }

    /// Checks that the logits that the host has read are neither NaN nor infinite.
    fn check_logits(&mut self) -> Result<(), Error> {
        if is_broken(&self.logits) { Err(self.broken(self.position() - 1)?) } else { Ok(()) }
    }

    /// Finds the origin of the broken logits after position `at`. Discards the cache: the next step
    /// recomputes all tokens.
    fn broken(&mut self, at: usize) -> Result<Error, Error> {
        let mut runner = self.engine.runner()?;
        self.seq.discard_queued();
        let broken = runner.broken(&self.engine.shared.program, &self.seq, at);
        self.seq.cached = 0;
        runner.trim(&mut self.seq);
        Ok(broken.into())
    }

    /// As [`logits_each`](Self::logits_each), with the logits of the model's MTP block. It predicts the same
    /// token as the model, from the model's row of the position before.
    ///
    /// # Errors
    /// As [`logits_each`](Self::logits_each); [`Error::Option`] if no block is loaded.
    pub fn mtp_logits_each<E: From<Error>>(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        MtpDrafts::new(&self.engine)?;
        self.check(tokens)?;
        self.complete()?;
        let n_vocab = self.engine.hyper().n_vocab;
        let size = self.engine.max_rows().min(self.engine.max_outputs());
        for (step, tokens) in tokens.chunks(size).enumerate() {
            let mut logits = vec![0.0; tokens.len() * n_vocab];
            let known = self.append(tokens);
            let ran = self.step(tokens.len(), Ask::Nothing, |runner, _| runner.block_logits(&mut logits));
            if let Err(err) = ran {
                self.forget(known);
                return Err(err.into());
            }
            let mut rows = logits.chunks_exact(n_vocab).enumerate();
            rows.try_for_each(|(row, logits)| each(step * size + row, logits))?;
        }
        Ok(())
    }

    /// The `n` tokens that the model's MTP block drafts after the session's tokens and `next`, and the logits
    /// of each, `[n, n_vocab]`. The session does not change. Empty if the last token was not fed by a step of
    /// this session.
    ///
    /// # Errors
    /// [`Error::Option`] if no block is loaded; [`Error::ContextFull`]; [`Error::Token`];
    /// [`Error::OutOfPages`]; [`Error::Backend`].
    pub fn mtp_draft(&mut self, next: u32, n: usize) -> Result<(Vec<u32>, Vec<f32>), Error> {
        MtpDrafts::new(&self.engine)?;
        self.check(&vec![next; n])?;
        self.complete()?;
        let (slot, position) = (self.slot(), self.position());
        let mut runner = self.engine.runner()?;
        if !runner.pages.grow(slot, position + n) {
            let (need, free) = (pages_for(position + n), runner.pages.n_free());
            return Err(Error::OutOfPages { need, free });
        }
        let mut chain = [Chain::with_logits(slot, (position, next), n)];
        runner.draft(&mut chain)?;
        let [chain] = chain;
        Ok(chain.into_logits())
    }

    /// Drops every token from `position` on, and all of an image that would be cut. Later tokens are then as
    /// if the session had never gone further. With a windowed KV codec (`turboquant`) that holds for cuts by
    /// up to [`KvWindow::newest`](sterna_program::KvWindow::newest) positions; after a longer cut, older
    /// positions stay quantised as they were.
    ///
    /// If layers keep only a sliding window, a cut by more than 64 positions may need positions before the
    /// window: the next step then recomputes all tokens from the first. With
    /// [`EngineOptions::swa_full`](super::EngineOptions::swa_full) it never has to.
    ///
    /// # Panics
    /// If `position` is beyond the session's own.
    pub fn cut_back(&mut self, position: usize) {
        assert!(position <= self.position(), "cut back to {position} of {}", self.position());
        self.seq.discard_queued();
        self.seq.truncate(position);
        // While a batch uses the pages, the next step of the session releases them.
        if let Ok(mut runner) = self.engine.runner() {
            runner.trim(&mut self.seq);
        }
    }

    /// A second session that has seen the first `position` tokens of this one. The two share full pages and
    /// then diverge, each as if it were alone, within the limits of [`cut_back`](Self::cut_back).
    ///
    /// # Errors
    /// As [`Engine::session`]; [`Error::Backend`].
    ///
    /// # Panics
    /// If `position` is beyond the session's own.
    pub fn branch(&self, position: usize) -> Result<Self, Error> {
        assert!(position <= self.position(), "a branch at {position} of {}", self.position());
        let mut branch = self.engine.new_session(Arc::clone(&self.seq.adapters))?;
        self.engine.runner()?.fork(&self.seq, &mut branch.seq, position)?;
        if self.has_images() {
            branch.seq.images.clone_from(&self.seq.images);
            branch.cut_back(position);
        }
        Ok(branch)
    }

    /// Adds a token that was fed to the model to the recent ones.
    pub(super) fn accept(&mut self, token: u32) {
        self.seq.sampler.accept(token);
    }

    /// The logits of the last sampled token if they were kept, `[n_vocab]`, unchanged from the model.
    pub(super) fn last_logits(&self) -> &[f32] {
        &self.logits
    }

    /// Runs the steps for `tokens`, the last of them with `ask`. After an error the session keeps those of
    /// the tokens whose steps ran.
    fn feed(&mut self, tokens: &[u32], ask: Ask) -> Result<(), Error> {
        let known = self.append(tokens);
        let ran = self.steps(ask);
        if ran.is_err() {
            self.forget(known);
        }
        ran
    }

    fn steps(&mut self, ask: Ask) -> Result<(), Error> {
        loop {
            let most = self.engine.max_rows();
            let n = {
                let mut runner = self.engine.runner()?;
                runner.trim(&mut self.seq);
                let (cached, len) = (self.seq.cached, self.seq.tokens.len());
                runner.pages.rows_up_to_kept(cached, len, self.rows_of_step(most)?)
            };
            let missing = self.seq.missing();
            match n {
                0 => return Ok(()),
                n if n == missing => return self.last_step(n, ask),
                n => self.step(n, Ask::Nothing, |_, _| Ok(()))?,
            }
        }
    }

    /// Runs a step, and reads its logits if the host needs them.
    fn last_step(&mut self, n: usize, ask: Ask) -> Result<(), Error> {
        let mut logits = std::mem::take(&mut self.logits);
        let ran = self.step(n, ask, |runner, seq| {
            let is_read = match ask {
                Ask::Pick => runner.picked_by(seq) == PickedBy::Host,
                Ask::Logits | Ask::PickAndLogits => true,
                Ask::Nothing | Ask::Rows | Ask::All | Ask::Verify => false,
            };
            if is_read { runner.logits(0, &mut logits) } else { Ok(()) }
        });
        self.logits = logits;
        ran
    }

    /// Computes keys and values that are missing after a cut or in a branch.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        self.feed(&[], Ask::Nothing)
    }

    /// Returns the number of tokens before.
    fn append(&mut self, tokens: &[u32]) -> usize {
        self.seq.discard_queued();
        let known = self.position();
        self.seq.tokens.extend_from_slice(tokens);
        known
    }

    /// Drops the tokens from `known` on that are not in the cache.
    fn forget(&mut self, known: usize) {
        self.seq.discard_queued();
        self.seq.truncate(known.max(self.seq.cached));
    }

    /// Runs one step and reads its results before another session's step overwrites them.
    fn step(
        &mut self,
        n: usize,
        ask: Ask,
        after: impl FnOnce(&mut Runner, &Sequence) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut runner = self.engine.runner()?;
        step(&mut runner, &mut self.seq, n, ask)?;
        after(&mut runner, &self.seq)
    }

    pub(super) fn check_some(&self, tokens: &[u32]) -> Result<(), Error> {
        match tokens.is_empty() {
            true => Err(Error::EmptyPrompt),
            false => self.check(tokens),
        }
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.len() > self.remaining() {
            let (n_ctx, used) = (self.engine.n_ctx(), self.position());
            return Err(Error::ContextFull { n_ctx, used, more: tokens.len() });
        }
        self.engine.check_tokens(tokens)
    }
}

/// Runs a step of one sequence: its next `n` rows.
fn step(runner: &mut Runner, seq: &mut Sequence, n: usize, ask: Ask) -> Result<(), Error> {
    let slot = seq.slot.expect("a session has a slot until it is dropped");
    runner.trim(seq);
    if !runner.pages.grow(slot, seq.cached + n) {
        let (need, free) = (pages_for(seq.cached + n), runner.pages.n_free());
        return Err(Error::OutOfPages { need, free });
    }
    runner.begin();
    runner.push(seq, n, ask);
    match runner.run() {
        Ok(()) => runner.ran(seq, n, ask),
        Err(err) => {
            runner.undo(seq);
            return Err(err);
        }
    }
    Ok(())
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.runner_slot().end_session(self.slot());
    }
}
