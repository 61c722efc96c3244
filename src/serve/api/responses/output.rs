//! A response: its items, whole or as events.

use std::sync::Arc;

use serde_json::{Value, json};

use super::tools::{Names, Origin};
use crate::app::now;
use crate::blocks::{Block, Change, Kind, Reader};
use crate::error::ApiError;
use crate::http::stream::{Encoder, Out};
use crate::instance::Instance;
use crate::job::Update;
use sterna_engine::Stats;

/// Fields that are the same in a response from its beginning to its end.
pub struct Head {
    /// Common part of its id and those of its items.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: Arc<Instance>,
    /// Fields of the request that are repeated.
    pub repeated: Value,
    /// Names that the client has for its tools.
    pub names: Names,
}

impl Head {
    /// The response, as far as it has come.
    fn response(&self, status: &str, output: Value) -> Value {
        let mut response = json!({
            "id": format!("resp_{}", self.id),
            "object": "response",
            "created_at": self.created,
            "completed_at": null,
            "status": status,
            "background": false,
            "conversation": null,
            "error": null,
            "incomplete_details": null,
            "model": self.model.served.name,
            "output": output,
            "previous_response_id": null,
            "prompt": null,
            "store": false,
            "usage": null,
        });
        for (name, value) in self.repeated.as_object().into_iter().flatten() {
            response[name] = value.clone();
        }
        response
    }

    /// The response at its end.
    pub fn ended(&self, reader: &Reader) -> Value {
        let status = status(reader.is_whole());
        let items = reader.blocks().iter().enumerate();
        let items = items.map(|(at, block)| self.item(at, block, self::status(block.is_whole)));
        let mut response = self.response(status, items.collect());
        match reader.is_whole() {
            true => response["completed_at"] = now().into(),
            false => response["incomplete_details"] = json!({ "reason": "max_output_tokens" }),
        }
        let Stats { prompt_tokens, cached_tokens, generated_tokens, .. } = reader.choice.stats;
        let n_thoughts = reader.n_thoughts(self.model.served.tokenizer());
        response["usage"] = json!({
            "input_tokens": prompt_tokens,
            "input_tokens_details": { "cached_tokens": cached_tokens, "cache_write_tokens": 0 },
            "output_tokens": generated_tokens,
            "output_tokens_details": { "reasoning_tokens": n_thoughts.min(generated_tokens) },
            "total_tokens": prompt_tokens + generated_tokens,
        });
        response
    }

    /// Id of an item.
    fn item_id(&self, at: usize, kind: &Kind) -> String {
        let head = match kind {
            Kind::Thoughts => "rs",
            Kind::Text => "msg",
            Kind::Call { name, .. } if self.names.origin(name).is_custom => "ctc",
            Kind::Call { .. } => "fc",
        };
        format!("{head}_{}{at}", self.id)
    }

    /// An item, as far as it has come.
    fn item(&self, at: usize, block: &Block, status: &str) -> Value {
        let id = self.item_id(at, &block.kind);
        let content = if status == "in_progress" { json!([]) } else { json!([part(block)]) };
        match &block.kind {
            Kind::Thoughts => {
                json!({ "type": "reasoning", "id": id, "status": status, "summary": [], "content": content })
            }
            Kind::Text => json!({
                "type": "message", "id": id, "status": status, "role": "assistant", "content": content,
            }),
            Kind::Call { id: call_id, name, .. } => {
                let Origin { namespace, name, is_custom } = self.names.origin(name);
                let (kind, holder, text) = match is_custom {
                    true => ("custom_tool_call", "input", input(block)),
                    false => ("function_call", "arguments", block.text.clone()),
                };
                let mut item = json!({
                    "type": kind, "id": id, "status": status, "call_id": call_id, "name": name, holder: text,
                });
                if let Some(namespace) = namespace {
                    item["namespace"] = namespace.into();
                }
                item
            }
        }
    }
}

/// The input that a custom tool was called with. What was cut off is none.
fn input(block: &Block) -> String {
    let arguments = block.arguments().unwrap_or_default();
    arguments["input"].as_str().unwrap_or_default().to_owned()
}

fn status(is_whole: bool) -> &'static str {
    if is_whole { "completed" } else { "incomplete" }
}

/// The one part of an item that has content.
fn part(block: &Block) -> Value {
    match block.kind {
        Kind::Thoughts => json!({ "type": "reasoning_text", "text": block.text }),
        _ => json!({ "type": "output_text", "text": block.text, "annotations": [], "logprobs": [] }),
    }
}

