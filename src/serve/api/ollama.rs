//! Ollama's API: lines of JSON, streamed unless the request turns that off.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, PromptIds, Read, Running};
use crate::answer::TokenLogprob;
use crate::app::{App, now};
use crate::blocks::{Block, Change, Kind as Part, Reader};
use crate::constraints::{AnswerForm, Constraints, schema};
use crate::details::Details;
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::{Fields, Includes, request};
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer, fold};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::kinds::{Any, Array, Bool, Int, List, MOST, Object, Text};
use crate::messages::{self, ChatPrompt, Continuation, MESSAGES, TemplateFields, Thinking};
use crate::model::Served;
use crate::prompts;
use crate::sampling::{self, Generation, TOP_LOGPROBS};
use crate::tool_config::{ToolConfig, Tools};
use sterna_engine::{GenerateOptions, PickedToken, Stats};
use sterna_grammar::Source;
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::{self, Prompt};
use sterna_tools::ParserOptions;

/// Clients compare this with the version that added the features they need.
const VERSION: &str = "0.12.0";

pub fn add(to: &mut Endpoints) {
    let version = |_, _| async { Ok(json(&Version { version: VERSION })) };
    let operation = Operation::new("The version of ollama's API").answer::<Version>();
    to.get(&["/api/version"], version, &operation);
    let operation = |summary| Operation::new(summary).fails(&[500, 503]).answer::<Models>();
    to.get(&["/api/tags"], tags, &operation("The models"));
    to.get(&["/api/ps"], ps, &operation("The models that are loaded"));
    let operation = Operation::new("Shows a model").body::<OllamaShowRequest>().answer::<Shown>();
    to.post(&["/api/show"], show, &operation);
    let operation = Operation::new("Creates a chat message (ollama)").body::<OllamaChatRequest>();
    let operation = operation.answer::<Line<ChatSays>>().lines::<Line<ChatSays>>();
    to.post(&["/api/chat"], chat, &operation);
    let operation = Operation::new("Continues a prompt (ollama)").body::<OllamaGenerateRequest>();
    let operation = operation.answer::<Line<GenerateSays>>().lines::<Line<GenerateSays>>();
    to.post(&["/api/generate"], generate, &operation);

    let not_here = |_, _| async { Err(ApiError::not_here("models are chosen when the server is started")) };
    let operation = Operation::new("Not supported").fails(&[500, 501]);
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy"] {
        to.post(&[path], not_here, &operation);
    }
    to.delete(&["/api/delete"], not_here, &operation);
}

/// The version of ollama's API.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Version {
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaModels")]
struct Models {
    models: Vec<Entry>,
}

/// A model.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Entry {
    name: String,
    model: String,
    modified_at: String,
    /// Size of its weights, or of its file, in bytes.
    size: u64,
    digest: &'static str,
    details: Details,
    /// Present for a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<Vec<&'static str>>,
    #[serde(flatten)]
    loaded: Option<LoadedEntry>,
}

/// Additional fields of loaded models.
#[derive(Serialize, JsonSchema)]
struct LoadedEntry {
    size_vram: u64,
    context_length: usize,
    expires_at: String,
}

