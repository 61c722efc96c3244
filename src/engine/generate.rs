//! Text from a session, piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::stop::StopStrings;
use super::{Sampler, SamplerOptions, Session, Stats};
use crate::error::Error;
use crate::tokenizer::Utf8Stream;

/// How to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How each token is picked.
    pub sampler: SamplerOptions,
    /// Most tokens to pick; no limit but the context where there is none.
    pub max_tokens: Option<usize>,
    /// Generation ends before any of these; they may span tokens and are not shown.
    pub stop: Vec<String>,
    /// Forbid the end-of-text and end-of-turn tokens.
    pub ignore_eos: bool,
    /// Also show control tokens as text.
    pub show_special: bool,
    /// Looked at between steps; `true` ends the generation.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model said that its text or turn ends.
    EndOfText,
    /// A stop string was met.
    StopString,
    /// [`GenerateOptions::max_tokens`] were picked.
    Limit,
    /// The session has no position left.
    ContextFull,
    /// [`GenerateOptions::cancel`] was set.
    Cancelled,
}

/// An iterator of pieces of text, each whole characters and none empty. After `None`,
/// [`stop_reason`](Self::stop_reason) says why it ended.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut Session,
    sampler: Sampler,
    utf8: Utf8Stream,
    show_special: bool,
    stops: StopStrings,
    max_tokens: usize,
    cancel: Option<Arc<AtomicBool>>,
    /// Tokens that the model has still to see.
    pending: Vec<u32>,
    picked: Vec<u32>,
    /// When the first token was picked.
    start: Instant,
    stats: Stats,
    end: Option<StopReason>,
}

impl<'s> Generation<'s> {
    pub(super) fn new(
        session: &'s mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Self, Error> {
        let tokenizer = session.engine().tokenizer()?;
        let mut sampling = options.sampler.clone();
        if options.ignore_eos {
            sampling.logit_bias.extend(tokenizer.eog().map(|id| (id, f32::NEG_INFINITY)));
        }
        let mut sampler = Sampler::new(sampling)?;
        session.tokens().iter().for_each(|&token| sampler.accept(token));
        Ok(Self {
            sampler,
            utf8: Utf8Stream::default(),
            show_special: options.show_special,
            stops: StopStrings::new(&options.stop),
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            cancel: options.cancel.clone(),
            pending: prompt.to_vec(),
            picked: Vec::new(),
            start: Instant::now(),
            stats: Stats { prompt_tokens: prompt.len(), ..Stats::default() },
            end: None,
            session,
        })
    }

    /// Why it ended; `None` while it goes on.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.end
    }

    /// Tokens picked so far, an end-of-text token included.
    pub fn tokens(&self) -> &[u32] {
        &self.picked
    }

    /// Counts and times so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The seed: the given one, or the random one that was taken.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// The session, which has seen what was generated but for the last token.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Shows the model all of the prompt but its last token, which the first piece of text would do otherwise. `false` where it was
    /// cancelled meanwhile.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn prefill(&mut self) -> Result<bool, Error> {
        let begun = Instant::now();
        let size = self.session.engine().max_rows();
        while self.pending.len() > 1 {
            if self.cancelled() {
                return Ok(false);
            }
            self.feed(size.min(self.pending.len() - 1))?;
        }
        self.stats.prompt_time += begun.elapsed();
        Ok(true)
    }

    /// Shows the model the first tokens of what is pending.
    fn feed(&mut self, n: usize) -> Result<(), Error> {
        self.session.feed_quietly(&self.pending[..n])?;
        self.pending.drain(..n).for_each(|token| self.sampler.accept(token));
        Ok(())
    }

    /// Picks one token and returns the text that may be shown now, which may be none.
    fn advance(&mut self) -> Result<String, Error> {
        if let Some(reason) = self.due() {
            return Ok(self.finish(reason));
        }
        let Some(token) = self.pick()? else { return Ok(self.finish(StopReason::Cancelled)) };
        let tokenizer = self.session.engine().tokenizer()?;
        if tokenizer.is_eog(token) {
            return Ok(self.finish(StopReason::EndOfText));
        }
        let piece = self.utf8.push(tokenizer.shown_bytes(token, self.show_special));
        let (text, stopped) = self.stops.push(piece);
        if stopped {
            self.end = Some(StopReason::StopString);
        }
        Ok(text)
    }

    /// Why it must end before another token is picked.
    fn due(&self) -> Option<StopReason> {
        if self.cancelled() {
            Some(StopReason::Cancelled)
        } else if self.picked.len() >= self.max_tokens {
            Some(StopReason::Limit)
        } else if self.pending.len() > self.session.remaining() {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    /// Shows the model what is pending and picks the next token; `None` where it was cancelled meanwhile.
    fn pick(&mut self) -> Result<Option<u32>, Error> {
        let (first, begun) = (self.picked.is_empty(), Instant::now());
        if !first {
            self.stats.generate_bytes += self.session.engine().decode_cost(self.session.position()).bytes();
        }
        let size = self.session.engine().max_rows();
        while self.pending.len() > size {
            self.feed(size)?;
            if self.cancelled() {
                return Ok(None);
            }
        }
        let goes_on = self.picked.len() + 1 < self.max_tokens;
        let token = self.session.pick(&self.pending, &mut self.sampler, goes_on)?;
        self.pending.clear();
        self.pending.push(token);
        self.picked.push(token);
        self.stats.generated_tokens += 1;
        if first {
            self.stats.prompt_time += begun.elapsed();
            self.start = Instant::now();
        } else {
            self.stats.generate_time = self.start.elapsed();
        }
        Ok(Some(token))
    }

    /// Ends, and returns all text that was held back.
    fn finish(&mut self, reason: StopReason) -> String {
        self.end = Some(reason);
        let (mut text, stopped) = self.stops.push(self.utf8.finish());
        if stopped {
            self.end = Some(StopReason::StopString);
        } else {
            text += &self.stops.flush();
        }
        text
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.end.is_none() {
            match self.advance() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => return Some(Ok(text)),
                Err(err) => {
                    self.end = Some(StopReason::Cancelled);
                    return Some(Err(err));
                }
            }
        }
        None
    }
}
