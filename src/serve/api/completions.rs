//! OpenAI's completions: text behind a prompt.

use std::sync::Arc;

use axum::extract::{Request, State};
use serde_json::{Map, Value, json};

use super::openapi::{Endpoints, Operation};
use super::{Answer, BUILD, Read};
use crate::answer::{Choice, collect, finite, timings, usage};
use crate::app::{App, now};
use crate::constraints::Constraints;
use crate::error::ApiError;
use crate::family::Family;
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::model::Served;
use crate::prompts::prompts;
use crate::sampling::{self, TOP_LOGPROBS};
use sterna_engine::{LogProbs, PickedToken, Stats};
use sterna_tokenizer::chat::Prompt;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Text behind a prompt").body("CompletionRequest");
    to.post(&["/v1/completions"], completions, &operation.answer_named("CompletionAnswer").events());
}

/// A parsed request.
struct ParsedRequest {
    job: Job,
    stream: bool,
    include_usage: bool,
    /// The tokens that go before the text of each prompt's choices.
    echo: Option<Vec<Vec<u32>>>,
    /// Nothing goes behind them: to score a prompt is to pick the token behind it, and not to tell.
    scores_only: bool,
    timings_per_token: bool,
}

impl ParsedRequest {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        let mut options = sampling::generation(fields, served)?;
        let no_prompt = Prompt { text: String::new(), ids: Vec::new() };
        Constraints::of_text(fields)?.apply(served, &no_prompt, &mut options)?;
        let top = fields.first(&["logprobs", "n_probs"]).unwrap_or("logprobs");
        options.logprobs = fields.count(top, 0, TOP_LOGPROBS)?;
        let n = read.n(served)?;
        if fields.count("best_of", 1, usize::MAX)?.is_some_and(|best| best != n) {
            return Err(ApiError::unsupported("best_of"));
        }
        let prompts = prompts("prompt", fields.get("prompt"), served)?;
        let echo = fields.bool("echo")?.unwrap_or(false);
        let max_tokens = sampling::max_tokens(fields, &["max_tokens", "max_completion_tokens", "n_predict"])?;
        let stream_options = fields.object("stream_options")?.unwrap_or_default();
        let score_prompt = options.logprobs.filter(|_| echo);
        let scores_only = score_prompt.is_some() && max_tokens == Some(0);
        let echo = echo.then(|| prompts.clone());
        let max_tokens = if scores_only { Some(1) } else { max_tokens };
        Ok(Self {
            job: Job { score_prompt, ..read.job(served, prompts, options, n, max_tokens)? },
            scores_only,
            stream: fields.bool("stream")?.unwrap_or(false),
            include_usage: stream_options.bool("include_usage")?.unwrap_or(false),
            echo,
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
        })
    }

    /// The tokens that go before the text of a choice.
    fn echo_of(&self, index: usize) -> &[u32] {
        self.echo.as_ref().map_or(&[], |echo| &echo[index / self.job.n])
    }

    /// Counts, without a token that is not shown.
    fn told(&self, stats: Stats) -> Stats {
        let generated_tokens = if self.scores_only { 0 } else { stats.generated_tokens };
        Stats { generated_tokens, ..stats }
    }

    /// The same with their scores, if these are wanted: `scores` has them but for the first token, which
    /// nothing stands before.
    fn scored(&self, served: &Served, index: usize, scores: &[LogProbs]) -> Vec<PickedToken> {
        if self.job.score_prompt.is_none() {
            return Vec::new();
        }
        let tokens = self.echo_of(index).iter().zip(std::iter::once(None).chain(scores.iter().map(Some)));
        let token = |(&id, scores): (&u32, Option<&LogProbs>)| {
            let bytes = served.tokenizer().shown_bytes(id, false).to_vec();
            PickedToken { id, bytes, logprobs: scores.cloned() }
        };
        tokens.map(token).collect()
    }
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let n_choices = parsed.job.n_choices();
    let head = Head { id: app.name("cmpl-"), created: now(), model };
    if parsed.stream {
        let choices = vec![(Choice::default(), 0); n_choices];
        let chunks = Chunks { head, parsed, choices };
        return answer(&app.options, handle, Framing::Events, app.options.ping, chunks).await;
    }
    let choices = collect(handle, n_choices).await?;
    let served = &head.model.served;
    let entries = choices.iter().enumerate().map(|(index, choice)| {
        let scores = &choices[index / parsed.job.n * parsed.job.n].scores;
        let mut tokens = parsed.scored(served, index, scores);
        let mut text = served.tokenizer().decode(parsed.echo_of(index), false);
        if !parsed.scores_only {
            tokens.extend(choice.tokens.iter().cloned());
            text.extend(choice.text.as_bytes());
        }
        json!({
            "index": index,
            "text": String::from_utf8_lossy(&text),
            "logprobs": logprobs(served, &parsed.job, &tokens, 0),
            "finish_reason": choice.finish_reason(),
        })
    });
    let entries: Value = entries.collect();
    let stats: Vec<Stats> = choices.iter().map(|choice| parsed.told(choice.stats)).collect();
    let mut whole = head.object(entries);
    whole["usage"] = usage(&stats, parsed.job.n, 0);
    whole["timings"] = timings(&stats[0]);
    Ok(json(&whole))
}

