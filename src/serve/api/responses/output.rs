//! A response and its items, whole or as events.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::ResponsesRequest;
use super::tools::{Names, Origin};
use crate::app::now;
use crate::blocks::{Block, Change, Kind, Reader};
use crate::error::ApiError;
use crate::fields::{Fields, request};
use crate::http::stream::{Encoder, Out};
use crate::instance::Instance;
use crate::job::Update;
use crate::kinds::Any;
use sterna_engine::{SamplerOptions, Stats};

/// Fields that stay the same from the start of a response to its end.
pub struct Head {
    /// Common part of its id and those of its items.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: Arc<Instance>,
    /// Fields of the request that are repeated.
    pub repeated: Repeated,
    /// The client's names of its tools.
    pub names: Names,
}

/// A response, complete or in progress.
#[derive(Serialize, JsonSchema)]
pub struct ResponsesAnswer {
    #[schemars(regex(pattern = "^resp_"))]
    id: String,
    #[schemars(extend("const" = "response"))]
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: Status,
    #[schemars(extend("const" = false))]
    background: bool,
    conversation: (),
    error: Option<Failure>,
    incomplete_details: Option<Incomplete>,
    model: String,
    output: Vec<Item>,
    previous_response_id: (),
    prompt: (),
    #[schemars(extend("const" = false))]
    store: bool,
    /// Null until the end.
    usage: Option<Usage>,
    #[serde(flatten)]
    repeated: Repeated,
}

/// State of a response or an item.
#[derive(Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ResponsesStatus")]
#[serde(rename_all = "snake_case")]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    fn at_end(is_whole: bool) -> Self {
        if is_whole { Self::Completed } else { Self::Incomplete }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Failure {
    code: &'static str,
    message: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Incomplete {
    #[schemars(extend("const" = "max_output_tokens"))]
    reason: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponsesUsage")]
struct Usage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct InputDetails {
    cached_tokens: usize,
    cache_write_tokens: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct OutputDetails {
    reasoning_tokens: usize,
}

request! {
    /// Fields that the answer repeats, and that have no other effect.
    pub enum Repeatable = ["max_tool_calls", "metadata", "safety_identifier", "service_tier", "user"];
}

/// Fields of a request that its answer repeats.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Repeated {
    temperature: f64,
    top_p: f64,
    top_logprobs: usize,
    instructions: Value,
    max_output_tokens: Value,
    max_tool_calls: Value,
    metadata: Value,
    parallel_tool_calls: Value,
    prompt_cache_key: Value,
    reasoning: Value,
    safety_identifier: Value,
    service_tier: Value,
    text: Value,
    tool_choice: Value,
    tools: Value,
    truncation: Value,
    user: Value,
}

impl Repeated {
    /// Values from the request, or their defaults.
    pub fn new(fields: &Fields<'_, ResponsesRequest>, sampler: &SamplerOptions) -> Self {
        let given = |name, missing| fields.given(&[name]).cloned().unwrap_or(missing);
        Self {
            temperature: sampler.temperature.into(),
            top_p: sampler.top_p.into(),
            top_logprobs: 0,
            instructions: given("instructions", Value::Null),
            max_output_tokens: given("max_output_tokens", Value::Null),
            max_tool_calls: given("max_tool_calls", Value::Null),
            metadata: given("metadata", json!({})),
            parallel_tool_calls: given("parallel_tool_calls", true.into()),
            prompt_cache_key: given("prompt_cache_key", Value::Null),
            reasoning: given("reasoning", json!({ "effort": null, "summary": null })),
            safety_identifier: given("safety_identifier", Value::Null),
            service_tier: given("service_tier", "default".into()),
            text: given("text", json!({ "format": { "type": "text" } })),
            tool_choice: given("tool_choice", "auto".into()),
            tools: given("tools", json!([])),
            truncation: given("truncation", "disabled".into()),
            user: given("user", Value::Null),
        }
    }
}

/// An item of a response.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponsesItem")]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item {
    Reasoning {
        id: String,
        status: Status,
        summary: [(); 0],
        content: Vec<Part>,
    },
    Message {
        id: String,
        status: Status,
        #[schemars(extend("const" = "assistant"))]
        role: &'static str,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        status: Status,
        call_id: String,
        name: String,
        arguments: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
    },
    CustomToolCall {
        id: String,
        status: Status,
        call_id: String,
        name: String,
        input: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
    },
}

/// A part of an item's content.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponsesPart")]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    ReasoningText { text: String },
    OutputText { text: String, annotations: [(); 0], logprobs: [(); 0] },
}

