//! OpenAI's responses, without memory: clients send the whole conversation each time.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use serde_json::{Value, json};

use super::{Answer, Read};
use crate::engine::{Stats, StopReason};
use crate::serve::answer::{Choice, collect};
use crate::serve::app::{App, now};
use crate::serve::constraints::Constraints;
use crate::serve::deltas::{Splitter, words};
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::http::body::json;
use crate::serve::http::stream::{Encoder, Framing, Out, answer};
use crate::serve::instance::Instance;
use crate::serve::job::{Job, Update};
use crate::serve::messages::{self, Talk};
use crate::serve::model::Served;
use crate::serve::sampling;
use crate::tokenizer::chat::{Extras, Message};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/responses", post(responses))
        .route("/responses", post(responses))
        .route("/v1/responses/input_tokens", post(input_tokens))
        .route("/responses/input_tokens", post(input_tokens))
}

/// Most items of an input.
const ITEMS: usize = 4096;
/// Makes the value of a field that is not given.
type Missing = fn() -> Value;
/// Fields of a request that its answer repeats, and what stands there if they are not given.
const REPEATED: &[(&str, Missing)] = &[
    ("instructions", || Value::Null),
    ("max_output_tokens", || Value::Null),
    ("metadata", || json!({})),
    ("parallel_tool_calls", || true.into()),
    ("reasoning", || json!({ "effort": null, "summary": null })),
    ("service_tier", || "default".into()),
    ("text", || json!({ "format": { "type": "text" } })),
    ("tool_choice", || "auto".into()),
    ("tools", || json!([])),
    ("top_logprobs", || 0.into()),
    ("truncation", || "disabled".into()),
];

/// What a request asks.
struct Asked {
    job: Job,
    stream: bool,
    /// What of it the answer repeats.
    repeated: Value,
}

impl Asked {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        for name in ["previous_response_id", "conversation", "prompt"] {
            if fields.get(name).is_some() {
                return Err(ApiError::unsupported(name));
            }
        }
        if fields.bool("background")?.unwrap_or(false) {
            return Err(ApiError::unsupported("background"));
        }
        let include = fields.list("include", 64)?.unwrap_or_default();
        if include.iter().any(|what| what.as_str().is_some_and(|what| what.contains("logprobs"))) {
            return Err(ApiError::unsupported("include"));
        }
        if let Some(text) = fields.object("text")?
            && let Some(format) = text.object("format")?
            && format.text("type")?.unwrap_or("text") != "text"
        {
            return Err(ApiError::unsupported("text.format"));
        }
        // Tools that the server of somebody else would run are passed over.
        let is_function = |tool: &Value| tool.get("type").and_then(Value::as_str) == Some("function");
        let has_functions = fields.list("tools", ITEMS)?.is_some_and(|tools| tools.iter().any(is_function));
        match has_functions {
            true => Constraints::none(fields)?,
            false => Constraints::none(&fields.without("tools"))?,
        };
        let options = sampling::generation(fields, served)?;
        let max_tokens = sampling::max_tokens(fields, &["max_output_tokens"])?;
        let mut repeated =
            json!({ "temperature": options.sampler.temperature, "top_p": options.sampler.top_p });
        for (name, default) in REPEATED {
            repeated[*name] = fields.get(name).cloned().unwrap_or_else(default);
        }
        Ok(Self {
            job: read.job(served, vec![prompt(fields, served)?], options, 1, max_tokens)?,
            stream: fields.bool("stream")?.unwrap_or(false),
            repeated,
        })
    }
}

/// The tokens of the conversation.
fn prompt(fields: &Fields, served: &Served) -> Result<Vec<u32>, ApiError> {
    let mut system: Vec<String> = fields.text("instructions")?.map(str::to_owned).into_iter().collect();
    let mut talk = Vec::new();
    match fields.get("input") {
        None => return Err(ApiError::missing("input", "a text or a list of items")),
        Some(Value::String(text)) => talk.push(Message::new("user", text)),
        Some(_) => {
            for (at, item) in fields.list("input", ITEMS)?.into_iter().flatten().enumerate() {
                let name = format!("input[{at}]");
                match item.get("type").and_then(Value::as_str).unwrap_or("message") {
                    "message" => {
                        let message = messages::message(name, item)?;
                        match message.role.as_str() {
                            "system" => system.push(message.content),
                            _ => talk.push(message),
                        }
                    }
                    // What a model thought is not shown to it again.
                    "reasoning" => {}
                    _ => return Err(ApiError::unsupported(name + ".type")),
                }
            }
        }
    }
    if talk.is_empty() {
        return Err(ApiError::missing("input", "at least one message"));
    }
    if !system.is_empty() {
        talk.insert(0, Message::new("system", system.join("\n\n")));
    }
    let talk = Talk { messages: talk, add_generation_prompt: true, begun: None, extras: Extras::default() };
    Ok(talk.prompt(served)?.ids)
}

