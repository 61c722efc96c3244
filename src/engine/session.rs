//! One sequence: its tokens, its slot, and how it grows and is cut back.

use super::{Core, Engine, GenerateOptions, Generation, Sampler, Wanted};
use crate::error::Error;
use crate::program::{Buf, Row, Sampling};

/// One sequence of an engine. Dropping it gives its slot and pages back.
///
/// A session holds the tokens that the model has seen; [`tokens`](Self::tokens) are those whose keys and values are in
/// the cache, but for the last few after a cut or in a branch, which the next step brings there.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    slot: u32,
    tokens: Vec<u32>,
    /// How many of the tokens have their keys and values in the cache.
    cached: usize,
    logits: Vec<f32>,
    /// The step that is queued behind the last one, if one is. It belongs to no position until its token is fed: any other
    /// step overwrites what it left in the cache.
    ahead: Option<Ahead>,
}

/// A step that was queued before the host knew its token.
#[derive(Debug)]
struct Ahead {
    /// The token that it turned out to be fed with.
    token: u32,
    /// How it picks the next one.
    sampling: Sampling,
}

impl Session {
    pub(super) fn new(engine: Engine, slot: u32) -> Self {
        let tokens = Vec::with_capacity(engine.n_ctx());
        let logits = vec![0.0; engine.hyper().n_vocab];
        Self { engine, slot, tokens, cached: 0, logits, ahead: None }
    }

    /// A session whose keys and values lie in the pages of its slot.
    pub(super) fn of_pages(mut self, tokens: &[u32]) -> Self {
        self.tokens.extend_from_slice(tokens);
        self.cached = tokens.len();
        self
    }

    /// Its slot.
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// The engine it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokens the model has seen, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Where the next token goes: the number of tokens seen.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Positions that are left.
    pub fn remaining(&self) -> usize {
        self.engine.n_ctx() - self.tokens.len()
    }