impl Head {
    /// The response so far.
    fn response(&self, status: Status, output: Vec<Item>) -> ResponsesAnswer {
        ResponsesAnswer {
            id: format!("resp_{}", self.id),
            object: "response",
            created_at: self.created,
            completed_at: None,
            status,
            background: false,
            conversation: (),
            error: None,
            incomplete_details: None,
            model: self.model.served.name.clone(),
            output,
            previous_response_id: (),
            prompt: (),
            store: false,
            usage: None,
            repeated: self.repeated.clone(),
        }
    }

    /// The response at its end.
    fn ended(&self, reader: &Reader) -> ResponsesAnswer {
        let items = reader.blocks().iter().enumerate();
        let items = items.map(|(at, block)| self.item(at, block, Status::at_end(block.is_whole)));
        let whole = reader.is_whole();
        let Stats { prompt_tokens, cached_tokens, generated_tokens, .. } = reader.choice.stats;
        let n_thoughts = reader.n_thoughts(self.model.served.tokenizer());
        ResponsesAnswer {
            completed_at: whole.then(now),
            incomplete_details: (!whole).then_some(Incomplete { reason: "max_output_tokens" }),
            usage: Some(Usage {
                input_tokens: prompt_tokens,
                input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
                output_tokens: generated_tokens,
                output_tokens_details: OutputDetails { reasoning_tokens: n_thoughts.min(generated_tokens) },
                total_tokens: prompt_tokens + generated_tokens,
            }),
            ..self.response(Status::at_end(whole), items.collect())
        }
    }

    fn item_id(&self, at: usize, kind: &Kind) -> String {
        let head = match kind {
            Kind::Thoughts => "rs",
            Kind::Text => "msg",
            Kind::Call { name, .. } if self.names.origin(name).is_custom => "ctc",
            Kind::Call { .. } => "fc",
        };
        format!("{head}_{}{at}", self.id)
    }

    /// An item, complete or in progress.
    fn item(&self, at: usize, block: &Block, status: Status) -> Item {
        let id = self.item_id(at, &block.kind);
        let content = if status == Status::InProgress { Vec::new() } else { vec![part(block)] };
        match &block.kind {
            Kind::Thoughts => Item::Reasoning { id, status, summary: [], content },
            Kind::Text => Item::Message { id, status, role: "assistant", content },
            Kind::Call { id: call_id, name, .. } => {
                let Origin { namespace, name, is_custom } = self.names.origin(name);
                let call_id = call_id.clone();
                match is_custom {
                    true => {
                        Item::CustomToolCall { id, status, call_id, name, input: input(block), namespace }
                    }
                    false => {
                        let arguments = block.text.clone();
                        Item::FunctionCall { id, status, call_id, name, arguments, namespace }
                    }
                }
            }
        }
    }
}

/// The input of a call of a custom tool; empty if it was cut off.
fn input(block: &Block) -> String {
    let arguments = block.arguments().unwrap_or_default();
    arguments.get("input").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The single content part of an item.
fn part(block: &Block) -> Part {
    let text = block.text.clone();
    match block.kind {
        Kind::Thoughts => Part::ReasoningText { text },
        _ => Part::OutputText { text, annotations: [], logprobs: [] },
    }
}

/// An event of a streamed response.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResponsesEvent")]
pub struct Event {
    #[serde(flatten)]
    told: Told,
    #[serde(rename = "type")]
    kind: String,
    /// Counts the events.
    sequence_number: u64,
}

/// Payload of an event.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Told {
    Response { response: Box<ResponsesAnswer> },
    Item { output_index: usize, item: Item },
    OfItem(OfItem),
}