async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Answer {
    let prompt = Read::of(&app, request).await?.work(|read, served| prompt(&read.fields, served)).await?;
    Ok(json(&json!({ "object": "response.input_tokens", "input_tokens": prompt.len() })))
}

async fn responses(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, asked, handle) = Read::of(&app, request).await?.begin(Asked::of, |asked| &asked.job).await?;
    let mut events = Events {
        id: app.name("resp_"),
        item: app.name("msg_"),
        model,
        created: now(),
        splitter: Splitter::default(),
        asked,
        choice: Choice::default(),
        text: String::new(),
        number: 0,
    };
    if events.asked.stream {
        return answer(&app.options, handle, Framing::Events, app.options.ping, events).await;
    }
    let mut choices = collect(handle, 1).await?;
    events.choice = choices.swap_remove(0);
    let mut deltas = events.splitter.push(&events.choice.text);
    deltas.extend(events.splitter.finish());
    events.text = words(deltas).collect();
    Ok(json(&events.last()))
}

/// The answer as events, and as a whole.
struct Events {
    id: String,
    item: String,
    model: Arc<Instance>,
    created: u64,
    asked: Asked,
    splitter: Splitter,
    choice: Choice,
    text: String,
    /// Of the next event.
    number: u64,
}

impl Events {
    /// The response, as far as it has come.
    fn response(&self, status: &str, output: Value) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": self.model.served.name,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "usage": null,
            "user": null,
        });
        for (name, value) in self.asked.repeated.as_object().into_iter().flatten() {
            response[name] = value.clone();
        }
        response
    }

    /// The response at its end.
    fn last(&self) -> Value {
        let Stats { prompt_tokens, cached_tokens, generated_tokens, .. } = self.choice.stats;
        let status = if self.is_whole() { "completed" } else { "incomplete" };
        let mut response = self.response(status, json!([self.message(status)]));
        if !self.is_whole() {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["usage"] = json!({
            "input_tokens": prompt_tokens,
            "input_tokens_details": { "cached_tokens": cached_tokens, "cache_write_tokens": 0 },
            "output_tokens": generated_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": prompt_tokens + generated_tokens,
        });
        response
    }

    fn is_whole(&self) -> bool {
        matches!(self.choice.end, Some(StopReason::EndOfText | StopReason::StopString))
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    fn message(&self, status: &str) -> Value {
        json!({
            "type": "message",
            "id": self.item,
            "status": status,
            "role": "assistant",
            "content": if status == "in_progress" { json!([]) } else { json!([self.part()]) },
        })
    }

    fn say(&mut self, out: &mut Out, kind: &str, mut event: Value) {
        event["type"] = kind.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        out.event(kind, &event);
    }

    /// An event of the text: where it stands, and more.
    fn of_text(&self, mut more: Value) -> Value {
        more["item_id"] = self.item.as_str().into();
        more["output_index"] = 0.into();
        more["content_index"] = 0.into();
        more
    }
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", json!([]));
            self.say(out, kind, json!({ "response": response }));
        }
        let item = self.message("in_progress");
        self.say(out, "response.output_item.added", json!({ "output_index": 0, "item": item }));
        let event = self.of_text(json!({ "part": self.part() }));
        self.say(out, "response.content_part.added", event);
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        let Update::Event { event, stats, .. } = update else { return };
        self.choice.take(&event, stats, false);
        let mut deltas = self.splitter.push(&event.text);
        if event.end.is_some() {
            deltas.extend(self.splitter.finish());
        }
        for text in words(deltas) {
            self.text += &text;
            let event = self.of_text(json!({ "delta": text, "logprobs": [] }));
            self.say(out, "response.output_text.delta", event);
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        let mut response = self.response("failed", json!([]));
        response["error"] = json!({ "code": "server_error", "message": error.message });
        self.say(out, "response.failed", json!({ "response": response }));
    }

    fn end(&mut self, out: &mut Out) {
        let event = self.of_text(json!({ "text": self.text, "logprobs": [] }));
        self.say(out, "response.output_text.done", event);
        let event = self.of_text(json!({ "part": self.part() }));
        self.say(out, "response.content_part.done", event);
        let status = if self.is_whole() { "completed" } else { "incomplete" };
        let item = self.message(status);
        self.say(out, "response.output_item.done", json!({ "output_index": 0, "item": item }));
        let response = self.last();
        let kind = format!("response.{status}");
        self.say(out, &kind, json!({ "response": response }));
    }
}