    /// Shows the model `tokens`, in batches, and returns the logits that follow the last, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::Token`] before anything runs; [`Error::EmptyPrompt`] for no
    /// tokens; [`Error::Backend`]. After that last one the session keeps the batches that ran.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let mut logits = std::mem::take(&mut self.logits);
        let fed = self.feed_last(tokens, None, |core, buf| core.read(buf, 0, &mut logits));
        self.logits = logits;
        fed.map(|()| self.logits.as_slice())
    }

    /// Shows the model `tokens` without asking for logits.
    ///
    /// # Errors
    /// As [`feed`](Self::feed); no tokens are no error.
    pub fn feed_quietly(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        for batch in tokens.chunks(self.engine.max_rows()) {
            self.run(batch, Wanted::None, None, |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// Shows the model `tokens` and hands the logits after each to `each`: its index in `tokens`, and
    /// `[n_vocab]`. Batches are of at most [`EngineOptions::outputs`](super::EngineOptions::outputs).
    ///
    /// # Errors
    /// As [`feed`](Self::feed), and whatever `each` returns, at once.
    pub fn feed_each<E: From<Error>>(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check(tokens)?;
        let size = self.engine.max_rows().min(self.engine.max_outputs());
        let n_vocab = self.engine.hyper().n_vocab;
        let mut logits = vec![0.0; size.min(tokens.len()) * n_vocab];
        for (batch_index, batch) in tokens.chunks(size).enumerate() {
            let logits = &mut logits[..batch.len() * n_vocab];
            self.run(batch, Wanted::All, None, |core, buf| core.read(buf, 0, logits))?;
            for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
                each(batch_index * size + row, logits)?;
            }
        }
        Ok(())
    }

    /// Shows the model `tokens` and picks the token that follows, which is remembered as recent but not
    /// yet seen. The backend picks where the sampler leaves the logits alone; the result is the same.
    ///
    /// # Errors
    /// As [`feed`](Self::feed).
    pub fn feed_and_pick(&mut self, tokens: &[u32], sampler: &mut Sampler) -> Result<u32, Error> {
        self.pick(tokens, sampler, false)
    }

    /// Shows the model `tokens`, picks the token that follows and shows it that one, and so on, until `n` are picked, whatever
    /// they are; returns the last. The steps are those of [`generate`](Self::generate), ahead of the host where the backend can.
    ///
    /// # Errors
    /// As [`feed`](Self::feed); [`Error::ContextFull`] comes when the context is full.
    ///
    /// # Panics
    /// Where `n` is 0.
    pub fn feed_and_pick_many(
        &mut self,
        tokens: &[u32],
        n: usize,
        sampler: &mut Sampler,
    ) -> Result<u32, Error> {
        assert!(n > 0, "at least one token is picked");
        let mut token = self.pick(tokens, sampler, n > 1)?;
        for left in (0..n - 1).rev() {
            token = self.pick(&[token], sampler, left > 0)?;
        }
        Ok(token)
    }

    /// As [`feed_and_pick`](Self::feed_and_pick). Where it `goes_on`, so that the token will be fed and another one picked the
    /// same way unless something ends the text, a backend that runs ahead gets that step before this one's token is waited for.
    pub(super) fn pick(
        &mut self,
        tokens: &[u32],
        sampler: &mut Sampler,
        goes_on: bool,
    ) -> Result<u32, Error> {
        tokens.iter().for_each(|&token| sampler.accept(token));
        let position = self.position() + tokens.len();
        if sampler.changes_logits() {
            self.feed(tokens)?;
            return Ok(sampler.pick(&mut self.logits, position));
        }
        let sampling = sampler.sampling(position);
        if !self.engine.runs_ahead(&sampling) {
            return self.feed_last(tokens, Some(sampler), |core, _| core.sampled());
        }
        match self.ahead.take() {
            Some(ahead) if *tokens == [ahead.token] && ahead.sampling == sampling => {
                self.tokens.push(ahead.token);
                self.cached = self.tokens.len();
            }
            _ => self.feed_last(tokens, Some(sampler), |_, _| Ok(()))?,
        }
        let goes_on = goes_on && position < self.engine.n_ctx();
        let next = goes_on.then(|| sampler.sampling(position + 1));
        let mut core = self.engine.core();
        if let Some(next) = next {
            core.step(self.slot, position, &[Row::PICKED], Wanted::Last, Some(next))?;
        }
        let token = core.picked(self.slot, usize::from(goes_on))?;
        drop(core);
        self.ahead = next.map(|sampling| Ahead { token, sampling });
        Ok(token)
    }

    /// Forgets every token from `position` on. Later tokens are then as if the session had never gone
    /// further; with a windowed KV codec (`turboquant`) that holds for cuts by up to [`KvWindow::newest`](crate::program::KvWindow::newest) positions, and
    /// beyond these, older positions stay as coarse as they were.
    ///
    /// # Panics
    /// Where `position` lies beyond the session's own.
    pub fn cut_back(&mut self, position: usize) {
        assert!(position <= self.tokens.len(), "cut back to {position} of {}", self.tokens.len());
        self.ahead = None;
        self.tokens.truncate(position);
        self.cached = self.engine.core().pages.cut_back(self.slot, position.min(self.cached));
    }

    /// A second session that has seen the first `position` tokens of this one. The two share the pages that are full,
    /// and go on apart, each as if it had been alone, within the bounds of [`cut_back`](Self::cut_back).
    ///
    /// # Errors
    /// As [`Engine::session`].
    ///
    /// # Panics
    /// Where `position` lies beyond the session's own.
    pub fn branch(&self, position: usize) -> Result<Self, Error> {
        let tokens = &self.tokens[..position];
        let mut branch = self.engine.session()?;
        branch.tokens.extend_from_slice(tokens);
        let cached = position.min(self.cached);
        branch.cached = self.engine.core().pages.share(self.slot, branch.slot, cached);
        Ok(branch)
    }

    /// Shows the model `prompt` and streams what it says: an iterator of pieces of text.
    ///
    /// # Errors
    /// [`Error::ContextFull`], [`Error::Token`] and [`Error::EmptyPrompt`] before anything runs;
    /// [`Error::Tokenizer`] where the file has no usable vocabulary; [`Error::Sampler`].
    pub fn generate(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation<'_>, Error> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.check(prompt)?;
        Generation::new(self, prompt, options)
    }

    /// Feeds all but the last batch quietly, and the last with logits or a pick for its last row.
    fn feed_last<T>(
        &mut self,
        tokens: &[u32],
        sampler: Option<&Sampler>,
        after: impl FnOnce(&mut Core, Buf) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.check(tokens)?;
        let size = self.engine.max_rows();
        let (quiet, last) = tokens.split_at((tokens.len() - 1) / size * size);
        self.feed_quietly(quiet)?;
        self.run(last, Wanted::Last, sampler, after)
    }

    /// Runs one step and reads what it left, before another session's step can overwrite it.
    fn run<T>(
        &mut self,
        batch: &[u32],
        wanted: Wanted,
        sampler: Option<&Sampler>,
        after: impl FnOnce(&mut Core, Buf) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.ahead = None;
        self.complete()?;
        let position = self.tokens.len();
        let sampling = sampler.map(|sampler| sampler.sampling(position + batch.len()));
        let mut core = self.engine.core();
        core.step(self.slot, position, batch, wanted, sampling)?;
        let result = after(&mut core, self.engine.shared.logits)?;
        self.tokens.extend_from_slice(batch);
        self.cached = self.tokens.len();
        Ok(result)
    }

    /// Computes the keys and values again that a cut or a branch left out, of less than a page.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        while self.cached < self.tokens.len() {
            let end = self.tokens.len().min(self.cached + self.engine.max_rows());
            let tokens = &self.tokens[self.cached..end];
            self.engine.core().step(self.slot, self.cached, tokens, Wanted::None, None)?;
            self.cached = end;
        }
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.len() > self.remaining() {
            let (n_ctx, used) = (self.engine.n_ctx(), self.tokens.len());
            return Err(Error::ContextFull { n_ctx, used, more: tokens.len() });
        }
        let n_vocab = self.engine.hyper().n_vocab;
        match tokens.iter().find(|&&token| token as usize >= n_vocab) {
            Some(&token) => Err(Error::Token { token, n_vocab }),
            None => Ok(()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.core().release(self.slot);
    }
}
