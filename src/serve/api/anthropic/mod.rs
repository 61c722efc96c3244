//! Anthropic's messages API. `request.rs` reads the requests; this file writes the answers.

mod request;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read, Running};
use crate::app::App;
use crate::blocks::{Block, Change, Kind, Reader};
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::{missing, request};
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer, fold};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::kinds::{Array, Int, MAX_INT, Texts};
use crate::model::Served;
use crate::sampling::{self, Generation, STOPS};
use request::MessagesInput;
use sterna_engine::{GenerateOptions, Stats};
use sterna_tools::ParserOptions;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Creates a message (Anthropic)").body::<MessagesRequest>();
    to.post(&["/v1/messages"], messages, &operation.answer::<Message>().events::<MessagesEvent>());
    let operation = Operation::new("Counts the tokens of a conversation").body::<CountRequest>();
    to.post(&["/v1/messages/count_tokens"], count_tokens, &operation.answer::<TokenCount>());
}

request! {
    /// A conversation in Anthropic's format, to be continued.
    struct MessagesRequest {
        ..OfModel,
        ..MessagesInput,
        ..Generation,
        ..Running,
        max_tokens: Int(1, MAX_INT) or missing("a whole number"),
        stop_sequences: Texts(STOPS.0, STOPS.1),
        /// Not supported.
        mcp_servers: Array(usize::MAX) as { "maxItems": 0 },
    }
}

request! {
    /// A conversation in Anthropic's format.
    struct CountRequest {
        ..OfModel,
        ..MessagesInput,
    }
}

struct ParsedRequest {
    job: Job,
    reading: ParserOptions,
    stream: bool,
}

impl ParsedRequest {
    fn of(read: &Read<MessagesRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        let max_tokens = fields.max_tokens()?;
        if fields.mcp_servers()?.is_some_and(|servers| !servers.is_empty()) {
            return Err(ApiError::unsupported("mcp_servers"));
        }
        let (chat, constraints) = request::read(&fields.part(), served)?;
        let mut options = GenerateOptions {
            stop: fields.stop_sequences()?.unwrap_or_default(),
            ..sampling::generation(&fields.part(), served)?
        };
        let (prompt, images, reading) = read.prompt_ids(chat, &constraints, &mut options)?;
        Ok(Self {
            job: Job { images, ..read.job(&fields.part(), vec![prompt], options, 1, Some(max_tokens))? },
            reading,
            stream: fields.part::<Running>().stream()?.unwrap_or(false),
        })
    }
}

/// Number of tokens of a conversation.
#[derive(Serialize, JsonSchema)]
struct TokenCount {
    input_tokens: usize,
}

async fn count_tokens(app: Arc<App>, request: Request) -> Answer {
    let count = Read::<CountRequest>::of(&app, request).await?.work(|read, served| {
        let (chat, constraints) = request::read(&read.fields().part(), served)?;
        chat.offering(&constraints, served).count(served)
    });
    Ok(json(&TokenCount { input_tokens: count.await? }))
}

async fn messages(app: Arc<App>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let reader = Reader::new(parsed.reading.clone());
    let mut events = Events { id: app.name("msg_"), model, parsed, reader };
    if events.parsed.stream {
        return answer(&app.options, handle, Framing::Events, Duration::ZERO, events).await;
    }
    // The reader holds the blocks.
    fold(handle, &mut events, |_| ()).await?;
    let content = events.reader.blocks().iter().filter_map(content).collect();
    Ok(json(&Message { end: events.end_of(), ..events.message(content, events.reader.choice.stats) }))
}

/// A message, whole or as it starts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MessagesAnswer")]
struct Message {
    #[schemars(regex(pattern = "^msg_"))]
    id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    kind: &'static str,
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    model: String,
    content: Vec<Content>,
    #[serde(flatten)]
    end: End,
    usage: Usage,
}

/// Reason why a message ended; null until then.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct End {
    stop_reason: Option<StopReason>,
    /// The stop string that was found.
    stop_sequence: Option<String>,
}

/// Reason why a message ended.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicStopReason")]
#[serde(rename_all = "snake_case")]
enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

/// A block of a message.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content {
    /// Thinking blocks are not signed here.
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
}

/// Anthropic counts cached tokens separately.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicUsage")]
struct Usage {
    input_tokens: usize,
    cache_read_input_tokens: usize,
    cache_creation_input_tokens: usize,
    output_tokens: usize,
}

/// An event of a streamed message.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MessagesEvent")]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessagesEvent {
    Ping,
    MessageStart { message: Message },
    ContentBlockStart { index: usize, content_block: Content },
    ContentBlockDelta { index: usize, delta: More },
    ContentBlockStop { index: usize },
    MessageDelta { delta: End, usage: Usage },
    MessageStop,
}

