//! Ollama's API: lines of JSON, streamed unless the request turns that off.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::keep_alive::{KeepAlive, Unload};
use super::ollama_models::time;
use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, PromptIds, Read, Running};
use crate::answer::TokenLogprob;
use crate::app::{App, now};
use crate::blocks::{Block, Change, Kind as Part, Reader};
use crate::constraints::{AnswerForm, Constraints, schema};
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::{Fields, Includes, Kind as _, request};
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer, fold};
use crate::images::{self, IMAGES, ImageFile, Images};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::kinds::{Any, Array, Bool, Int, List, MAX_INT, Object, Text};
use crate::messages::{self, ChatPrompt, Continuation, MESSAGES, TemplateFields, Thinking};
use crate::model::Served;
use crate::prompts;
use crate::results;
use crate::sampling::{self, Generation, TOP_LOGPROBS};
use crate::tool_config::{ToolConfig, Tools};
use sterna_engine::{GenerateOptions, PickedToken, Stats};
use sterna_grammar::Source;
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::{self, Prompt};
use sterna_tools::ParserOptions;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Creates a chat message (ollama)").body::<OllamaChatRequest>();
    let operation = operation.answer::<Line<ChatSays>>().lines::<Line<ChatSays>>();
    to.post(&["/api/chat"], chat, &operation);
    let operation = Operation::new("Continues a prompt (ollama)").body::<OllamaGenerateRequest>();
    let operation = operation.answer::<Line<GenerateSays>>().lines::<Line<GenerateSays>>();
    to.post(&["/api/generate"], generate, &operation);
}

request! {
    /// Fields shared by ollama's generating requests.
    struct OllamaRequest {
        ..KeepAlive,
        ..TemplateFields,
        ..AnswerForm,
        logprobs: Bool,
        top_logprobs: Int(0, TOP_LOGPROBS as i64),
        options: Object<OllamaOptions>,
        /// `json`, or a JSON schema.
        format: Any as { "anyOf": [{ "enum": ["", "json"] }, { "type": "object" }] },
        /// Refused if the model's template does not support thinking.
        think: Any as { "enum": [false, true, "low", "medium", "high", "max"] },
    }
}

request! {
    /// Options of ollama's requests.
    struct OllamaOptions {
        ..Generation,
        num_predict: Int(-2, MAX_INT),
    }
}

request! {
    /// A conversation in ollama's format. Without messages it loads or unloads the model.
    struct OllamaChatRequest {
        ..OfModel,
        ..Running,
        ..OllamaRequest,
        ..Continuation,
        ..Tools,
        messages: List<OllamaMessage>(MESSAGES),
    }
}

request! {
    /// A message in ollama's format.
    struct OllamaMessage {
        ..messages::Message,
        /// Files in base64, which are before the text. Without the model's mmproj file they are refused; the
        /// model is told of those in tool results.
        images: Array(IMAGES) as { "items": { "type": "string" } },
    }
}

request! {
    /// A prompt in ollama's format. Without a prompt it loads or unloads the model.
    struct OllamaGenerateRequest {
        ..OfModel,
        ..Running,
        ..OllamaRequest,
        prompt: Text,
        /// Not with `raw`. Without a chat template it is put before the prompt.
        system: Text,
        /// Passes the prompt to the model as it is, without the chat template.
        raw: Bool,
        /// The tokens of an earlier answer, to be continued.
        context: Any as { "type": "array", "items": { "type": "integer", "minimum": 0 } },
        /// Not supported.
        suffix: Text as { "maxLength": 0 },
        /// Not supported.
        template: Text as { "maxLength": 0 },
        /// Files in base64, which are before the prompt. Not together with `context`.
        images: Array(IMAGES) as { "items": { "type": "string" } },
    }
}

struct ParsedRequest {
    /// `None` only loads or unloads the model.
    job: Option<Job>,
    reading: ParserOptions,
    /// Unloads the model after the answer.
    unload: Option<Unload>,
    stream: bool,
    logprobs: bool,
}