/// All details of a model.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
struct Shown {
    modelfile: &'static str,
    parameters: &'static str,
    template: String,
    details: Details,
    /// Metadata of its file, by name.
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

fn entry(served: &Served) -> Entry {
    Entry {
        name: served.name.clone(),
        model: served.name.clone(),
        modified_at: time(served.created),
        size: served.engine.plan().weights_bytes,
        digest: "",
        details: Details::new(Some(served)),
        capabilities: Some(served.capabilities()),
        loaded: None,
    }
}

async fn tags(app: Arc<App>, _: Request) -> Answer {
    app.check()?;
    let models = app.models.list();
    let entries = models.iter().map(|(source, _, instance)| match instance {
        Some(instance) => entry(&instance.served),
        None => Entry {
            name: source.name.clone(),
            model: source.name.clone(),
            modified_at: time(app.started),
            size: source.file_bytes,
            digest: "",
            details: Details::new(None),
            capabilities: None,
            loaded: None,
        },
    });
    Ok(json(&Models { models: entries.collect() }))
}

async fn ps(app: Arc<App>, _: Request) -> Answer {
    app.check()?;
    let models = app.models.list();
    let loaded = models.iter().filter_map(|(.., instance)| instance.as_ref());
    let entries = loaded.map(|instance| {
        let served = &instance.served;
        let expires_at = time(now() + 86_400);
        let loaded = LoadedEntry { size_vram: 0, context_length: served.n_ctx(), expires_at };
        Entry { loaded: Some(loaded), ..entry(served) }
    });
    Ok(json(&Models { models: entries.collect() }))
}

async fn show(app: Arc<App>, request: Request) -> Answer {
    let read = Read::<OllamaShowRequest>::of(&app, request).await?;
    let served = &read.model.served;
    let hyper = served.engine.hyper();
    let of = |name: &str| format!("{}.{name}", hyper.architecture);
    let mut info = Map::new();
    info.insert("general.architecture".into(), hyper.architecture.as_str().into());
    info.insert("general.parameter_count".into(), served.n_params().into());
    info.insert(of("context_length"), hyper.n_ctx_train.into());
    info.insert(of("embedding_length"), hyper.dim.into());
    info.insert(of("block_count"), hyper.n_layers.into());
    Ok(json(&Shown {
        modelfile: "",
        parameters: "",
        template: if served.chats() { served.template.source().to_owned() } else { String::new() },
        details: Details::new(Some(served)),
        model_info: info,
        capabilities: served.capabilities(),
        modified_at: time(served.created),
    }))
}

request! {
    /// A model to show.
    struct OllamaShowRequest {
        ..OfModel,
    }
}

request! {
    /// Fields shared by ollama's generating requests.
    struct OllamaRequest {
        ..TemplateFields,
        ..AnswerForm,
        logprobs: Bool,
        top_logprobs: Int(0, TOP_LOGPROBS as i64),
        options: Object<OllamaOptions>,
        /// `json`, or a JSON schema.
        format: Any as { "anyOf": [{ "enum": ["", "json"] }, { "type": "object" }] },
        /// Refused if the model's template does not support thinking.
        think: Any as { "enum": [false, true, "low", "medium", "high", "max"] },
        /// Only used without a text: 0 unloads the model, if it can be loaded again.
        keep_alive: Any as { "type": ["string", "number"] },
    }
}

request! {
    /// Options of ollama's requests.
    struct OllamaOptions {
        ..Generation,
        num_predict: Int(-2, MOST),
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
        /// Only in tool results; the model is told that there are images.
        images: Any as { "type": "array" },
    }
}

request! {
    /// A prompt in ollama's format. Without a prompt it loads or unloads the model.
    struct OllamaGenerateRequest {
        ..OfModel,
        ..Running,
        ..OllamaRequest,
        prompt: Text,
        system: Text,
        /// Passes the prompt to the model as it is, without the chat template.
        raw: Bool,
        /// The tokens of an earlier answer, to be continued.
        context: Any as { "type": "array", "items": { "type": "integer", "minimum": 0 } },
        /// Not supported.
        suffix: Text as { "maxLength": 0 },
        /// Not supported.
        template: Text as { "maxLength": 0 },
        /// Not supported.
        images: Array(usize::MAX) as { "maxItems": 0 },
    }
}

struct ParsedRequest {
    /// `None` only loads or unloads the model.
    job: Option<Job>,
    reading: ParserOptions,
    unloads: bool,
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
        let (prompt, reading) = S::prompt_ids(read, served, &mut generation)?.unzip();
        let max_tokens = options.num_predict()?.map(|max| max.max(-1));
        let job = |prompt| read.job(&read.fields().part(), vec![prompt], generation, 1, max_tokens);
        let (job, reading) = (prompt.map(job).transpose()?, reading.unwrap_or_default());
        // Without a prompt, `keep_alive` of 0 unloads a model that can be loaded again.
        let unloads = job.is_none() && read.app.models.by_name && is_zero(fields.keep_alive()?);
        Ok(Self { job, reading, unloads, stream, logprobs })
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

/// True for a duration of zero: 0, or a text such as `0s`.
pub(super) fn is_zero(time: Option<&Value>) -> bool {
    match time {
        Some(Value::String(text)) => text.trim_end_matches(char::is_alphabetic) == "0",
        Some(number) => number.as_f64() == Some(0.0),
        None => false,
    }
}

/// A conversation; `None` if it has no messages.
fn chat_prompt(
    read: &Read<OllamaChatRequest>,
    served: &Served,
    generation: &mut GenerateOptions,
) -> Result<Option<PromptIds>, ApiError> {
    let fields = read.fields();
    let shared = fields.part::<OllamaRequest>();
    let mut messages = Vec::new();
    for message in fields.messages()?.unwrap_or_default().iter() {
        let message = message?;
        let mut said = messages::message(&message.part())?;
        if message.images()?.and_then(Value::as_array).is_some_and(|images| !images.is_empty()) {
            let images = message.path("images");
            if said.role != "tool" {
                return Err(ApiError::unsupported(images));
            }
            said.content = format!("{}\n{}", said.content, messages::unseen(&images));
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
    read.prompt_ids(chat, &constraints, generation).map(Some)
}

/// A prompt: raw, or as a user's message if the model has its own template.
fn generate_prompt(
    read: &Read<OllamaGenerateRequest>,
    served: &Served,
    generation: &mut GenerateOptions,
) -> Result<Option<PromptIds>, ApiError> {
    let fields = read.fields();
    let shared = fields.part::<OllamaRequest>();
    for (name, text) in [("suffix", fields.suffix()), ("template", fields.template())] {
        if text?.is_some_and(|text| !text.is_empty()) {
            return Err(ApiError::unsupported(name));
        }
    }
    if fields.images()?.is_some_and(|images| !images.is_empty()) {
        return Err(ApiError::unsupported("images"));
    }
    let text = fields.prompt()?.unwrap_or_default();
    let context = prompts::tokens("context", fields.context()?, served)?;
    let thinking = thinking(&shared, served)?;
    let (format, tool_config) = (format(&shared)?, ToolConfig::default());
    let constraints = Constraints::of_conversation(&shared.part(), format, tool_config, served)?;
    if text.is_empty() && context.is_empty() {
        return Ok(None);
    }
    let raw = fields.raw()?.unwrap_or(false) || !served.chats();
    let tokenizer = served.tokenizer();
    if raw {
        if let Some(n_tokens) = served.exceeds(text.len(), served.n_ctx()) {
            return Err(ApiError::too_long(n_tokens, served.n_ctx()));
        }
        let ids = tokenizer.encode(text, Special::Parse, context.is_empty());
        let prompt = Prompt { text: text.to_owned(), ids: [context, ids].concat() };
        constraints.unread().apply(served, &prompt, generation)?;
        // A client that writes the raw prompt also reads the raw text.
        return Ok(Some((prompt.ids, ParserOptions::default())));
    }
    let system = fields.system()?.filter(|system| !system.is_empty());
    let mut messages: Vec<chat::Message> =
        system.map(|system| chat::Message::new("system", system)).into_iter().collect();
    messages.push(chat::Message::new("user", text));
    let extras = messages::extras(&shared.part(), thinking)?;
    let chat = ChatPrompt { messages, add_generation_prompt: true, assistant_prefix: None, extras };
    let (mut ids, reading) = read.prompt_ids(chat, &constraints, generation)?;
    // The BOS token is only at the start.
    if !context.is_empty() && ids.first().copied() == tokenizer.bos() {
        ids.remove(0);
    }
    Ok(Some(([context, ids].concat(), reading)))
}

async fn chat(app: Arc<App>, request: Request) -> Answer {
    respond::<ChatSays>(&app, request).await
}

async fn generate(app: Arc<App>, request: Request) -> Answer {
    respond::<GenerateSays>(&app, request).await
}

async fn respond<S: Says>(app: &Arc<App>, request: Request) -> Answer {
    let read = Read::<S::Request>::of(app, request).await?;
    let (model, at) = (Arc::clone(&read.model), read.at);
    let parsed = read.work(ParsedRequest::of::<S>).await?;
    let reader = Reader::new(parsed.reading.clone());
    let mut lines = Lines { model, parsed, reader, tokens: Vec::new(), form: PhantomData::<S> };
    let Some(job) = lines.parsed.job.clone() else {
        let reason = if lines.parsed.unloads { DoneReason::Unload } else { DoneReason::Load };
        if lines.parsed.unloads {
            app.models.unload(at);
        }
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
    /// Tokens of the prompt and the answer.
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
            context: S::HAS_CONTEXT.then(|| context.collect()),
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
        lines.push(self.last(Message::default()));
    }

    fn write(&mut self, line: Line<S>, out: &mut Out) {
        out.line(&line);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.line(&Family::Ollama.error_body(error));
    }
}

/// Seconds since 1970 as RFC 3339, in UTC.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that start in March have the leap day at the end; eras of 400 years have equal lengths.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_clients_read_them() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(time(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(time(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
