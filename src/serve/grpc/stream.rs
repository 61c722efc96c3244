//! Converts the updates of a job to messages.
//!
//! Each message contains tokens and exactly their text. Tokens whose text is held back, because a character
//! is incomplete or may be the start of a stop string, wait for it. So a client that continues from the
//! tokens it has received, for instance on another worker, has lost no text.

use std::sync::Arc;

use prost_types::Struct;
use vllm_proto::candidate_token_info::TokenInfo;
use vllm_proto::finish_info::{FinishReason, StopReason as Stopped};
use vllm_proto::{CandidateTokenInfo, FinishInfo, GenerateResponse, PromptInfo, SequenceOutput};

use super::request::ParsedRequest;
use sterna_engine::{LogProbs, PickedToken, Stats, StopReason};
use sterna_serve::companion::{Instance, Update, finite};
use sterna_tokenizer::{Tokenizer, Utf8Stream};

/// Converter from updates to messages.
pub struct Messages {
    parsed: ParsedRequest,
    model: Arc<Instance>,
    choices: Vec<Choice>,
    scores: Vec<LogProbs>,
    /// True after the prompt's information has been sent.
    has_begun: bool,
}

/// A choice, and its part that has not been sent.
struct Choice {
    /// Decodes the tokens' bytes; `written` is the resulting text, shown or not.
    utf8: Utf8Stream,
    written: String,
    /// Bytes of the text that have been sent.
    shown: usize,
    waiting: SequenceOutput,
    stats: Stats,
    has_ended: bool,
}

impl Messages {
    /// Messages of `model`'s answer to `parsed`.
    pub fn new(parsed: ParsedRequest, model: Arc<Instance>) -> Self {
        let choice = |index| Choice {
            utf8: model
                .served
                .tokenizer()
                .utf8_after(&parsed.job.prompts[0], parsed.job.options.show_special),
            written: String::new(),
            shown: 0,
            waiting: SequenceOutput { index, ..SequenceOutput::default() },
            stats: Stats::default(),
            has_ended: false,
        };
        let choices = (0..parsed.job.n as u32).map(choice).collect();
        Self { parsed, model, choices, scores: Vec::new(), has_begun: false }
    }

    /// The message for an update, if one is due.
    pub fn take(&mut self, update: Update) -> Option<GenerateResponse> {
        let (index, event, stats, ticket) = match update {
            Update::Progress { .. } | Update::Vector { .. } => return None,
            Update::Scores { scores, .. } => {
                self.scores = scores;
                return None;
            }
            Update::Event { choice, event, stats, ticket, .. } => (choice, event, stats, ticket),
        };
        let tokenizer = self.model.served.tokenizer();
        let options = &self.parsed.job.options;
        let choice = &mut self.choices[index];
        choice.stats = stats;
        choice.shown += event.text.len();
        if let Some(token) = &event.token {
            if !event.ends_text {
                choice.written += choice.utf8.push(tokenizer.shown_bytes(token.id, options.show_special));
            }
            choice.add(token, options.logprobs.is_some());
        }
        if self.parsed.text {
            choice.waiting.text += &event.text;
        }
        if let Some(end) = event.end {
            let last = event.token.as_ref().filter(|_| event.ends_text).map(|token| token.id);
            let met = choice.met(end, last, &options.stop, tokenizer);
            let transfer =
                self.parsed.keep.as_ref().map(|transfer| transfer.transfer_params(ticket.as_deref()));
            choice.end(reason(end), met, transfer);
        } else if choice.shown < choice.written.len() || choice.utf8.is_pending() {
            return None;
        }
        Some(self.message(index))
    }

    /// The last messages of an aborted request.
    pub fn aborted(&mut self) -> Vec<GenerateResponse> {
        let open: Vec<usize> = (0..self.choices.len()).filter(|at| !self.choices[*at].has_ended).collect();
        let end = |index: usize| {
            self.choices[index].end(FinishReason::Aborted, None, None);
            self.message(index)
        };
        open.into_iter().map(end).collect()
    }

    fn message(&mut self, index: usize) -> GenerateResponse {
        let fresh = SequenceOutput { index: index as u32, ..SequenceOutput::default() };
        let mut outputs = std::mem::replace(&mut self.choices[index].waiting, fresh);
        outputs.num_tokens = outputs.token_ids.len() as u32;
        let prompt_info = (!std::mem::replace(&mut self.has_begun, true)).then(|| self.prompt_info());
        GenerateResponse { prompt_info, outputs: Some(outputs) }
    }