impl ParsedRequest {
    fn of<S: Says>(read: &Read<S::Request>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields().part::<OllamaRequest>();
        let stream = read.fields().part::<Running>().stream()?.unwrap_or(true);
        let logprobs = fields.logprobs()?.unwrap_or(false);
        let top = fields.top_logprobs()?.unwrap_or(0) as usize;
        let options = fields.options()?.unwrap_or_default();
        let mut generation = sampling::generation(&options.part(), served)?;
        generation.logprobs = logprobs.then_some(top);
        let prompt = S::prompt_ids(read, served, &mut generation)?;
        let max_tokens = options.num_predict()?.map(|max| max.max(-1));
        let (job, reading) = match prompt {
            None => (None, ParserOptions::default()),
            Some((ids, images, reading)) => {
                let job = read.job(&read.fields().part(), vec![ids], generation, 1, max_tokens)?;
                (Some(Job { images, ..job }), reading)
            }
        };
        let unload = Unload::asked(read, &fields.part())?;
        Ok(Self { job, reading, unload, stream, logprobs })
    }
}

/// The format of an answer: `"json"`, or a schema, whose unenforceable keywords are ignored.
fn format(fields: &Fields<'_, OllamaRequest>) -> Result<Option<(String, Source)>, ApiError> {
    let Some(value) = fields.format()? else { return Ok(None) };
    let source = match value {
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) if text == "json" => Some(Source::JsonObject),
        Value::Object(_) => schema(value, false),
        _ => None,
    };
    let wrong = || ApiError::field("format", "`json` or a JSON schema", value);
    Ok(Some(("format".to_owned(), source.ok_or_else(wrong)?)))
}

/// The `think` field: true, false, or an effort.
fn thinking(fields: &Fields<'_, OllamaRequest>, served: &Served) -> Result<Thinking, ApiError> {
    let thinking = match fields.think()? {
        None => Thinking::default(),
        Some(Value::Bool(on)) => Thinking { on: Some(*on), effort: None },
        Some(Value::String(word)) if matches!(word.as_str(), "low" | "medium" | "high" | "max") => {
            Thinking { on: Some(true), effort: Some(word.clone()) }
        }
        Some(other) => return Err(ApiError::field("think", "true, false, low, medium or high", other)),
    };
    if thinking.on == Some(true) && served.syntax.thoughts.is_none() {
        let message = "`think`: the chat template of this model does not support thinking";
        return Err(ApiError::unsupported("think").with(message));
    }
    Ok(thinking)
}

/// A conversation; `None` if it has no messages.
fn chat_prompt(
    read: &Read<OllamaChatRequest>,
    served: &Served,
    generation: &mut GenerateOptions,
) -> Result<Option<PromptIds>, ApiError> {
    let fields = read.fields();
    let shared = fields.part::<OllamaRequest>();
    let (mut messages, mut images) = (Vec::new(), Images::of(served));
    for message in fields.messages()?.unwrap_or_default().iter() {
        let message = message?;
        let path = message.path("images");
        let files = files(&path, message.images()?)?;
        // The images are before the text, and so before those among its parts.
        let is_result = message.part::<messages::Message>().role()? == "tool";
        let marks = files.into_iter().map(|(path, data)| match is_result {
            true => results::image(&path, data, &mut images),
            false => images.add(path, ImageFile::Base64(data.to_owned())),
        });
        let mut texts: Vec<String> = marks.map(str::to_owned).collect();
        let mut said = messages::message(&message.part(), &mut images)?;
        if !texts.is_empty() {
            if said.role == "system" {
                let message = format!("`{path}`: a system message has no images");
                return Err(ApiError::in_field(path, message));
            }
            texts.push(said.content);
            said.content = images::joined(texts);
        }
        messages.push(said);
    }
    let (format, tool_config) = (format(&shared)?, ToolConfig::plain(&fields.part())?);
    let constraints = Constraints::of_conversation(&shared.part(), format, tool_config, served)?;
    let extras = messages::extras(&shared.part(), thinking(&shared, served)?)?;
    if messages.is_empty() {
        return Ok(None);
    }
    let chat = messages::going_on(&fields.part(), messages, extras)?;
    let chat = ChatPrompt { images: images.list, ..chat };
    read.prompt_ids(chat, &constraints, generation).map(Some)
}

