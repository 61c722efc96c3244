//! Parts of answers that several endpoint families share.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use sterna_engine::{Event, LogProbs, PickedToken, Stats, StopReason};
use sterna_tokenizer::{Tokenizer, Utf8Stream};

/// Progress of a choice.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Reason of its end.
    pub end: Option<StopReason>,
    /// Counts and times.
    pub stats: Stats,
    /// The slot that stores it after its end.
    pub slot: Option<u32>,
    /// Tokens that were picked but are not shown.
    hidden: Hidden,
}

/// Text after the shown part: at the end it begins with the stop string that was found.
#[derive(Clone, Debug, Default)]
struct Hidden {
    utf8: Utf8Stream,
    text: String,
}

impl Choice {
    /// Takes an event. Returns its token, unless the token only ended the text and is not part of it.
    pub fn take(&mut self, event: &Event, stats: Stats) -> Option<PickedToken> {
        self.stats = stats;
        self.end = event.end;
        let token = event.token.clone().filter(|_| !event.ends_text);
        // A token that ended the text may contain the stop string.
        if let Some(token) = &event.token {
            self.hidden.text += self.hidden.utf8.push(&token.bytes);
        }
        let shown = event.text.len().min(self.hidden.text.len());
        if self.hidden.text.is_char_boundary(shown) {
            self.hidden.text.drain(..shown);
        }
        token
    }

    /// The stop string that ended it, out of those requested.
    pub fn stopping_word<'s>(&self, stops: &'s [String]) -> Option<&'s str> {
        if self.end != Some(StopReason::StopString) {
            return None;
        }
        let met = stops.iter().find(|stop| self.hidden.text.starts_with(stop.as_str()));
        met.or_else(|| stops.iter().find(|stop| self.hidden.text.contains(stop.as_str()))).map(String::as_str)
    }

    /// Finish reason in OpenAI's format.
    pub fn finish_reason(&self) -> FinishReason {
        match self.end {
            Some(StopReason::EndOfText | StopReason::StopString) => FinishReason::Stop,
            _ => FinishReason::Length,
        }
    }
}

/// The program and its version, for OpenAI's `system_fingerprint` and llama-server's `build_info`.
pub const BUILD: &str = concat!("b1-sterna-", env!("CARGO_PKG_VERSION"));

/// Number of tokens of a conversation, in OpenAI's format.
#[derive(Serialize, JsonSchema)]
pub struct InputTokens {
    #[schemars(extend("const" = "response.input_tokens"))]
    object: &'static str,
    input_tokens: usize,
}

impl InputTokens {
    /// A conversation of `input_tokens`.
    pub fn new(input_tokens: usize) -> Self {
        Self { object: "response.input_tokens", input_tokens }
    }
}

/// OpenAI's token counts.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
    completion_tokens_details: CompletionTokens,
}

#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct PromptTokens {
    /// Tokens found in the prefix cache.
    cached_tokens: usize,
}

#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct CompletionTokens {
    reasoning_tokens: usize,
}

impl Usage {
    /// Counts over all choices. The `n` choices of a prompt count the prompt once. `n_thoughts` of the
    /// generated tokens are reasoning tokens.
    pub fn new(stats: &[Stats], n: usize, n_thoughts: usize) -> Self {
        let prompts = || stats.iter().step_by(n.max(1));
        let prompt: usize = prompts().map(|stats| stats.prompt_tokens).sum();
        let completion: usize = stats.iter().map(|stats| stats.generated_tokens).sum();
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptTokens {
                cached_tokens: prompts().map(|stats| stats.cached_tokens).sum(),
            },
            completion_tokens_details: CompletionTokens { reasoning_tokens: n_thoughts.min(completion) },
        }
    }
}

/// OpenAI's token counts for endpoints that generate nothing.
#[derive(Serialize, JsonSchema)]
pub struct InputUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl InputUsage {
    /// Counts the tokens of these texts.
    pub fn of(texts: &[Vec<u32>]) -> Self {
        let n = texts.iter().map(Vec::len).sum();
        Self { prompt_tokens: n, total_tokens: n }
    }
}

/// llama-server's timings. All fields are finite: a rate without tokens is 0.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Timings {
    /// Prompt tokens found in the prefix cache.
    cache_n: usize,
    /// Prompt tokens that were computed.
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    /// Drafted tokens, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n: Option<usize>,
    /// Drafted tokens that were accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<usize>,
}

impl From<&Stats> for Timings {
    fn from(stats: &Stats) -> Self {
        let prompt_n = stats.prompt_tokens.saturating_sub(stats.cached_tokens);
        let (prompt_ms, predicted_ms) =
            (stats.prompt_time.as_secs_f64() * 1e3, stats.generate_time.as_secs_f64() * 1e3);
        let ratio = |over: f64, under: f64| if under > 0.0 { over / under } else { 0.0 };
        let predicted_n = stats.generated_tokens;
        // The first token is part of the prompt time.
        let timed = predicted_n.saturating_sub(1) as f64;
        Self {
            cache_n: stats.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(prompt_n as f64 * 1e3, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, timed),
            predicted_per_second: ratio(timed * 1e3, predicted_ms),
            draft_n: (stats.drafted_tokens > 0).then_some(stats.drafted_tokens),
            draft_n_accepted: (stats.drafted_tokens > 0).then_some(stats.accepted_tokens),
        }
    }
}