/// The response as events.
pub struct Events {
    head: Head,
    reader: Reader,
    teller: Teller,
}

impl Events {
    /// Events of a response that begins.
    pub fn new(head: Head, reader: Reader) -> Self {
        Self { head, reader, teller: Teller::default() }
    }
}

/// Counts events.
#[derive(Debug, Default)]
struct Teller {
    number: u64,
}

impl Teller {
    fn say(&mut self, out: &mut Out, kind: &str, mut event: Value) {
        event["type"] = kind.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        out.event(kind, &event);
    }

    /// Events of a block.
    fn tell(&mut self, out: &mut Out, head: &Head, at: usize, block: &Block, change: Change<'_>) {
        let item = |status: &str| json!({ "output_index": at, "item": head.item(at, block, status) });
        let of_item = |mut more: Value| {
            more["item_id"] = head.item_id(at, &block.kind).into();
            more["output_index"] = at.into();
            if !matches!(block.kind, Kind::Call { .. }) {
                more["content_index"] = 0.into();
            }
            more
        };
        let origin = match &block.kind {
            Kind::Call { name, .. } => Some(head.names.origin(name)),
            _ => None,
        };
        let (name, has_part) = match (&block.kind, &origin) {
            (Kind::Thoughts, _) => ("reasoning_text", true),
            (_, Some(Origin { is_custom: true, .. })) => ("custom_tool_call_input", false),
            (_, Some(_)) => ("function_call_arguments", false),
            (_, None) => ("output_text", true),
        };
        let with_logprobs = |mut more: Value| {
            if block.kind == Kind::Text {
                more["logprobs"] = json!([]);
            }
            of_item(more)
        };
        match change {
            Change::Begun => {
                self.say(out, "response.output_item.added", item("in_progress"));
                if has_part {
                    let event = of_item(json!({ "part": part(block) }));
                    self.say(out, "response.content_part.added", event);
                }
            }
            // The input is a text within the arguments: it is told when it is whole.
            Change::More(_) if name == "custom_tool_call_input" => {}
            Change::More(text) => {
                let event = with_logprobs(json!({ "delta": text }));
                self.say(out, &format!("response.{name}.delta"), event);
            }
            Change::Ended => {
                let mut event = match origin {
                    Some(Origin { is_custom: true, .. }) => {
                        let event = of_item(json!({ "delta": input(block) }));
                        self.say(out, &format!("response.{name}.delta"), event);
                        json!({ "input": input(block) })
                    }
                    Some(Origin { name, .. }) => json!({ "name": name, "arguments": block.text }),
                    None => json!({ "text": block.text }),
                };
                event = with_logprobs(event);
                self.say(out, &format!("response.{name}.done"), event);
                if has_part {
                    let event = of_item(json!({ "part": part(block) }));
                    self.say(out, "response.content_part.done", event);
                }
                self.say(out, "response.output_item.done", item(status(block.is_whole)));
            }
        }
    }
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.head.response("in_progress", json!([]));
            self.teller.say(out, kind, json!({ "response": response }));
        }
    }

    fn update(&mut self, update: Update, out: &mut Out) {
        let Update::Event { event, stats, .. } = update else { return };
        let Self { head, reader, teller } = self;
        reader.take(&event, stats, |at, block, change| teller.tell(out, head, at, block, change));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        let mut response = self.head.response("failed", json!([]));
        response["error"] = json!({ "code": "server_error", "message": error.message });
        self.teller.say(out, "response.failed", json!({ "response": response }));
    }

    fn end(&mut self, out: &mut Out) {
        let Self { head, reader, teller } = self;
        reader.end(|at, block, change| teller.tell(out, head, at, block, change));
        let kind = format!("response.{}", status(reader.is_whole()));
        let response = head.ended(reader);
        teller.say(out, &kind, json!({ "response": response }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_custom_tool_is_a_text_or_nothing() {
        let of = |text: &str, is_whole| {
            let kind = Kind::Call { index: 0, id: "c".into(), name: "patch".into() };
            input(&Block { kind, text: text.into(), is_whole })
        };
        assert_eq!(of(r#"{"input": "a\n\"b\""}"#, true), "a\n\"b\"");
        for (text, is_whole) in
            [(r#"{"input": "a"}"#, false), (r#"{"input": "a"#, true), ("", true), ("{}", true)]
        {
            assert_eq!(of(text, is_whole), "", "{text}");
        }
    }
}