/// Files of images in base64, each with its path.
fn files<'v>(path: &str, images: Option<&'v [Value]>) -> Result<Vec<(String, &'v str)>, ApiError> {
    let file = |(at, value): (usize, &'v Value)| {
        let path = format!("{path}[{at}]");
        let data = Text.read(path.clone(), value)?;
        Ok((path, data))
    };
    images.unwrap_or_default().iter().enumerate().map(file).collect()
}

/// A prompt: raw, or as a user's message if the model has its own template.
fn generate_prompt(
    read: &Read<OllamaGenerateRequest>,
    served: &Served,
    generation: &mut GenerateOptions,
) -> Result<Option<PromptIds>, ApiError> {
    let fields = read.fields();
    let shared = fields.part::<OllamaRequest>();
    for (name, text, way_out) in [
        ("suffix", fields.suffix(), "write the model's tokens for it into `prompt`, with `raw`"),
        ("template", fields.template(), "`sterna serve --chat-template` sets it; `raw` does without it"),
    ] {
        if text?.is_some_and(|text| !text.is_empty()) {
            let message = format!("`{name}` is not supported: {way_out}");
            return Err(ApiError::unsupported(name).with(message));
        }
    }
    let text = fields.prompt()?.unwrap_or_default();
    let context = prompts::tokens("context", fields.context()?, served)?;
    let mut images = Images::of(served);
    for (path, data) in files("images", fields.images()?)? {
        images.add(path, ImageFile::Base64(data.to_owned()));
    }
    let images = images.list;
    if !images.is_empty() && !context.is_empty() {
        let message = "`images`: not together with `context`: send the conversation to /api/chat";
        return Err(ApiError::in_field("images", message));
    }
    let thinking = thinking(&shared, served)?;
    let (format, tool_config) = (format(&shared)?, ToolConfig::default());
    let constraints = Constraints::of_conversation(&shared.part(), format, tool_config, served)?;
    if text.is_empty() && context.is_empty() && images.is_empty() {
        return Ok(None);
    }
    let system = fields.system()?.filter(|system| !system.is_empty());
    let is_raw = fields.raw()?.unwrap_or(false);
    if is_raw && system.is_some() {
        let message = "`system`: raw mode does not support system: write it into the prompt, or drop `raw`";
        return Err(ApiError::in_field("system", message));
    }
    let tokenizer = served.tokenizer();
    if is_raw || !served.chats() {
        let text = system.into_iter().chain([text]).collect::<Vec<_>>().join("\n\n");
        if let Some(n_tokens) = served.exceeds(text.len(), served.n_ctx()) {
            return Err(ApiError::too_long(n_tokens, served.n_ctx()));
        }
        let mut prompt = match images.first() {
            None => {
                let ids = tokenizer.encode(&text, Special::Parse, context.is_empty());
                Prompt { text, ids: [context, ids].concat(), images: Vec::new() }
            }
            Some(first) => images::before(served, images::check(served, first)?, images.len(), text),
        };
        let placed = images::placed(served, &mut prompt, &images)?;
        constraints.unread().apply(served, &prompt, generation)?;
        // A client that writes the raw prompt also reads the raw text.
        return Ok(Some((prompt.ids, placed, ParserOptions::default())));
    }
    let mut messages: Vec<chat::Message> =
        system.map(|system| chat::Message::new("system", system)).into_iter().collect();
    messages.push(chat::Message::new("user", chat::IMAGE.repeat(images.len()) + text));
    let extras = messages::extras(&shared.part(), thinking)?;
    let chat = ChatPrompt { messages, add_generation_prompt: true, assistant_prefix: None, extras, images };
    let (mut ids, images, reading) = read.prompt_ids(chat, &constraints, generation)?;
    // The BOS token is only at the start.
    if !context.is_empty() && ids.first().copied() == tokenizer.bos() {
        ids.remove(0);
    }
    Ok(Some(([context, ids].concat(), images, reading)))
}

async fn chat(app: Arc<App>, request: Request) -> Answer {
    respond::<ChatSays>(&app, request).await
}

