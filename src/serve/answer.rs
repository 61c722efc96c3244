//! The answer to a job: its choices put together, and the parts that several families of endpoints show
//! alike.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::http::stream::api_error;
use super::job::{Handle, Update};
use sterna_engine::{Event, LogProbs, PickedToken, Stats, StopReason};
use sterna_tokenizer::{Tokenizer, Utf8Stream};

/// A choice, as far as it has come.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// Its tokens, but not the one that ended it.
    pub tokens: Vec<PickedToken>,
    /// Reason of its end.
    pub end: Option<StopReason>,
    /// Counts and times.
    pub stats: Stats,
    /// Scores of its prompt, if it is the first choice of that and they were asked for.
    pub scores: Vec<LogProbs>,
    /// The slot that it is remembered as, once it has ended.
    pub slot: Option<u32>,
    /// Tokens that were picked and are not shown.
    hidden: Hidden,
}

/// Text behind what is shown: at the end it begins with the stop text that was met.
#[derive(Clone, Debug, Default)]
struct Hidden {
    utf8: Utf8Stream,
    text: String,
}

impl Choice {
    /// Takes an event. Returns its token, unless that only ended the text and is no part of it.
    pub fn take(&mut self, event: &Event, stats: Stats, keep: bool) -> Option<PickedToken> {
        self.stats = stats;
        self.end = event.end;
        if keep {
            self.text += &event.text;
        }
        let token = event.token.clone().filter(|_| !event.ends_text);
        // A token that ended the text may spell the stop text.
        if let Some(token) = &event.token {
            self.hidden.text += self.hidden.utf8.push(&token.bytes);
        }
        self.tokens.extend(token.clone().filter(|_| keep));
        let shown = event.text.len().min(self.hidden.text.len());
        if self.hidden.text.is_char_boundary(shown) {
            self.hidden.text.drain(..shown);
        }
        token
    }

    /// The stop text that ended it, of those that were asked for.
    pub fn stopping_word<'s>(&self, stops: &'s [String]) -> Option<&'s str> {
        if self.end != Some(StopReason::StopString) {
            return None;
        }
        let met = stops.iter().find(|stop| self.hidden.text.starts_with(stop.as_str()));
        met.or_else(|| stops.iter().find(|stop| self.hidden.text.contains(stop.as_str()))).map(String::as_str)
    }

    /// Reason of its end, in OpenAI's words.
    pub fn finish_reason(&self) -> &'static str {
        match self.end {
            Some(StopReason::EndOfText | StopReason::StopString) => "stop",
            _ => "length",
        }
    }
}

/// All choices of a job, when they have ended.
///
/// # Errors
/// The failure of the job.
pub async fn collect(mut handle: Handle, n: usize) -> Result<Vec<Choice>, ApiError> {
    let mut choices = vec![Choice::default(); n];
    while let Some(update) = handle.next().await {
        match update.map_err(|err| api_error(&err))? {
            Update::Progress { .. } => {}
            Update::Scores { choice, scores } => choices[choice].scores = scores,
            Update::Event { choice, event, stats, slot, .. } => {
                choices[choice].take(&event, stats, true);
                choices[choice].slot = slot;
            }
        }
    }
    Ok(choices)
}

/// OpenAI's count of tokens. Choices of one prompt count it once: `n` is how many a prompt has. Of what was
/// generated, `n_thoughts` are thoughts.
pub fn usage(stats: &[Stats], n: usize, n_thoughts: usize) -> Value {
    let prompts = || stats.iter().step_by(n.max(1));
    let prompt: usize = prompts().map(|stats| stats.prompt_tokens).sum();
    let cached: usize = prompts().map(|stats| stats.cached_tokens).sum();
    let completion: usize = stats.iter().map(|stats| stats.generated_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": n_thoughts.min(completion) },
    })
}

/// llama-server's times. Every number is one: a rate of nothing is 0.
pub fn timings(stats: &Stats) -> Value {
    let prompt_n = stats.prompt_tokens.saturating_sub(stats.cached_tokens);
    let (prompt_ms, predicted_ms) =
        (stats.prompt_time.as_secs_f64() * 1e3, stats.generate_time.as_secs_f64() * 1e3);
    let ratio = |over: f64, under: f64| if under > 0.0 { over / under } else { 0.0 };
    let predicted_n = stats.generated_tokens;
    // The first token comes out of the prompt's time.
    let timed = predicted_n.saturating_sub(1) as f64;
    json!({
        "cache_n": stats.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": ratio(prompt_ms, prompt_n as f64),
        "prompt_per_second": ratio(prompt_n as f64 * 1e3, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": ratio(predicted_ms, timed),
        "predicted_per_second": ratio(timed * 1e3, predicted_ms),
    })
}

/// A log-probability as JSON, which has no infinity.
pub fn finite(logprob: f32) -> f64 {
    let finite = if logprob.is_finite() { logprob } else { -9999.0 };
    // The shortest decimal that is this f32, not the f64 beside it.
    finite.to_string().parse().unwrap_or(-9999.0)
}

/// A token with its log-probability as OpenAI's chat has it, and with its id.
fn token_json(id: u32, bytes: &[u8], logprob: f32) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("id".into(), id.into());
    entry.insert("token".into(), String::from_utf8_lossy(bytes).into());
    entry.insert("bytes".into(), bytes.to_vec().into());
    entry.insert("logprob".into(), finite(logprob).into());
    entry
}

/// A token with its log-probabilities: OpenAI's entry, and llama-server's. `None` if they were not asked for.
pub fn logprob_entry(tokenizer: &Tokenizer, token: &PickedToken) -> Option<Value> {
    let LogProbs { picked, top, .. } = token.logprobs.as_ref()?;
    let mut entry = token_json(token.id, &token.bytes, *picked);
    let top =
        top.iter().map(|(id, logprob)| Value::Object(token_json(*id, tokenizer.token_bytes(*id), *logprob)));
    entry.insert("top_logprobs".into(), top.collect());
    Some(Value::Object(entry))
}

/// The same with probabilities in their place.
pub fn as_probabilities(mut entry: Value) -> Value {
    fn turn(entry: &mut Value) {
        let Some(map) = entry.as_object_mut() else { return };
        if let Some(logprob) = map.remove("logprob").and_then(|logprob| logprob.as_f64()) {
            map.insert("prob".into(), logprob.exp().into());
        }
        if let Some(Value::Array(mut top)) = map.remove("top_logprobs") {
            top.iter_mut().for_each(turn);
            map.insert("top_probs".into(), top.into());
        }
    }
    turn(&mut entry);
    entry
}
