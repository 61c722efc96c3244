//! One sequence that its owner runs step by step: what it has seen, how it grows and is cut back.

use super::pages::pages_for;
use super::runner::{Ask, PickedBy, PickedFrom, Runner};
use super::sequence::Sequence;
use super::speculate::OwnDrafts;
use super::{Engine, Error, Sampler};
use sterna_host::clock::Instant;
use sterna_program::sampling::is_broken;

/// One sequence of an engine. Dropping it gives its slot and pages back.
///
/// A session holds the tokens that the model has seen; [`tokens`](Self::tokens) are those whose keys and
/// values are in the cache, but for the last few after a cut or in a branch, which the next step computes.
///
/// Sessions of one engine may run on several threads: they take turns, a step each. A [`Batch`](super::Batch)
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
    /// [`Error::InBatch`] while a [`Batch`](super::Batch)
    /// has the engine.
    pub fn session(&self) -> Result<Session, Error> {
        self.check_generates()?;
        let n_seqs = self.shared.program.limits.seqs;
        let slot = self.runner()?.free_slots.pop().ok_or(Error::NoSession { n_seqs })?;
        Session::new(self, slot)
    }
}

impl Session {
    fn new(engine: &Engine, slot: u32) -> Result<Self, Error> {
        let mut seq = Sequence::greedy()?;
        seq.tokens.reserve_exact(engine.n_ctx());
        seq.slot = Some(slot);
        let logits = vec![0.0; engine.hyper().n_vocab];
        Ok(Self { engine: engine.clone(), seq, logits })
    }

    /// A session whose first `cached` positions lie in the pages of its slot.
    pub(super) fn of_pages(mut self, tokens: &[u32], cached: usize) -> Self {
        self.seq.tokens.extend_from_slice(tokens);
        self.seq.cached = cached;
        self
    }

    /// Its slot.
    pub(super) fn slot(&self) -> u32 {
        self.seq.slot.expect("a session has a slot until it is dropped")
    }

