//! OpenAI's completions: text behind a prompt.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use serde_json::{Map, Value, json};

use super::{Answer, BUILD, Read};
use crate::engine::{PickedToken, Stats};
use crate::serve::answer::{Choice, collect, finite, timings, usage};
use crate::serve::app::{App, now};
use crate::serve::constraints::Constraints;
use crate::serve::error::ApiError;
use crate::serve::family::Family;
use crate::serve::http::body::json;
use crate::serve::http::stream::{Encoder, Framing, Out, answer};
use crate::serve::job::{Job, Update};
use crate::serve::model::Served;
use crate::serve::prompts::prompts;
use crate::serve::sampling::{self, TOP_LOGPROBS};
use crate::tokenizer::chat::Prompt;

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/completions", post(completions))
}

/// What a request asks.
struct Asked {
    job: Job,
    stream: bool,
    include_usage: bool,
    /// What goes before the text of each prompt's choices.
    echo: Vec<String>,
    timings_per_token: bool,
}

impl Asked {
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
        if echo && options.logprobs.is_some() {
            // Log-probabilities of a prompt's own tokens.
            return Err(ApiError::unsupported("echo"));
        }
        let text = |prompt: &Vec<u32>| match echo {
            true => String::from_utf8_lossy(&served.tokenizer().decode(prompt, false)).into_owned(),
            false => String::new(),
        };
        let echo = prompts.iter().map(text).collect();
        let max_tokens = sampling::max_tokens(fields, &["max_tokens", "max_completion_tokens", "n_predict"])?;
        let stream_options = fields.object("stream_options")?.unwrap_or_default();
        Ok(Self {
            job: read.job(served, prompts, options, n, max_tokens)?,
            stream: fields.bool("stream")?.unwrap_or(false),
            include_usage: stream_options.bool("include_usage")?.unwrap_or(false),
            echo,
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
        })
    }

    fn echo_of(&self, index: usize) -> &str {
        &self.echo[index / self.job.n]
    }
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Answer {
    let asked = Read::of(&app, request).await?.work(Asked::of).await?;
    let n_choices = asked.job.n_choices();
    let handle = app.begin(asked.job.clone())?;
    let head = Head { id: app.name("cmpl-"), created: now(), model: app.served()?.name.clone() };
    if asked.stream {
        let choices = vec![(Choice::default(), 0); n_choices];
        let chunks = Chunks { app: Arc::clone(&app), head, asked, choices };
        return answer(&app.options, handle, Framing::Events, app.options.ping, chunks).await;
    }
    let choices = collect(handle, n_choices).await?;
    let entries = choices.iter().enumerate().map(|(index, choice)| {
        let echo = asked.echo_of(index);
        json!({
            "index": index,
            "text": format!("{echo}{}", choice.text),
            "logprobs": logprobs(&app, &asked.job, &choice.tokens, echo.chars().count()),
            "finish_reason": choice.finish_reason(),
        })
    });
    let entries: Value = entries.collect();
    let stats: Vec<Stats> = choices.iter().map(|choice| choice.stats).collect();
    let mut whole = head.object(entries);
    whole["usage"] = usage(&stats, asked.job.n);
    whole["timings"] = timings(&stats[0]);
    Ok(json(&whole))
}

/// What is the same in all pieces of an answer.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": BUILD,
            "choices": choices,
        })
    }
}

/// Log-probabilities in the old form: lists beside each other, and where each token begins in the text, in
/// characters.
fn logprobs(app: &App, job: &Job, tokens: &[PickedToken], offset: usize) -> Value {
    let (Some(_), Some(served)) = (job.options.logprobs, app.served.get()) else { return Value::Null };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut offset = offset;
    let (mut texts, mut each, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let Some(logprobs) = &token.logprobs else { continue };
        let shown = text(&token.bytes);
        offsets.push(offset);
        offset += shown.chars().count();
        texts.push(shown);
        each.push(finite(logprobs.picked));
        let top = logprobs.top.iter();
        let top = top.map(|(id, x)| (text(served.tokenizer().token_bytes(*id)), Value::from(finite(*x))));
        tops.push(top.collect::<Map<String, Value>>());
    }
    json!({ "tokens": texts, "token_logprobs": each, "top_logprobs": tops, "text_offset": offsets })
}

/// The answer in chunks.
struct Chunks {
    app: Arc<App>,
    head: Head,
    asked: Asked,
    /// Choices, and characters of their tokens so far.
    choices: Vec<(Choice, usize)>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object(choices);
        if self.asked.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn text(&self, index: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason });
        self.chunk(json!([choice]))
    }
}

impl Encoder for Chunks {
    fn begin(&mut self, out: &mut Out) {
        for index in 0..self.choices.len() {
            let echo = self.asked.echo_of(index);
            self.choices[index].1 = echo.chars().count();
            if !echo.is_empty() {
                out.data(&self.text(index, echo, Value::Null, None));
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
            Update::Event { choice, event, stats } => (choice, event, stats),
        };
        let (choice, offset) = &mut self.choices[index];
        let token = choice.take(&event, stats, false);
        let logprobs = logprobs(&self.app, &self.asked.job, token.as_slice(), *offset);
        *offset += token.map_or(0, |token| String::from_utf8_lossy(&token.bytes).chars().count());
        if !event.text.is_empty() || logprobs["tokens"].get(0).is_some() {
            let mut chunk = self.text(index, &event.text, logprobs, None);
            if self.asked.timings_per_token {
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
        if self.asked.include_usage {
            let stats: Vec<Stats> = self.choices.iter().map(|(choice, _)| choice.stats).collect();
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(&stats, self.asked.job.n);
            out.data(&chunk);
        }
        out.done();
    }
}
