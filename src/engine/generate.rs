//! Text from a session, piece by piece.

use super::logprobs::LogProbs;
use super::speculate::OwnDrafts;
use super::{Decoder, Error, Event, GenerateOptions, Session, Stats, StopReason};
use sterna_host::clock::Instant;

/// An iterator of pieces of text, each whole characters and none empty; [`next_event`](Self::next_event)
/// gives the tokens too. After `None`, [`stop_reason`](Self::stop_reason) says why it ended.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut Session,
    options: GenerateOptions,
    decoder: Decoder,
    /// Tokens that the model has still to see.
    pending: Vec<u32>,
    picked: Vec<u32>,
    drafts: Option<OwnDrafts>,
    /// When the first token was picked.
    start: Instant,
    stats: Stats,
    end: Option<StopReason>,
}

impl Session {
    /// Shows the model `prompt` and streams what it says: an iterator of pieces of text.
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
        session.tokens().iter().for_each(|&token| sampler.accept(token));
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
            stats: Stats { prompt_tokens: prompt.len(), ..Stats::default() },
            end: None,
            session,
        })
    }

    /// Reason of its end; `None` while it goes on.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.end
    }

    /// Tokens picked so far, an end-of-text token included.
    pub fn tokens(&self) -> &[u32] {
        &self.picked
    }

    /// Counts and times so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        self.drafts.iter().for_each(|drafts| stats.add(&drafts.stats));
        stats
    }

    /// The seed: the given one, or the random one that was taken.
    pub fn seed(&self) -> u64 {
        self.session.sampler().seed()
    }

    /// The session that it runs in.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Shows the model all of the prompt but its last token, which the first piece of text would do
    /// otherwise. `false` if it was cancelled meanwhile.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill(&mut self) -> Result<bool, Error> {
        let begun = Instant::now();
        let done = self.feed_all_but(1)?;
        self.stats.prompt_time += begun.elapsed();
        Ok(done)
    }

    /// Picks one token, and says what that does; `None` after the end.
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

    /// Reason why it must end before another token is picked.
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

    /// Shows the model what is pending, step by step, but for the last `rest` tokens; `false` if it was
    /// cancelled meanwhile.
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

    /// Shows the model what is pending and picks the next token; `None` if it was cancelled meanwhile.
    fn pick(&mut self) -> Result<Option<u32>, Error> {
        let (first, begun) = (self.picked.is_empty(), Instant::now());
        if !first && !self.session.is_ahead() {
            self.stats.generate_bytes += self.session.engine().decode_cost(self.session.position()).bytes();
        }
        let most = self.session.engine().max_rows();
        // The last step picks, of up to `most` tokens.
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