async fn generate(app: Arc<App>, request: Request) -> Answer {
    respond::<GenerateSays>(&app, request).await
}

async fn respond<S: Says>(app: &Arc<App>, request: Request) -> Answer {
    let read = Read::<S::Request>::of(app, request).await?;
    let model = Arc::clone(&read.model);
    let parsed = read.work(ParsedRequest::of::<S>).await?;
    let reader = Reader::new(parsed.reading.clone());
    let mut lines = Lines { model, parsed, reader, tokens: Vec::new(), form: PhantomData::<S> };
    let Some(job) = lines.parsed.job.clone() else {
        let reason = if lines.parsed.unload.is_some() { DoneReason::Unload } else { DoneReason::Load };
        let line = lines.line(Message::default());
        return Ok(json(&Line { done: true, done_reason: Some(reason), ..line }));
    };
    let handle = app.begin(&lines.model, job)?;
    if lines.parsed.stream {
        return answer(&app.options, handle, Framing::Lines, app.options.ping, lines).await;
    }
    // The reader holds the text.
    fold(handle, &mut lines, |_| ()).await?;
    let reader = &lines.reader;
    let said = Message {
        content: reader.text(),
        thinking: reader.thoughts(),
        tool_calls: reader.blocks().iter().filter_map(call).collect(),
        ..Message::default()
    };
    let logprobs = lines.parsed.logprobs.then(|| lines.logprobs(&lines.tokens));
    Ok(json(&Line { logprobs, ..lines.last(said) }))
}

/// A line: the whole answer, or a piece of it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ollama{S}Answer")]
struct Line<S> {
    model: String,
    #[schemars(extend("format" = "date-time"))]
    created_at: String,
    done: bool,
    #[serde(flatten)]
    says: S,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<DoneReason>,
    #[serde(flatten)]
    counts: Option<Counts>,
    /// Tokens of the prompt and the answer, if it has no images.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogprob>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "snake_case")]
enum DoneReason {
    Stop,
    Length,
    Load,
    Unload,
}

/// Token counts and times in ns of an answer that has ended.
#[derive(Serialize, JsonSchema)]
struct Counts {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

/// The text field of a line.
trait Says: Serialize + JsonSchema + From<Message> + Send + 'static {
    type Request: Includes<OllamaRequest> + Includes<OfModel> + Includes<Running> + 'static;
    /// True if the last line repeats all tokens.
    const HAS_CONTEXT: bool;

    /// The prompt of a request, if it has one.
    fn prompt_ids(
        read: &Read<Self::Request>,
        served: &Served,
        generation: &mut GenerateOptions,
    ) -> Result<Option<PromptIds>, ApiError>;
}

/// Text in the format of `/api/chat`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chat")]
struct ChatSays {
    message: Message,
}

/// Text in the format of `/api/generate`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Generate")]
struct GenerateSays {
    response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
}

impl Says for ChatSays {
    type Request = OllamaChatRequest;
    const HAS_CONTEXT: bool = false;

    fn prompt_ids(
        read: &Read<OllamaChatRequest>,
        served: &Served,
        generation: &mut GenerateOptions,
    ) -> Result<Option<PromptIds>, ApiError> {
        chat_prompt(read, served, generation)
    }
}

impl Says for GenerateSays {
    type Request = OllamaGenerateRequest;
    const HAS_CONTEXT: bool = true;