    fn prompt_info(&mut self) -> PromptInfo {
        let prompt = &self.parsed.job.prompts[0];
        let token_ids = if self.parsed.shows.prompt_token_ids { prompt.clone() } else { Vec::new() };
        let mut info =
            PromptInfo { num_prompt_tokens: prompt.len() as u32, token_ids, ..PromptInfo::default() };
        if self.parsed.job.score_prompt.is_some() {
            // The first token has no score.
            info.logprobs.push(0.0);
            info.ranks.push(0);
            info.candidate_tokens.push(CandidateTokenInfo::default());
            for scores in &self.scores {
                info.logprobs.push(finite(scores.picked) as f32);
                info.ranks.push(scores.rank as u32);
                info.candidate_tokens.push(candidates(scores));
            }
        }
        info
    }
}

impl Choice {
    fn add(&mut self, token: &PickedToken, scored: bool) {
        self.waiting.token_ids.push(token.id);
        if let Some(logprobs) = token.logprobs.as_ref().filter(|_| scored) {
            self.waiting.logprobs.push(finite(logprobs.picked) as f32);
            self.waiting.ranks.push(logprobs.rank as u32);
            self.waiting.candidate_tokens.push(candidates(logprobs));
        }
    }

    /// The stop string or token that ended the text.
    fn met(
        &self,
        end: StopReason,
        last: Option<u32>,
        stops: &[String],
        tokenizer: &Tokenizer,
    ) -> Option<Stopped> {
        let spells = |id: u32| tokenizer.is_special(id).then(|| tokenizer.token_bytes(id));
        match (end, last) {
            (StopReason::EndOfText, Some(id)) if tokenizer.is_eog(id) => Some(Stopped::EosTokenId(id)),
            (StopReason::EndOfText, Some(id)) => Some(Stopped::StopTokenId(id)),
            (StopReason::StopString, last) => {
                let hidden = last.and_then(spells);
                if let Some(stop) = stops.iter().find(|stop| hidden == Some(stop.as_bytes())) {
                    return Some(Stopped::StopString(stop.clone()));
                }
                let found = stops.iter().filter_map(|stop| Some((self.written.rfind(stop.as_str())?, stop)));
                found
                    .max_by_key(|(at, stop)| at + stop.len())
                    .map(|(_, stop)| Stopped::StopString(stop.clone()))
            }
            _ => None,
        }
    }

    fn end(&mut self, reason: FinishReason, met: Option<Stopped>, transfer: Option<Struct>) {
        self.has_ended = true;
        self.waiting.finish_info = Some(FinishInfo {
            num_output_tokens: self.stats.generated_tokens as u32,
            finish_reason: reason.into(),
            num_cached_tokens: Some(self.stats.cached_tokens as u32),
            stop_reason: met,
            kv_transfer_params: transfer,
            ..FinishInfo::default()
        });
    }
}

fn reason(end: StopReason) -> FinishReason {
    match end {
        StopReason::EndOfText | StopReason::StopString => FinishReason::Stop,
        StopReason::Limit | StopReason::ContextFull => FinishReason::Length,
        StopReason::Cancelled | StopReason::Constraint | StopReason::BrokenLogits => FinishReason::Aborted,
    }
}

fn candidates(scores: &LogProbs) -> CandidateTokenInfo {
    let token = |(at, (id, logprob)): (usize, &(u32, f32))| TokenInfo {
        id: *id,
        logprob: finite(*logprob) as f32,
        rank: at as u32 + 1,
    };
    CandidateTokenInfo { tokens: scores.top.iter().enumerate().map(token).collect() }
}

/// Merges the messages of a request's only choice into one.
pub fn merged(pieces: Vec<GenerateResponse>) -> GenerateResponse {
    let mut whole = GenerateResponse::default();
    for piece in pieces {
        whole.prompt_info = whole.prompt_info.or(piece.prompt_info);
        let Some(more) = piece.outputs else { continue };
        let all = whole.outputs.get_or_insert_default();
        all.text += &more.text;
        all.num_tokens += more.num_tokens;
        all.token_ids.extend(more.token_ids);
        all.logprobs.extend(more.logprobs);
        all.ranks.extend(more.ranks);
        all.candidate_tokens.extend(more.candidate_tokens);
        all.finish_info = more.finish_info;
    }
    whole
}
