//! Streaming text generation in a session.

use super::decoder::{Decoder, Event, StopReason};
use super::error::Error;
use super::logprobs::LogProbs;
use super::options::GenerateOptions;
use super::session::Session;
use super::speculate::OwnDrafts;
use super::stats::Stats;
use sterna_host::clock::Instant;

/// An iterator over pieces of text, each of whole characters and never empty;
/// [`next_event`](Self::next_event) also returns the tokens. After `None`, [`stop_reason`](Self::stop_reason)
/// gives the reason of the end.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut Session,
    options: GenerateOptions,
    decoder: Decoder,
    /// Tokens to be fed to the model.
    pending: Vec<u32>,
    picked: Vec<u32>,
    drafts: Option<OwnDrafts>,
    /// Time at which the first token was sampled.
    start: Instant,
    stats: Stats,
    end: Option<StopReason>,
}

impl Session {
    /// Feeds `prompt` to the model and streams the generated text: an iterator over pieces of text.
    ///
    /// # Errors
    /// [`Error::ContextFull`], [`Error::Token`] and [`Error::EmptyPrompt`] before anything runs;
    /// [`Error::Tokenizer`] if the file has no usable vocabulary; [`Error::Sampler`].
    pub fn generate(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<Generation<'_>, Error> {
        self.check_some(prompt)?;
        Generation::new(self, prompt, options)
    }
}

impl<'s> Generation<'s> {
    fn new(session: &'s mut Session, prompt: &[u32], options: &GenerateOptions) -> Result<Self, Error> {
        let n_before = session.tokens().len() + prompt.len();
        let tokenizer = session.engine().tokenizer()?;
        let mut sampler = options.sampler(tokenizer, n_before)?;
        let decoder = Decoder::new(tokenizer, prompt, options);
        session.text().for_each(|token| sampler.accept(token));
        session.set_sampler(sampler);
        let drafts = match options.speculation.as_deref().filter(|_| session.engine().shared.drafts > 0) {
            Some(speculation) => {
                let is_device = session.engine().runner()?.is_device();
                Some(OwnDrafts::start(speculation, is_device)?)
            }
            None => None,
        };
        Ok(Self {
            decoder,
            options: options.clone(),
            pending: prompt.to_vec(),
            picked: Vec::new(),
            drafts,
            start: Instant::now(),
            stats: Stats { prompt_tokens: session.n_missing() + prompt.len(), ..Stats::default() },
            end: None,
            session,
        })
    }

    /// Reason of its end; `None` while it is running.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.end
    }

    /// Tokens sampled so far, including an end-of-text token.
    pub fn tokens(&self) -> &[u32] {
        &self.picked
    }

    /// Counters and times so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        self.drafts.iter().for_each(|drafts| stats.add(&drafts.stats));
        stats
    }

    /// The sampling seed: the given one, or else the random one that was drawn.
    pub fn seed(&self) -> u64 {
        self.session.sampler().seed()
    }

    /// The session that it runs in.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Prefills all of the prompt but its last token. Otherwise the first piece of text does so. `false` if
    /// it was cancelled meanwhile.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill(&mut self) -> Result<bool, Error> {
        let begun = Instant::now();
        let done = self.feed_all_but(1)?;
        self.stats.prompt_time += begun.elapsed();
        Ok(done)
    }

    /// Samples one token and returns its event; `None` after the end.
    pub fn next_event(&mut self) -> Option<Result<Event, Error>> {
        if self.end.is_some() {
            return None;
        }
        let event = self.advance();
        self.end = match &event {
            Ok(event) => event.end,
            Err(_) => Some(StopReason::Cancelled),
        };
        Some(event)
    }

    fn advance(&mut self) -> Result<Event, Error> {
        if let Some(reason) = self.due() {
            return Ok(self.decoder.finish(reason));
        }
        let token = match self.pick() {
            Ok(Some(token)) => token,
            Ok(None) => return Ok(self.decoder.finish(StopReason::Cancelled)),
            Err(Error::Constraint(fault)) => return Ok(self.decoder.fail(fault.into())),
            Err(Error::BrokenLogits(fault)) => return Ok(self.decoder.fail(fault.into())),
            Err(err) => return Err(err),
        };
        let logprobs = self.options.logprobs.map(|n| LogProbs::of(self.session.last_logits(), token, n));
        let tokenizer = self.session.engine().tokenizer()?;
        let mut event = self.decoder.push(tokenizer, token, logprobs);
        if self.session.is_done() {
            self.decoder.complete(&mut event);
        }
        Ok(event)
    }

    /// Reason to end before another token is sampled, if any.
    fn due(&self) -> Option<StopReason> {
        if self.options.is_cancelled() {
            Some(StopReason::Cancelled)
        } else if self.decoder.remaining() == 0 {
            Some(StopReason::Limit)
        } else if self.pending.len() > self.session.remaining() {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }

    /// Feeds the pending tokens to the model, step by step, except for the last `rest` tokens; `false` if it
    /// was cancelled meanwhile.
    fn feed_all_but(&mut self, rest: usize) -> Result<bool, Error> {
        let most = self.session.engine().max_rows();
        while self.pending.len() > rest {
            if self.options.is_cancelled() {
                return Ok(false);
            }
            let n = most.min(self.pending.len() - rest);
            self.session.prefill(&self.pending[..n])?;
            self.pending.drain(..n).for_each(|token| self.session.accept(token));
        }
        Ok(true)
    }

    /// Feeds the pending tokens and samples the next token; `None` if it was cancelled meanwhile.
    fn pick(&mut self) -> Result<Option<u32>, Error> {
        let (first, begun) = (self.picked.is_empty(), Instant::now());
        if !first && !self.session.is_ahead() {
            self.stats.generate_bytes += self.session.engine().decode_cost(self.session.position()).bytes();
        }
        let most = self.session.engine().max_rows();
        // The last step has up to `most` tokens and samples.
        let last = (self.pending.len() - 1) % most + 1;
        if !self.feed_all_but(last)? || self.options.is_cancelled() {
            return Ok(None);
        }
        let (more, logprobs) = (self.decoder.remaining() - 1, self.options.logprobs.is_some());
        let token = self.session.pick(&self.pending, more, logprobs, self.drafts.as_mut())?;
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
}

impl Iterator for Generation<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_event()? {
                Ok(Event { fault: Some(fault), .. }) => return Some(Err(fault.into())),
                Ok(event) if event.text.is_empty() => {}
                Ok(event) => return Some(Ok(event.text)),
                Err(err) => return Some(Err(err)),
            }
        }
    }
}