impl MessagesEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

/// The next piece of a block.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(tag = "type")]
enum More {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    Arguments { partial_json: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
}

/// A block as shown to the client. A call that was cut off is left out: its input would not be an object.
fn content(block: &Block) -> Option<Content> {
    let text = block.text.clone();
    Some(match &block.kind {
        Kind::Thoughts => Content::Thinking { thinking: text, signature: "" },
        Kind::Text => Content::Text { text },
        Kind::Call { id, name, .. } => {
            Content::ToolUse { id: id.clone(), name: name.clone(), input: block.arguments()? }
        }
    })
}

fn tell(events: &mut Vec<MessagesEvent>, index: usize, block: &Block, change: Change<'_>) {
    let delta = |delta| MessagesEvent::ContentBlockDelta { index, delta };
    let event = match (change, &block.kind) {
        (Change::Begun, kind) => {
            let content_block = match kind {
                Kind::Thoughts => Content::Thinking { thinking: String::new(), signature: "" },
                Kind::Text => Content::Text { text: String::new() },
                Kind::Call { id, name, .. } => {
                    Content::ToolUse { id: id.clone(), name: name.clone(), input: Map::new() }
                }
            };
            MessagesEvent::ContentBlockStart { index, content_block }
        }
        (Change::More(text), Kind::Thoughts) => delta(More::Thinking { thinking: text.into() }),
        (Change::More(text), Kind::Text) => delta(More::Text { text: text.into() }),
        (Change::More(text), Kind::Call { .. }) => delta(More::Arguments { partial_json: text.into() }),
        (Change::Ended, kind) => {
            if *kind == Kind::Thoughts {
                events.push(delta(More::Signature { signature: "" }));
            }
            MessagesEvent::ContentBlockStop { index }
        }
    };
    events.push(event);
}

/// Encoder of the answer as events.
struct Events {
    id: String,
    model: Arc<Instance>,
    parsed: ParsedRequest,
    reader: Reader,
}

impl Events {
    fn message(&self, content: Vec<Content>, stats: Stats) -> Message {
        Message {
            id: self.id.clone(),
            kind: "message",
            role: "assistant",
            model: self.model.served.name.clone(),
            content,
            end: End::default(),
            usage: Usage::from(stats),
        }
    }

    fn end_of(&self) -> End {
        let (choice, stops) = (&self.reader.choice, &self.parsed.job.options.stop);
        let reason = match choice.end {
            Some(sterna_engine::StopReason::EndOfText) if self.reader.calls() => StopReason::ToolUse,
            Some(sterna_engine::StopReason::EndOfText) => StopReason::EndTurn,
            Some(sterna_engine::StopReason::StopString) => StopReason::StopSequence,
            _ => StopReason::MaxTokens,
        };
        End { stop_reason: Some(reason), stop_sequence: choice.stopping_word(stops).map(str::to_owned) }
    }
}

impl From<Stats> for Usage {
    fn from(stats: Stats) -> Self {
        Self {
            input_tokens: stats.prompt_tokens.saturating_sub(stats.cached_tokens),
            cache_read_input_tokens: stats.cached_tokens,
            cache_creation_input_tokens: 0,
            output_tokens: stats.generated_tokens,
        }
    }
}

impl Encoder for Events {
    type Piece = MessagesEvent;

    fn begin(&mut self, events: &mut Vec<MessagesEvent>) {
        let prompt_tokens = self.parsed.job.prompts[0].len();
        let message = self.message(Vec::new(), Stats { prompt_tokens, ..Stats::default() });
        events.push(MessagesEvent::MessageStart { message });
    }

    fn update(&mut self, update: Update, events: &mut Vec<MessagesEvent>) {
        match update {
            Update::Progress { .. } => events.push(MessagesEvent::Ping),
            Update::Scores { .. } | Update::Vector { .. } => {}
            Update::Event { event, stats, .. } => {
                self.reader.take(&event, stats, |index, block, change| tell(events, index, block, change));
            }
        }
    }

    fn end(&mut self, events: &mut Vec<MessagesEvent>) {
        self.reader.end(|index, block, change| tell(events, index, block, change));
        let usage = Usage::from(self.reader.choice.stats);
        events.push(MessagesEvent::MessageDelta { delta: self.end_of(), usage });
        events.push(MessagesEvent::MessageStop);
    }

    fn write(&mut self, event: MessagesEvent, out: &mut Out) {
        out.event(event.name(), &event);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.event("error", &Family::Anthropic.error_body(error));
    }
}