/// New content of an item.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct OfItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
    item_id: String,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
}

/// Encoder of the response as events.
pub struct Events {
    head: Head,
    reader: Reader,
    teller: Teller,
}

impl Events {
    /// Events of a new response.
    pub fn new(head: Head, reader: Reader) -> Self {
        Self { head, reader, teller: Teller::default() }
    }

    /// The response at its end.
    pub fn ended(&self) -> ResponsesAnswer {
        self.head.ended(&self.reader)
    }
}

/// Counts events.
#[derive(Debug, Default)]
struct Teller {
    number: u64,
}

impl Teller {
    fn event(&mut self, kind: &str, told: Told) -> Event {
        let sequence_number = self.number;
        self.number += 1;
        Event { told, kind: format!("response.{kind}"), sequence_number }
    }

    fn response(&mut self, kind: &str, response: ResponsesAnswer) -> Event {
        self.event(kind, Told::Response { response: Box::new(response) })
    }

    fn tell(&mut self, events: &mut Vec<Event>, head: &Head, at: usize, block: &Block, change: Change<'_>) {
        let item = |status| Told::Item { output_index: at, item: head.item(at, block, status) };
        let of_item = |news| {
            Told::OfItem(OfItem {
                item_id: head.item_id(at, &block.kind),
                output_index: at,
                content_index: (!matches!(block.kind, Kind::Call { .. })).then_some(0),
                ..news
            })
        };
        let of_part = || of_item(OfItem { part: Some(part(block)), ..OfItem::default() });
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
        let logprobs = (block.kind == Kind::Text).then_some([]);
        let delta = |text: String| of_item(OfItem { delta: Some(text), logprobs, ..OfItem::default() });
        match change {
            Change::Begun => {
                events.push(self.event("output_item.added", item(Status::InProgress)));
                if has_part {
                    events.push(self.event("content_part.added", of_part()));
                }
            }
            // The input is a text inside the arguments, so it is sent when complete.
            Change::More(_) if name == "custom_tool_call_input" => {}
            Change::More(text) => events.push(self.event(&format!("{name}.delta"), delta(text.into()))),
            Change::Ended => {
                let news = match origin {
                    Some(Origin { is_custom: true, .. }) => {
                        events.push(self.event(&format!("{name}.delta"), delta(input(block))));
                        OfItem { input: Some(input(block)), ..OfItem::default() }
                    }
                    Some(Origin { name, .. }) => {
                        OfItem { name: Some(name), arguments: Some(block.text.clone()), ..OfItem::default() }
                    }
                    None => OfItem { text: Some(block.text.clone()), logprobs, ..OfItem::default() },
                };
                events.push(self.event(&format!("{name}.done"), of_item(news)));
                if has_part {
                    events.push(self.event("content_part.done", of_part()));
                }
                events.push(self.event("output_item.done", item(Status::at_end(block.is_whole))));
            }
        }
    }
}

impl Encoder for Events {
    type Piece = Event;

    fn begin(&mut self, events: &mut Vec<Event>) {
        for kind in ["created", "in_progress"] {
            let response = self.head.response(Status::InProgress, Vec::new());
            events.push(self.teller.response(kind, response));
        }
    }

    fn update(&mut self, update: Update, events: &mut Vec<Event>) {
        let Update::Event { event, stats, .. } = update else { return };
        let Self { head, reader, teller } = self;
        reader.take(&event, stats, |at, block, change| teller.tell(events, head, at, block, change));
    }

    fn end(&mut self, events: &mut Vec<Event>) {
        let Self { head, reader, teller } = self;
        reader.end(|at, block, change| teller.tell(events, head, at, block, change));
        let kind = if reader.is_whole() { "completed" } else { "incomplete" };
        events.push(teller.response(kind, head.ended(reader)));
    }

    fn write(&mut self, event: Event, out: &mut Out) {
        out.event(&event.kind, &event);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        let mut response = self.head.response(Status::Failed, Vec::new());
        response.error = Some(Failure { code: "server_error", message: error.message.clone() });
        let event = self.teller.response("failed", response);
        self.write(event, out);
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
