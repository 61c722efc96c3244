//! OpenAI's chat completions, with the fields that llama-server and vLLM add.

use std::sync::Arc;

use axum::extract::{Request, State};
use serde_json::{Map, Value, json};

use super::openapi::{Endpoints, Operation};
use super::{Answer, BUILD, Read};
use crate::answer::{Choice, collect, logprob_entry, timings, usage};
use crate::app::{App, now};
use crate::constraints::Constraints;
use crate::deltas::{self, Delta, Splitter};
use crate::error::ApiError;
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::model::Served;
use crate::sampling::{self, TOP_LOGPROBS};
use crate::{family::Family, messages};
use sterna_engine::Stats;
use sterna_tools::ParserOptions;

pub fn add(to: &mut Endpoints) {
    to.post(
        &["/v1/chat/completions", "/chat/completions"],
        completions,
        &Operation::new("A message of the assistant").body("ChatRequest").answer_named("ChatAnswer").events(),
    );
    to.post(
        &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        input_tokens,
        &Operation::new("How many tokens a conversation has").body("Talk").answer::<Map<String, Value>>(),
    );
}

/// A parsed request.
struct ParsedRequest {
    job: Job,
    reading: ParserOptions,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    timings_per_token: bool,
    return_tokens: bool,
}

impl ParsedRequest {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        if fields.bool("echo")?.unwrap_or(false) {
            return Err(ApiError::unsupported("echo"));
        }
        let constraints = Constraints::of_chat(fields, served)?;
        let chat = messages::chat_prompt(fields)?;
        let mut options = sampling::generation(fields, served)?;
        let logprobs = fields.bool("logprobs")?.unwrap_or(false);
        let top = fields.first(&["top_logprobs", "n_probs"]).unwrap_or("top_logprobs");
        let top = fields.count(top, 0, TOP_LOGPROBS)?;
        if top.is_some_and(|top| top > 0) && !logprobs && fields.get("top_logprobs").is_some() {
            let message = "`top_logprobs` needs `logprobs` to be true";
            return Err(ApiError { param: Some("top_logprobs".into()), ..ApiError::bad(message) });
        }
        let logprobs = logprobs || top.is_some_and(|top| top > 0);
        options.logprobs = logprobs.then(|| top.unwrap_or(0));
        let names = ["max_completion_tokens", "max_tokens", "n_predict"];
        let max_tokens = sampling::max_tokens(fields, &names)?;
        let (mut prompt, reading) = read.turn(served, chat, &constraints, &mut options)?;
        if let Some(last) = fields.count("truncate_prompt_tokens", 1, usize::MAX)? {
            prompt.drain(..prompt.len().saturating_sub(last));
        }
        let n = read.n(served)?;
        let stream_options = fields.object("stream_options")?.unwrap_or_default();
        Ok(Self {
            job: read.job(served, vec![prompt], options, n, max_tokens)?,
            reading,
            stream: fields.bool("stream")?.unwrap_or(false),
            include_usage: stream_options.bool("include_usage")?.unwrap_or(false),
            logprobs,
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            return_tokens: fields
                .first(&["return_tokens", "return_token_ids"])
                .map_or(Ok(None), |name| fields.bool(name))?
                == Some(true),
        })
    }
}

impl ParsedRequest {
    /// Parser of the text of a choice. Calls of no two choices have the same ids.
    fn splitter(&self, choice: usize) -> Splitter {
        Splitter::new(ParserOptions {
            seed: self.reading.seed.wrapping_add(choice as u64),
            ..self.reading.clone()
        })
    }
}

async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Answer {
    let read = Read::of(&app, request).await?;
    let prompt = read
        .work(|read, served| messages::chat_prompt_with_tools(&read.fields, served)?.prompt(served))
        .await?
        .ids;
    Ok(json(&json!({ "object": "response.input_tokens", "input_tokens": prompt.len() })))
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let n = parsed.job.n;
    let head = Head { id: app.name("chatcmpl-"), created: now(), model };
    if parsed.stream {
        let choices = (0..n).map(|at| (parsed.splitter(at), Choice::default())).collect();
        let chunks = Chunks { head, parsed, choices };
        return answer(&app.options, handle, Framing::Events, app.options.ping, chunks).await;
    }
    let choices = collect(handle, n).await?;
    Ok(json(&whole(&head, &parsed, &choices)))
}

/// Fields that are the same in all pieces of an answer.
struct Head {
    id: String,
    created: u64,
    model: Arc<Instance>,
}

