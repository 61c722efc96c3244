//! Anthropic's messages. `request.rs` reads what clients write; here is what they are answered.

mod request;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use serde_json::{Map, Value, json};

use super::openapi::{Endpoints, Operation};
use super::{Answer, Read};
use crate::answer::collect;
use crate::app::App;
use crate::blocks::{Block, Change, Kind, Reader};
use crate::error::ApiError;
use crate::family::Family;
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::model::Served;
use crate::sampling::{self, STOPS};
use sterna_engine::{GenerateOptions, Stats, StopReason};
use sterna_tools::ParserOptions;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("A message of the assistant, as Anthropic has it").body("MessagesRequest");
    to.post(&["/v1/messages"], messages, &operation.answer_named("MessagesAnswer").events());
    let operation = Operation::new("How many tokens a conversation has").body("CountRequest");
    to.post(&["/v1/messages/count_tokens"], count_tokens, &operation.answer::<Map<String, Value>>());
}

/// A parsed request.
struct ParsedRequest {
    job: Job,
    reading: ParserOptions,
    stream: bool,
}

impl ParsedRequest {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        let Some(max_tokens) = fields.int("max_tokens", 1..=i64::from(i32::MAX))? else {
            return Err(ApiError::missing("max_tokens", "a whole number"));
        };
        if fields.list("mcp_servers", usize::MAX)?.is_some_and(|servers| !servers.is_empty()) {
            return Err(ApiError::unsupported("mcp_servers"));
        }
        let (chat, constraints) = request::read(fields, served)?;
        let mut options = GenerateOptions {
            stop: fields.texts("stop_sequences", STOPS.0, STOPS.1)?,
            ..sampling::generation(fields, served)?
        };
        let (prompt, reading) = read.turn(served, chat, &constraints, &mut options)?;
        Ok(Self {
            job: read.job(served, vec![prompt], options, 1, Some(max_tokens))?,
            reading,
            stream: fields.bool("stream")?.unwrap_or(false),
        })
    }
}

async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Answer {
    let count = Read::of(&app, request).await?.work(|read, served| {
        let (chat, constraints) = request::read(&read.fields, served)?;
        Ok(chat.offering(&constraints, served).prompt(served)?.ids.len())
    });
    Ok(json(&json!({ "input_tokens": count.await? })))
}

async fn messages(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let id = app.name("msg_");
    if parsed.stream {
        let reader = Reader::new(parsed.reading.clone());
        let events = Events { id, model, parsed, reader };
        return answer(&app.options, handle, Framing::Events, Duration::ZERO, events).await;
    }
    let mut choices = collect(handle, 1).await?;
    let reader = Reader::of(parsed.reading, choices.swap_remove(0));
    let mut message = message(&id, &model.served.name, reader.blocks().iter().filter_map(block).collect());
    let (reason, sequence) = stop_reason(&reader, &parsed.job);
    message["stop_reason"] = reason.into();
    message["stop_sequence"] = sequence;
    message["usage"] = usage(&reader.choice.stats);
    Ok(json(&message))
}

fn message(id: &str, model: &str, content: Value) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// A block as it is shown. A call that was cut off is no block: its input would be no object.
fn block(block: &Block) -> Option<Value> {
    let text = block.text.as_str();
    Some(match &block.kind {
        // Thoughts are not signed here.
        Kind::Thoughts => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Kind::Text => json!({ "type": "text", "text": text }),
        Kind::Call { id, name, .. } => {
            json!({ "type": "tool_use", "id": id, "name": name, "input": block.arguments()? })
        }
    })
}

fn stop_reason(reader: &Reader, job: &Job) -> (&'static str, Value) {
    match reader.choice.end {
        Some(StopReason::EndOfText) if reader.calls() => ("tool_use", Value::Null),
        Some(StopReason::EndOfText) => ("end_turn", Value::Null),
        Some(StopReason::StopString) => {
            ("stop_sequence", reader.choice.stopping_word(&job.options.stop).into())
        }
        _ => ("max_tokens", Value::Null),
    }
}

/// Anthropic counts what the cache had apart.
fn usage(stats: &Stats) -> Value {
    json!({
        "input_tokens": stats.prompt_tokens.saturating_sub(stats.cached_tokens),
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": stats.generated_tokens,
    })
}

/// The answer as events.
struct Events {
    id: String,
    model: Arc<Instance>,
    parsed: ParsedRequest,
    reader: Reader,
}

/// Changes of a block as events.
fn tell(out: &mut Out, index: usize, block: &Block, change: Change<'_>) {
    let mut delta = |delta: Value| {
        let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        out.event("content_block_delta", &event);
    };
    match (change, &block.kind) {
        (Change::Begun, kind) => {
            let block = match kind {
                Kind::Thoughts => json!({ "type": "thinking", "thinking": "", "signature": "" }),
                Kind::Text => json!({ "type": "text", "text": "" }),
                Kind::Call { id, name, .. } => {
                    json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
                }
            };
            let event = json!({ "type": "content_block_start", "index": index, "content_block": block });
            out.event("content_block_start", &event);
        }
        (Change::More(text), Kind::Thoughts) => delta(json!({ "type": "thinking_delta", "thinking": text })),
        (Change::More(text), Kind::Text) => delta(json!({ "type": "text_delta", "text": text })),
        (Change::More(text), Kind::Call { .. }) => {
            delta(json!({ "type": "input_json_delta", "partial_json": text }));
        }
        (Change::Ended, kind) => {
            if *kind == Kind::Thoughts {
                delta(json!({ "type": "signature_delta", "signature": "" }));
            }
            out.event("content_block_stop", &json!({ "type": "content_block_stop", "index": index }));
        }
    }
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        let prompt_tokens = self.parsed.job.prompts[0].len();
        let mut message = message(&self.id, &self.model.served.name, json!([]));
        message["usage"] = usage(&Stats { prompt_tokens, ..Stats::default() });
        out.event("message_start", &json!({ "type": "message_start", "message": message }));
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        match update {
            Update::Progress { .. } => out.event("ping", &json!({ "type": "ping" })),
            Update::Scores { .. } => {}
            Update::Event { event, stats, .. } => {
                self.reader.take(&event, stats, |index, block, change| tell(out, index, block, change));
            }
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.event("error", &Family::Anthropic.error_body(error));
    }

    fn end(&mut self, out: &mut Out) {
        self.reader.end(|index, block, change| tell(out, index, block, change));
        let (reason, sequence) = stop_reason(&self.reader, &self.parsed.job);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let usage = usage(&self.reader.choice.stats);
        out.event("message_delta", &json!({ "type": "message_delta", "delta": delta, "usage": usage }));
        out.event("message_stop", &json!({ "type": "message_stop" }));
    }
}