    /// The engine it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokens the model has seen, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.seq.tokens
    }

    /// Position of the next token: the number of tokens seen.
    pub fn position(&self) -> usize {
        self.seq.tokens.len()
    }

    /// Positions whose keys and values are in the cache. After a cut these may be fewer than
    /// [`position`](Self::position): the next step computes the others.
    pub fn n_cached(&self) -> usize {
        self.seq.cached.min(self.position())
    }

    /// Positions that are left.
    pub fn remaining(&self) -> usize {
        self.engine.n_ctx() - self.position()
    }

    /// Sets the sampler by which [`decode`](Self::decode) picks tokens from now on; a new session picks the
    /// most likely one.
    pub fn set_sampler(&mut self, sampler: Sampler) {
        self.seq.discard_queued();
        self.seq.sampler = sampler;
    }

    /// True if its constraint says that nothing can follow the token that was picked last.
    pub(super) fn is_done(&self) -> bool {
        self.seq.ahead.is_empty() && self.seq.sampler.is_done()
    }

    /// True if the token that is picked next has been picked with the last one.
    pub(super) fn is_ahead(&self) -> bool {
        !self.seq.ahead.is_empty()
    }

    /// The sampler that picks its tokens.
    pub fn sampler(&self) -> &Sampler {
        &self.seq.sampler
    }

    /// Shows the model `tokens`, in steps of at most [`EngineOptions::batch`](super::EngineOptions::batch).
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::Token`] before anything runs; [`Error::OutOfPages`];
    /// [`Error::InBatch`]; [`Error::Backend`]. After these last the session keeps the steps that ran.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        self.feed(tokens, Ask::Nothing)
    }

    /// Shows the model `tokens` and returns the logits behind the last, `[n_vocab]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); [`Error::EmptyPrompt`] for no tokens; [`Error::BrokenLogits`].
    pub fn logits(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.check_some(tokens)?;
        self.feed(tokens, Ask::Logits)?;
        self.check_logits()?;
        Ok(&self.logits)
    }

    /// Shows the model `tokens` and hands the logits behind each to `each`: its index in `tokens`, and
    /// `[n_vocab]`. Steps are of at most [`EngineOptions::outputs`](super::EngineOptions::outputs) tokens.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill), and whatever `each` returns, at once; [`Error::BrokenLogits`].
    pub fn logits_each<E: From<Error>>(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check(tokens)?;
        self.complete()?;
        let n_vocab = self.engine.hyper().n_vocab;
        let size = self.engine.max_rows().min(self.engine.max_outputs());
        let mut logits = vec![0.0; size.min(tokens.len()) * n_vocab];
        for (step, tokens) in tokens.chunks(size).enumerate() {
            let logits = &mut logits[..tokens.len() * n_vocab];
            let known = self.append(tokens);
            if let Err(err) = self.step(tokens.len(), Ask::All, |runner, _| runner.logits(0, logits)) {
                self.forget(known);
                return Err(err.into());
            }
            for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
                if is_broken(logits) {
                    return Err(self.broken(known + row)?.into());
                }
                each(step * size + row, logits)?;
            }
        }
        Ok(())
    }

    /// Shows the model `tokens` and picks the token behind them, which the model has not seen yet. The
    /// backend picks where it can do what the sampler asks for; the result is the same.
    ///
    /// # Errors
    /// As [`logits`](Self::logits); [`Error::Constraint`].
    pub fn decode(&mut self, tokens: &[u32]) -> Result<u32, Error> {
        self.pick(tokens, 0, false, None)
    }

    /// Shows the model `tokens`, picks the token behind them, shows it that one, and so on until `n` are
    /// picked, whatever they are; returns the last. A backend that can runs ahead of the host.
    ///
    /// # Errors
    /// As [`decode`](Self::decode); [`Error::ContextFull`] comes when the context is full.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn decode_many(&mut self, tokens: &[u32], n: usize) -> Result<u32, Error> {
        assert!(n > 0, "at least one token is picked");
        let mut token = self.pick(tokens, n - 1, false, None)?;
        for left in (0..n - 1).rev() {
            token = self.pick(&[token], left, false, None)?;
        }
        Ok(token)
    }

    /// As [`decode`](Self::decode). If up to `more` tokens may be picked behind it the same way, each shown
    /// to the model unless something ends the text, a backend that runs ahead gets the next step before this
    /// one's token is read, or the step verifies what is drafted. What that picks behind the token comes with
    /// the next calls.
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
            let verified = if n > 0 { Some(self.verify(keeps_logits)?) } else { None };
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

    /// Drafts what may follow the tokens, up to `most`. Returns how many it has drafted.
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
        drafts.speculator.draft(&self.seq.tokens, most, &drafts.cost, 1, &mut self.seq.draft)?;
        if !self.seq.draft.is_empty() && !self.engine.runner()?.pages.keep_state(self.slot()) {
            self.seq.draft.clear();
        }
        Ok(self.seq.draft.len())
    }

    /// Picks tokens behind the step that ran, as far as its draft holds and one more. Returns the first.
    fn verify(&mut self, keeps_logits: bool) -> Result<u32, Error> {
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
                // It is picked again as the first of the next step, and what fails then fails there.
                Err(_) if i > 0 => break,
                Err(Some(fault)) => return Err(fault.into()),
                Err(None) => {
                    drop(runner);
                    return Err(self.broken(first - 1)?);
                }
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
        runner.settle(seq);
        Ok(seq.picked.expect("the first row picks"))
    }

    /// Checks that the logits which the host has read are numbers.
    fn check_logits(&mut self) -> Result<(), Error> {
        if is_broken(&self.logits) { Err(self.broken(self.position() - 1)?) } else { Ok(()) }
    }

    /// Finds out where the broken logits behind position `at` come from. What the cache holds is no use: the
    /// next step computes all tokens again.
    fn broken(&mut self, at: usize) -> Result<Error, Error> {
        let mut runner = self.engine.runner()?;
        self.seq.discard_queued();
        let broken = runner.broken(&self.engine.shared.program, &self.seq, at);
        self.seq.cached = 0;
        runner.trim(&mut self.seq);
        Ok(broken.into())
    }

    /// Forgets every token from `position` on. Later tokens are then as if the session had never gone
    /// further; with a windowed KV codec (`turboquant`) that holds for cuts by up to
    /// [`KvWindow::newest`](sterna_program::KvWindow::newest) positions, and beyond these, older positions
    /// stay as coarse as they were.
    ///
    /// Where layers keep a sliding window alone, a cut by more than 64 positions may need what has left it:
    /// the next step then computes all tokens again, from the first on. With
    /// [`EngineOptions::swa_full`](super::EngineOptions::swa_full) it never has to.
    ///
    /// # Panics
    /// If `position` lies beyond the session's own.
    pub fn cut_back(&mut self, position: usize) {
        assert!(position <= self.position(), "cut back to {position} of {}", self.position());
        self.seq.discard_queued();
        self.seq.tokens.truncate(position);
        self.seq.cached = self.seq.cached.min(position);
        // While a batch has the pages, the next step of the session gives them back.
        if let Ok(mut runner) = self.engine.runner() {
            runner.trim(&mut self.seq);
        }
    }

    /// A second session that has seen the first `position` tokens of this one. The two share the pages that
    /// are full, and go on apart, each as if it had been alone, within the bounds of
    /// [`cut_back`](Self::cut_back).
    ///
    /// # Errors
    /// As [`Engine::session`]; [`Error::Backend`].
    ///
    /// # Panics
    /// If `position` lies beyond the session's own.
    pub fn branch(&self, position: usize) -> Result<Self, Error> {
        assert!(position <= self.position(), "a branch at {position} of {}", self.position());
        let mut branch = self.engine.session()?;
        self.engine.runner()?.fork(&self.seq, &mut branch.seq, position)?;
        Ok(branch)
    }

    /// Counts a token that was shown to the model as recent.
    pub(super) fn accept(&mut self, token: u32) {
        self.seq.sampler.accept(token);
    }

    /// The logits of the last pick that was to keep them, `[n_vocab]`, as the model gave them.
    pub(super) fn last_logits(&self) -> &[f32] {
        &self.logits
    }

    /// Runs the steps that `tokens` want, the last of them with `ask`. After an error the session has seen,
    /// of these tokens, those of the steps that ran.
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
                runner.pages.rows_up_to_kept(cached, len, self.seq.missing().min(most))
            };
            let missing = self.seq.missing();
            match n {
                0 => return Ok(()),
                n if n == missing => return self.last_step(n, ask),
                n => self.step(n, Ask::Nothing, |_, _| Ok(()))?,
            }
        }
    }

    /// A step whose logits the host keeps if it is the host that needs them.
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

    /// Computes the keys and values that a cut or a branch left out.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        self.feed(&[], Ask::Nothing)
    }

    /// Returns how many tokens there were before.
    fn append(&mut self, tokens: &[u32]) -> usize {
        self.seq.discard_queued();
        let known = self.position();
        self.seq.tokens.extend_from_slice(tokens);
        known
    }

    /// Forgets the tokens from `known` on that are not in the cache.
    fn forget(&mut self, known: usize) {
        self.seq.discard_queued();
        self.seq.tokens.truncate(known.max(self.seq.cached));
    }

    /// Runs one step and reads what it left, before another session's step overwrites it.
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

/// A step of one sequence: its next `n` rows.
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
