//! Turns sampled tokens into events: ids, bytes, whole characters of text, log-probabilities, and the stop
//! reason.

use super::fault::Fault;
use super::logprobs::LogProbs;
use super::options::GenerateOptions;
use super::stop::{ControlStops, StopStrings};
use sterna_tokenizer::{Tokenizer, Utf8Stream};

/// Reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its text or turn, or the grammar allows nothing further.
    EndOfText,
    /// A stop string was found.
    StopString,
    /// [`GenerateOptions::max_tokens`] tokens were sampled.
    Limit,
    /// No position is left in the context.
    ContextFull,
    /// It was cancelled.
    Cancelled,
    /// Its grammar failed; see [`Event::fault`].
    Constraint,
    /// The model's logits are NaN or infinite; see [`Event::fault`].
    BrokenLogits,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct PickedToken {
    /// Its id.
    pub id: u32,
    /// Its bytes, also for a control token. They may be a part of a character.
    pub bytes: Vec<u8>,
    /// Log-probabilities, if [`GenerateOptions::logprobs`] requests them.
    pub logprobs: Option<LogProbs>,
}

/// Result of a step for one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The sampled token; `None` if the sequence ended without one.
    pub token: Option<PickedToken>,
    /// Text to show now: whole characters, may be empty. Text can come later than its tokens, because
    /// incomplete characters and possible beginnings of stop strings are held back.
    pub text: String,
    /// Reason why the sequence ended, if it did.
    pub end: Option<StopReason>,
    /// True if the token only ended the text, and is no part of it.
    pub ends_text: bool,
    /// Fault of the sequence, if it failed.
    pub fault: Option<Fault>,
}

/// Turns the tokens of one sequence into events.
#[derive(Clone, Debug)]
pub struct Decoder {
    utf8: Utf8Stream,
    stops: StopStrings,
    /// Stop strings that are a single control token, if control tokens are not shown and so never in the
    /// text.
    hidden_stops: Vec<u32>,
    /// Stop strings that begin with a control token and continue with text.
    control_stops: ControlStops,
    show_stop: bool,
    show_special: bool,
    past_eos: bool,
    stop_tokens: Vec<u32>,
    min_tokens: usize,
    max_tokens: usize,
    n_tokens: usize,
}

impl Decoder {
    /// A decoder for the tokens after `prompt`. If the prompt ends within a character, that character is
    /// shown together with the tokens that complete it, so a text can be continued after any of its tokens.
    pub fn new(tokenizer: &Tokenizer, prompt: &[u32], options: &GenerateOptions) -> Self {
        let control = |text: &str| tokenizer.token_id(text).filter(|&id| tokenizer.is_special(id));
        let hidden = |stop: &String| control(stop);
        let begins = |stop: &String| {
            let ends = stop.char_indices().skip(1).map(|(at, _)| stop.split_at(at));
            ends.filter_map(|(token, text)| Some((control(token)?, text.to_owned()))).last()
        };
        let control_stops = match options.show_special {
            true => Vec::new(),
            false => options.stop.iter().filter_map(begins).collect(),
        };
        let hidden_stops = match options.show_special {
            true => Vec::new(),
            false => options.stop.iter().filter_map(hidden).collect(),
        };
        Self {
            utf8: tokenizer.utf8_after(prompt, options.show_special),
            stops: StopStrings::new(&options.stop, options.show_stop),
            hidden_stops,
            control_stops: ControlStops::new(control_stops),
            show_stop: options.show_stop,
            show_special: options.show_special,
            past_eos: options.past_eos,
            stop_tokens: options.stop_tokens.clone(),
            min_tokens: options.min_tokens,
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            n_tokens: 0,
        }
    }

    /// Number of tokens taken so far.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Number of further tokens before the sequence ends.
    pub fn remaining(&self) -> usize {
        self.max_tokens - self.n_tokens
    }

    /// Takes a sampled token.
    ///
    /// # Panics
    /// If [`remaining`](Self::remaining) is 0.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprobs: Option<LogProbs>) -> Event {
        assert!(self.remaining() > 0, "a token after the last");
        self.n_tokens += 1;
        let bytes = tokenizer.shown_bytes(id, true).to_vec();
        let token = Some(PickedToken { id, bytes, logprobs });
        if !self.past_eos && tokenizer.is_eog(id) || self.stop_tokens.contains(&id) {
            return Event { token, ends_text: true, ..self.finish(StopReason::EndOfText) };
        }
        if self.n_tokens >= self.min_tokens && self.hidden_stops.contains(&id) {
            let mut last = self.finish(StopReason::StopString);
            if self.show_stop {
                last.text += &String::from_utf8_lossy(tokenizer.token_bytes(id));
            }
            return Event { token, ends_text: !self.show_stop, ..last };
        }
        let piece = self.utf8.push(tokenizer.shown_bytes(id, self.show_special));
        let piece = match !self.show_special && tokenizer.is_special(id) {
            true => self.control_stops.control(id) + piece,
            false => match self.control_stops.push(piece) {
                Ok(piece) => piece,
                Err(_) if self.n_tokens < self.min_tokens => self.control_stops.flush(),
                Err(met) => return self.stopped_after_control(tokenizer, token, &met),
            },
        };
        let (text, stopped) = match self.n_tokens < self.min_tokens {
            true => (piece, false),
            false => self.stops.push(&piece),
        };
        if stopped {
            let end = Some(StopReason::StopString);
            return Event { token, text, end, ends_text: false, fault: None };
        }
        match self.remaining() {
            0 => {
                let last = self.finish(StopReason::Limit);
                Event { token, text: text + &last.text, ..last }
            }
            _ => Event { token, text, end: None, ends_text: false, fault: None },
        }
    }

    /// Ends the sequence at a stop string that consists of a control token and the text `met`.
    fn stopped_after_control(
        &mut self,
        tokenizer: &Tokenizer,
        token: Option<PickedToken>,
        met: &str,
    ) -> Event {
        let control = self.control_stops.begun();
        self.control_stops.flush();
        let mut text = self.stops.flush();
        if let Some(control) = control.filter(|_| self.show_stop) {
            text += &String::from_utf8_lossy(tokenizer.token_bytes(control));
            text += met;
        }
        Event { token, text, end: Some(StopReason::StopString), ends_text: false, fault: None }
    }

    /// Ends the sequence without a token, and returns all text that was held back.
    pub fn finish(&mut self, reason: StopReason) -> Event {
        let rest = self.control_stops.flush() + self.utf8.finish();
        let (mut text, stopped) = self.stops.push(&rest);
        if !stopped {
            text += &self.stops.flush();
        }
        let end = Some(if stopped { StopReason::StopString } else { reason });
        Event { token: None, text, end, ends_text: false, fault: None }
    }

    /// Ends the sequence because it failed.
    pub fn fail(&mut self, fault: Fault) -> Event {
        let reason = match fault {
            Fault::Constraint(_) => StopReason::Constraint,
            Fault::BrokenLogits(_) => StopReason::BrokenLogits,
        };
        Event { end: Some(reason), fault: Some(fault), ..self.finish(reason) }
    }

    /// Ends the sequence with the token of `event`, because nothing can follow it. `EndOfText` takes
    /// precedence over `Limit`.
    pub(super) fn complete(&mut self, event: &mut Event) {
        match event.end {
            None => {
                let last = self.finish(StopReason::EndOfText);
                event.text += &last.text;
                event.end = last.end;
            }
            Some(StopReason::Limit) => event.end = Some(StopReason::EndOfText),
            Some(_) => {}
        }
    }
}