    fn prompt_ids(
        read: &Read<OllamaGenerateRequest>,
        served: &Served,
        generation: &mut GenerateOptions,
    ) -> Result<Option<PromptIds>, ApiError> {
        generate_prompt(read, served, generation)
    }
}

impl From<Message> for ChatSays {
    fn from(message: Message) -> Self {
        Self { message }
    }
}

impl From<Message> for GenerateSays {
    fn from(message: Message) -> Self {
        Self { response: message.content, thinking: message.thinking }
    }
}

/// A message, or a part of one.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Message {
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

impl Default for Message {
    fn default() -> Self {
        Self { role: "assistant", content: String::new(), thinking: String::new(), tool_calls: Vec::new() }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Call {
    id: String,
    function: Function,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Function {
    index: usize,
    name: String,
    arguments: Map<String, Value>,
}

/// A call that can be run; `None` for other blocks.
fn call(block: &Block) -> Option<Call> {
    let Part::Call { index, id, name } = &block.kind else { return None };
    let function = Function { index: *index, name: name.clone(), arguments: block.arguments()? };
    Some(Call { id: id.clone(), function })
}

/// Encoder of the answer as lines.
struct Lines<S> {
    model: Arc<Instance>,
    parsed: ParsedRequest,
    reader: Reader,
    /// Tokens of the answer.
    tokens: Vec<PickedToken>,
    form: PhantomData<S>,
}

impl<S: Says> Lines<S> {
    fn line(&self, said: Message) -> Line<S> {
        Line {
            model: self.model.served.name.clone(),
            created_at: time(now()),
            done: false,
            says: said.into(),
            done_reason: None,
            counts: None,
            context: None,
            logprobs: None,
        }
    }

    fn last(&self, said: Message) -> Line<S> {
        let stats = self.reader.choice.stats;
        let Stats { prompt_tokens, prompt_time, generated_tokens, generate_time, .. } = stats;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let prompt = self.parsed.job.iter().flat_map(|job| &job.prompts[0]);
        // Rows of images are not tokens.
        let has_images = self.parsed.job.iter().any(|job| !job.images.is_empty());
        let context = prompt.copied().chain(self.tokens.iter().map(|token| token.id));
        Line {
            done: true,
            done_reason: Some(if self.reader.is_whole() { DoneReason::Stop } else { DoneReason::Length }),
            counts: Some(Counts {
                total_duration: ns(prompt_time + generate_time),
                load_duration: 0,
                prompt_eval_count: prompt_tokens,
                prompt_eval_duration: ns(prompt_time),
                eval_count: generated_tokens,
                eval_duration: ns(generate_time),
            }),
            context: (S::HAS_CONTEXT && !has_images).then(|| context.collect()),
            ..self.line(said)
        }
    }

    fn logprobs(&self, tokens: &[PickedToken]) -> Vec<TokenLogprob> {
        let tokenizer = self.model.served.tokenizer();
        tokens.iter().filter_map(|token| TokenLogprob::picked(tokenizer, token)).collect()
    }
}

impl<S: Says> Encoder for Lines<S> {
    type Piece = Line<S>;

    fn begin(&mut self, _: &mut Vec<Line<S>>) {}

    fn update(&mut self, update: Update, lines: &mut Vec<Line<S>>) {
        let Update::Event { event, stats, .. } = update else { return };
        let mut said: Vec<Message> = Vec::new();
        let token = self.reader.take(&event, stats, |_, block, change| match (change, &block.kind) {
            (Change::More(text), Part::Text) => {
                said.push(Message { content: text.to_owned(), ..Message::default() });
            }
            (Change::More(text), Part::Thoughts) => {
                said.push(Message { thinking: text.to_owned(), ..Message::default() });
            }
            (Change::Ended, Part::Call { .. }) => {
                said.extend(call(block).map(|call| Message { tool_calls: vec![call], ..Message::default() }));
            }
            _ => {}
        });
        self.tokens.extend(token.clone());
        let with_logprobs = self.parsed.logprobs && token.is_some();
        if said.is_empty() && with_logprobs {
            // A token without text still has log-probabilities.
            said.push(Message::default());
        }
        for (at, part) in said.into_iter().enumerate() {
            let tokens = if at == 0 { token.as_slice() } else { &[] };
            let logprobs = with_logprobs.then(|| self.logprobs(tokens));
            lines.push(Line { logprobs, ..self.line(part) });
        }
    }

    fn end(&mut self, lines: &mut Vec<Line<S>>) {
        self.reader.end(|_, _, _| ());
        drop(self.parsed.unload.take());
        lines.push(self.last(Message::default()));
    }

    fn write(&mut self, line: Line<S>, out: &mut Out) {
        out.line(&line);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.line(&Family::Ollama.error_body(error));
    }
}