/// Prompt progress in llama-server's format.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Progress {
    /// Tokens of the prompt.
    total: usize,
    /// Tokens found in the prefix cache.
    cache: usize,
    /// Tokens processed so far, including cached ones.
    processed: usize,
    time_ms: u64,
}

impl Progress {
    /// Progress of a prompt of `total` tokens after `time`.
    pub fn new(total: usize, cache: usize, processed: usize, time: Duration) -> Self {
        Self { total, cache, processed, time_ms: time.as_millis() as u64 }
    }
}

/// Finish reason in OpenAI's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended the text, or a stop string was found.
    Stop,
    /// The length limit was reached.
    Length,
    /// The answer ended with tool calls.
    ToolCalls,
}

/// A choice of OpenAI's completions, whole or one piece.
pub trait ChoiceForm: Serialize + JsonSchema {
    /// Name of the enclosing object.
    const OBJECT: &'static str;
    /// Index of the choice.
    fn index(&self) -> usize;
}

/// Fields that OpenAI's completions have both in whole answers and in every chunk.
#[derive(Clone, Debug)]
pub struct Head {
    /// Id of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
}

/// A whole answer in OpenAI's completions format.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{C}Answer")]
pub struct Whole<C: ChoiceForm> {
    id: String,
    #[schemars(extend("const" = C::OBJECT))]
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    /// All choices.
    pub choices: Vec<C>,
    /// Token counts of all choices.
    pub usage: Usage,
    /// Times of the first choice.
    pub timings: Timings,
}

/// A chunk of such an answer. With `include_usage` the last one has no choices.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{C}Chunk")]
pub struct Chunk<C: ChoiceForm> {
    /// Id of the answer.
    pub id: String,
    /// Name of the object.
    #[schemars(extend("const" = C::OBJECT))]
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// The program and its version.
    pub system_fingerprint: &'static str,
    /// The choice that continues.
    pub choices: Vec<C>,
    /// With `include_usage`: null except in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// With `return_progress`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<Progress>,
    /// Timings of the choice, or of the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

impl<C: ChoiceForm> Whole<C> {
    /// Adds a chunk; `add` appends the piece of a choice to that choice.
    pub fn add<P: ChoiceForm>(&mut self, chunk: Chunk<P>, add: impl FnOnce(&mut C, P)) {
        if let Some(piece) = chunk.choices.into_iter().next() {
            let index = piece.index();
            add(&mut self.choices[index], piece);
            if index == 0
                && let Some(timings) = chunk.timings
            {
                self.timings = timings;
            }
        }
        if let Some(Some(usage)) = chunk.usage {
            self.usage = usage;
        }
    }
}

impl Head {
    /// A whole answer, still without the contents of its chunks.
    pub fn whole<C: ChoiceForm>(&self, choices: Vec<C>) -> Whole<C> {
        let Self { id, created, model } = self.clone();
        let (usage, timings) = Default::default();
        let system_fingerprint = BUILD;
        Whole { id, object: C::OBJECT, created, model, system_fingerprint, choices, usage, timings }
    }

    /// A chunk. The `usage` field is present with `include_usage`.
    pub fn chunk<C: ChoiceForm>(&self, choice: Option<C>, include_usage: bool) -> Chunk<C> {
        let Self { id, created, model } = self.clone();
        Chunk {
            id,
            object: C::OBJECT,
            created,
            model,
            system_fingerprint: BUILD,
            choices: choice.into_iter().collect(),
            usage: include_usage.then_some(None),
            prompt_progress: None,
            timings: None,
        }
    }
}

/// A finite log-probability, because JSON has no infinity.
pub fn finite(logprob: f32) -> f64 {
    let finite = if logprob.is_finite() { logprob } else { -9999.0 };
    // The shortest decimal of this f32, rather than of the nearest f64.
    finite.to_string().parse().unwrap_or(-9999.0)
}

/// A token with its id and its log-probability, or its probability instead, in the format of OpenAI's chat
/// and llama-server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TokenLogprob {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprob: Option<f64>,
    /// The most probable tokens at this position.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenLogprob>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prob: Option<f64>,
    /// The most probable tokens at this position.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_probs: Option<Vec<TokenLogprob>>,
}

impl TokenLogprob {
    fn new(id: u32, bytes: &[u8], logprob: f32) -> Self {
        Self {
            id,
            token: String::from_utf8_lossy(bytes).into_owned(),
            bytes: bytes.to_vec(),
            logprob: Some(finite(logprob)),
            top_logprobs: None,
            prob: None,
            top_probs: None,
        }
    }

    /// A token that was picked; `None` if no log-probabilities were requested.
    pub fn picked(tokenizer: &Tokenizer, token: &PickedToken) -> Option<Self> {
        let LogProbs { picked, top, .. } = token.logprobs.as_ref()?;
        let top = top.iter().map(|(id, logprob)| Self::new(*id, tokenizer.token_bytes(*id), *logprob));
        Some(Self { top_logprobs: Some(top.collect()), ..Self::new(token.id, &token.bytes, *picked) })
    }

    /// The same with probabilities instead of log-probabilities.
    #[must_use]
    pub fn into_probability(self) -> Self {
        let top = self.top_logprobs.map(|top| top.into_iter().map(Self::into_probability).collect());
        Self { prob: self.logprob.map(f64::exp), logprob: None, top_probs: top, top_logprobs: None, ..self }
    }
}