/// Fields that are the same in all pieces of an answer.
struct Head {
    id: String,
    created: u64,
    model: Arc<Instance>,
}

impl Head {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.served.name,
            "system_fingerprint": BUILD,
            "choices": choices,
        })
    }
}

/// Log-probabilities in the old form: lists beside each other, and where each token begins in the text, in
/// characters.
fn logprobs(served: &Served, job: &Job, tokens: &[PickedToken], offset: usize) -> Value {
    if job.options.logprobs.is_none() {
        return Value::Null;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut offset = offset;
    let (mut texts, mut each, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let shown = text(&token.bytes);
        offsets.push(offset);
        offset += shown.chars().count();
        texts.push(shown);
        // Of a prompt's first token there is nothing to say.
        let Some(logprobs) = &token.logprobs else {
            each.push(Value::Null);
            tops.push(Value::Null);
            continue;
        };
        each.push(finite(logprobs.picked).into());
        let top = logprobs.top.iter();
        let top = top.map(|(id, x)| (text(served.tokenizer().token_bytes(*id)), Value::from(finite(*x))));
        tops.push(top.collect::<Map<String, Value>>().into());
    }
    json!({ "tokens": texts, "token_logprobs": each, "top_logprobs": tops, "text_offset": offsets })
}

/// The answer in chunks.
struct Chunks {
    head: Head,
    parsed: ParsedRequest,
    /// Choices, and characters of their tokens so far.
    choices: Vec<(Choice, usize)>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object(choices);
        if self.parsed.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn text(&self, index: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason });
        self.chunk(json!([choice]))
    }
}

impl Chunks {
    /// The chunk of a choice's prompt.
    fn echo(&mut self, index: usize, scores: &[LogProbs], out: &mut Out) {
        let served = &self.head.model.served;
        let text = served.tokenizer().decode(self.parsed.echo_of(index), false);
        let text = String::from_utf8_lossy(&text).into_owned();
        let tokens = self.parsed.scored(served, index, scores);
        let logprobs = match tokens.is_empty() {
            true => Value::Null,
            false => logprobs(served, &self.parsed.job, &tokens, 0),
        };
        self.choices[index].1 = text.chars().count();
        if !text.is_empty() {
            out.data(&self.text(index, &text, logprobs, None));
        }
    }
}

impl Encoder for Chunks {
    fn begin(&mut self, out: &mut Out) {
        for index in 0..self.choices.len() {
            if self.parsed.job.score_prompt.is_none() {
                self.echo(index, &[], out);
            }
        }
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        let (index, event, stats) = match update {
            Update::Progress { choice, total, cached, processed, time } => {
                let mut chunk = self.text(choice, "", Value::Null, None);
                chunk["prompt_progress"] = json!({
                    "total": total, "cache": cached, "processed": processed,
                    "time_ms": time.as_millis() as u64,
                });
                return out.data(&chunk);
            }
            Update::Scores { choice, scores } => {
                return (choice..choice + self.parsed.job.n).for_each(|index| self.echo(index, &scores, out));
            }
            Update::Event { choice, event, stats, .. } => (choice, event, stats),
        };
        let (choice, offset) = &mut self.choices[index];
        let token = choice.take(&event, stats, false);
        let logprobs = logprobs(&self.head.model.served, &self.parsed.job, token.as_slice(), *offset);
        *offset += token.map_or(0, |token| String::from_utf8_lossy(&token.bytes).chars().count());
        let has_text = !event.text.is_empty() || logprobs["tokens"].get(0).is_some();
        if has_text && !self.parsed.scores_only {
            let mut chunk = self.text(index, &event.text, logprobs, None);
            if self.parsed.timings_per_token {
                chunk["timings"] = timings(&stats);
            }
            out.data(&chunk);
        }
        if event.end.is_some() {
            let reason = self.choices[index].0.finish_reason();
            let mut chunk = self.text(index, "", Value::Null, Some(reason));
            chunk["timings"] = timings(&stats);
            out.data(&chunk);
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&Family::OpenAi.error_body(error));
    }

    fn end(&mut self, out: &mut Out) {
        if self.parsed.include_usage {
            let stats = self.choices.iter().map(|(choice, _)| self.parsed.told(choice.stats));
            let stats: Vec<Stats> = stats.collect();
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(&stats, self.parsed.job.n, 0);
            out.data(&chunk);
        }
        out.done();
    }
}
