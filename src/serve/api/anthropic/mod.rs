//! Anthropic's messages.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use serde_json::{Value, json};

use super::{Answer, Read};
use crate::engine::{GenerateOptions, Stats, StopReason};
use crate::serve::answer::{Choice, collect};
use crate::serve::app::App;
use crate::serve::constraints::Constraints;
use crate::serve::deltas::{Splitter, words};
use crate::serve::error::ApiError;
use crate::serve::family::Family;
use crate::serve::fields::Fields;
use crate::serve::http::body::json;
use crate::serve::http::stream::{Encoder, Framing, Out, answer};
use crate::serve::instance::Instance;
use crate::serve::job::{Job, Update};
use crate::serve::messages;
use crate::serve::model::Served;
use crate::serve::sampling::{self, STOPS};
use crate::tokenizer::chat::Message;

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/messages", post(messages)).route("/v1/messages/count_tokens", post(count_tokens))
}

/// What a request asks.
struct Asked {
    job: Job,
    stream: bool,
}

impl Asked {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        Constraints::none(fields)?;
        for (name, off) in [("thinking", "disabled"), ("output_config.format", "")] {
            let (outer, inner) = name.split_once('.').unwrap_or((name, "type"));
            let Some(object) = fields.object(outer)? else { continue };
            if object.get(inner).is_some_and(|value| value.as_str() != Some(off)) {
                return Err(ApiError::unsupported(name));
            }
        }
        let Some(max_tokens) = fields.int("max_tokens", 1..=i64::from(i32::MAX))? else {
            return Err(ApiError::missing("max_tokens", "a whole number"));
        };
        let prompt = prompt(fields, served)?;
        let options = GenerateOptions {
            stop: fields.texts("stop_sequences", STOPS.0, STOPS.1)?,
            ..sampling::generation(fields, served)?
        };
        Ok(Self {
            job: read.job(served, vec![prompt], options, 1, Some(max_tokens))?,
            stream: fields.bool("stream")?.unwrap_or(false),
        })
    }
}

/// The conversation, with the system's text before it, as tokens.
fn prompt(fields: &Fields, served: &Served) -> Result<Vec<u32>, ApiError> {
    let mut talk = messages::talk(fields)?;
    let system = messages::content("system", fields.get("system"))?;
    if !system.is_empty() {
        talk.messages.insert(0, Message::new("system", same_each_turn(&system)));
    }
    Ok(talk.prompt(served)?.ids)
}

/// The system's text with one value for a checksum of the conversation that some agents put into its first
/// line: it changes each turn, and no prompt would ever find the pages of the turn before. The field stays,
/// as it does in llama-server.
fn same_each_turn(system: &str) -> String {
    let (first, rest) = system.split_at(system.find('\n').unwrap_or(system.len()));
    let Some(at) = first.find("cch=").filter(|_| first.starts_with("x-anthropic-")) else {
        return system.to_owned();
    };
    let value = at + "cch=".len();
    let end = first[value..].find(';').map_or(first.len(), |len| value + len);
    format!("{}fffff{}{rest}", &first[..value], &first[end..])
}

async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Answer {
    let prompt = Read::of(&app, request).await?.work(|read, served| prompt(&read.fields, served)).await?;
    Ok(json(&json!({ "input_tokens": prompt.len() })))
}

async fn messages(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, asked, handle) = Read::of(&app, request).await?.begin(Asked::of, |asked| &asked.job).await?;
    let id = app.name("msg_");
    if asked.stream {
        let splitter = Splitter::default();
        let events = Events { id, model, asked, splitter, choice: Choice::default(), is_open: false };
        return answer(&app.options, handle, Framing::Events, Duration::ZERO, events).await;
    }
    let choices = collect(handle, 1).await?;
    let choice = &choices[0];
    let mut splitter = Splitter::default();
    let mut deltas = splitter.push(&choice.text);
    deltas.extend(splitter.finish());
    let content = words(deltas).map(|text| json!({ "type": "text", "text": text }));
    let content: Vec<Value> = content.collect();
    let (reason, sequence) = stop_reason(choice, &asked.job);
    let mut message = message(&id, &model.served.name, content.into());
    message["stop_reason"] = reason.into();
    message["stop_sequence"] = sequence;
    message["usage"] = usage(&choice.stats);
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

fn stop_reason(choice: &Choice, job: &Job) -> (&'static str, Value) {
    match choice.end {
        Some(StopReason::EndOfText) => ("end_turn", Value::Null),
        Some(StopReason::StopString) => ("stop_sequence", choice.stopping_word(&job.options.stop).into()),
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
    asked: Asked,
    splitter: Splitter,
    choice: Choice,
    is_open: bool,
}

impl Events {
    fn text(&mut self, text: &str, out: &mut Out) {
        if !self.is_open {
            self.is_open = true;
            let block = json!({ "type": "text", "text": "" });
            let start = json!({ "type": "content_block_start", "index": 0, "content_block": block });
            out.event("content_block_start", &start);
        }
        if !text.is_empty() {
            let delta = json!({ "type": "text_delta", "text": text });
            let delta = json!({ "type": "content_block_delta", "index": 0, "delta": delta });
            out.event("content_block_delta", &delta);
        }
    }
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        let prompt_tokens = self.asked.job.prompts[0].len();
        let mut message = message(&self.id, &self.model.served.name, json!([]));
        message["usage"] = usage(&Stats { prompt_tokens, ..Stats::default() });
        out.event("message_start", &json!({ "type": "message_start", "message": message }));
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        let (event, stats) = match update {
            Update::Progress { .. } => return out.event("ping", &json!({ "type": "ping" })),
            Update::Scores { .. } => return,
            Update::Event { event, stats, .. } => (event, stats),
        };
        self.choice.take(&event, stats, false);
        let mut deltas = self.splitter.push(&event.text);
        if event.end.is_some() {
            deltas.extend(self.splitter.finish());
        }
        for text in words(deltas) {
            self.text(&text, out);
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.event("error", &Family::Anthropic.error_body(error));
    }

    fn end(&mut self, out: &mut Out) {
        self.text("", out);
        out.event("content_block_stop", &json!({ "type": "content_block_stop", "index": 0 }));
        let (reason, sequence) = stop_reason(&self.choice, &self.asked.job);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let delta = json!({ "type": "message_delta", "delta": delta, "usage": usage(&self.choice.stats) });
        out.event("message_delta", &delta);
        out.event("message_stop", &json!({ "type": "message_stop" }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_in_the_first_line_is_the_same_each_turn() {
        let turn =
            |sum: &str| same_each_turn(&format!("x-anthropic-billing-header: v=1; cch={sum}; e=2;\ncch=1;"));
        assert_eq!(turn("abc"), turn("de"));
        assert_eq!(turn("abc"), "x-anthropic-billing-header: v=1; cch=fffff; e=2;\ncch=1;");
        assert_eq!(same_each_turn("say cch=1; twice"), "say cch=1; twice");
    }
}