fn whole(head: &Head, parsed: &ParsedRequest, choices: &[Choice]) -> Value {
    let tokenizer = head.model.served.tokenizer();
    let mut n_thoughts = 0;
    let entries = choices.iter().enumerate().map(|(index, choice)| {
        let mut splitter = parsed.splitter(index);
        let mut deltas = splitter.push(&choice.text);
        deltas.extend(splitter.finish());
        n_thoughts += splitter.n_thoughts(tokenizer);
        let mut entry = json!({
            "index": index,
            "message": deltas::message(deltas),
            "logprobs": logprobs(&head.model.served, parsed, &choice.tokens),
            "finish_reason": splitter.finish_reason(choice.finish_reason()),
        });
        if parsed.return_tokens {
            let ids: Vec<u32> = choice.tokens.iter().map(|token| token.id).collect();
            entry["token_ids"] = ids.into();
        }
        entry
    });
    let entries: Vec<Value> = entries.collect();
    let stats: Vec<Stats> = choices.iter().map(|choice| choice.stats).collect();
    json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model.served.name,
        "system_fingerprint": BUILD,
        "choices": entries,
        "usage": usage(&stats, parsed.job.n, n_thoughts),
        "timings": timings(&stats[0]),
    })
}

fn logprobs(served: &Served, parsed: &ParsedRequest, tokens: &[sterna_engine::PickedToken]) -> Value {
    if !parsed.logprobs {
        return Value::Null;
    }
    let entries = tokens.iter().filter_map(|token| logprob_entry(served.tokenizer(), token));
    json!({ "content": entries.collect::<Vec<_>>(), "refusal": null })
}

/// The answer in chunks.
struct Chunks {
    head: Head,
    parsed: ParsedRequest,
    choices: Vec<(Splitter, Choice)>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model.served.name,
            "system_fingerprint": BUILD,
            "choices": choices,
        });
        if self.parsed.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: Value, finish_reason: Option<&str>) -> Value {
        let choice =
            json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        self.chunk(json!([choice]))
    }
}

impl Encoder for Chunks {
    fn begin(&mut self, out: &mut Out) {
        for index in 0..self.choices.len() {
            out.data(&self.delta(index, json!({ "role": "assistant", "content": null }), None));
        }
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        let (index, event, stats) = match update {
            Update::Progress { choice, total, cached, processed, time } => {
                let mut chunk = self.delta(choice, json!({}), None);
                chunk["prompt_progress"] = json!({
                    "total": total, "cache": cached, "processed": processed,
                    "time_ms": time.as_millis() as u64,
                });
                return out.data(&chunk);
            }
            Update::Scores { .. } => return,
            Update::Event { choice, event, stats, .. } => (choice, event, stats),
        };
        let (splitter, choice) = &mut self.choices[index];
        let token = choice.take(&event, stats, false);
        let mut deltas = splitter.push(&event.text);
        if event.end.is_some() {
            deltas.extend(splitter.finish());
        }
        let tokens = token.as_slice();
        let mut logprobs = logprobs(&self.head.model.served, &self.parsed, tokens);
        if deltas.is_empty() && !tokens.is_empty() && (self.parsed.logprobs || self.parsed.return_tokens) {
            // A token without text of its own still has its log-probabilities.
            deltas.push(Delta::Content(String::new()));
        }
        for (at, delta) in deltas.into_iter().filter_map(deltas::to_json).enumerate() {
            let mut chunk = self.delta(index, delta, None);
            chunk["choices"][0]["logprobs"] = logprobs.take();
            if self.parsed.return_tokens && at == 0 {
                let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                chunk["choices"][0]["token_ids"] = ids.into();
            }
            if self.parsed.timings_per_token {
                chunk["timings"] = timings(&stats);
            }
            out.data(&chunk);
        }
        if event.end.is_some() {
            let (splitter, choice) = &self.choices[index];
            let reason = splitter.finish_reason(choice.finish_reason());
            let mut chunk = self.delta(index, json!({}), Some(reason));
            chunk["timings"] = timings(&stats);
            out.data(&chunk);
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&Family::OpenAi.error_body(error));
    }

    fn end(&mut self, out: &mut Out) {
        if self.parsed.include_usage {
            let stats: Vec<Stats> = self.choices.iter().map(|(_, choice)| choice.stats).collect();
            let tokenizer = self.head.model.served.tokenizer();
            let n_thoughts = self.choices.iter().map(|(splitter, _)| splitter.n_thoughts(tokenizer)).sum();
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(&stats, self.parsed.job.n, n_thoughts);
            chunk["timings"] = timings(&stats[0]);
            out.data(&chunk);
        }
        out.done();
    }
}
