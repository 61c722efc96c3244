//! Ollama's API: lines of JSON, streamed unless the request says otherwise.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};

use super::{Answer, Read};
use crate::answer::{collect, logprob_entry};
use crate::app::{App, now};
use crate::blocks::{Block, Change, Kind as Part, Reader};
use crate::constraints::{Constraints, schema};
use crate::details::details;
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::Fields;
use crate::http::body::json;
use crate::http::stream::{Encoder, Framing, Out, answer};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::messages::{self, ChatPrompt, Thinking};
use crate::model::Served;
use crate::prompts;
use crate::sampling::{self, TOP_LOGPROBS};
use crate::tool_config::ToolConfig;
use sterna_engine::{GenerateOptions, PickedToken, Stats};
use sterna_grammar::Source;
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::{Message, Prompt};
use sterna_tools::ParserOptions;

/// Clients compare it with the version that brought what they need.
const VERSION: &str = "0.12.0";

pub fn routes() -> Router<Arc<App>> {
    let not_here = || async { ApiError::not_here("models are chosen when the server is started") };
    let no_embeddings =
        || async { ApiError::not_here("embeddings are not supported: this server only generates text") };
    let mut router = Router::new()
        .route("/api/version", get(async || json(&json!({ "version": VERSION }))))
        .route("/api/tags", get(tags))
        .route("/api/ps", get(ps))
        .route("/api/show", post(show))
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/embed", post(no_embeddings))
        .route("/api/embeddings", post(no_embeddings));
    for path in ["/api/pull", "/api/push", "/api/create", "/api/copy"] {
        router = router.route(path, post(not_here));
    }
    router.route("/api/delete", axum::routing::delete(not_here))
}

fn entry(served: &Served) -> Value {
    json!({
        "name": served.name,
        "model": served.name,
        "modified_at": time(served.created),
        "size": served.engine.plan().weights_bytes,
        "digest": "",
        "details": details(Some(served)),
        "capabilities": capabilities(served),
    })
}

/// Abilities by which clients offer tools, and a switch for thoughts.
fn capabilities(served: &Served) -> Vec<&'static str> {
    let all =
        [("completion", true), ("tools", served.chats()), ("thinking", served.syntax.thoughts.is_some())];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

async fn tags(State(app): State<Arc<App>>) -> Answer {
    app.check()?;
    let models = app.models.list();
    let entries = models.iter().map(|(source, _, instance)| match instance {
        Some(instance) => entry(&instance.served),
        None => json!({
            "name": source.name,
            "model": source.name,
            "modified_at": time(app.started),
            "size": source.file_bytes,
            "digest": "",
            "details": details(None),
        }),
    });
    Ok(json(&json!({ "models": entries.collect::<Value>() })))
}

async fn ps(State(app): State<Arc<App>>) -> Answer {
    app.check()?;
    let models = app.models.list();
    let loaded = models.iter().filter_map(|(.., instance)| instance.as_ref());
    let entries = loaded.map(|instance| {
        let served = &instance.served;
        let mut entry = entry(served);
        entry["size_vram"] = 0.into();
        entry["context_length"] = served.n_ctx().into();
        entry["expires_at"] = time(now() + 86_400).into();
        entry
    });
    Ok(json(&json!({ "models": entries.collect::<Value>() })))
}

async fn show(State(app): State<Arc<App>>, request: Request) -> Answer {
    let read = Read::of(&app, request).await?;
    let served = &read.model.served;
    let hyper = served.engine.hyper();
    let of = |name: &str| format!("{}.{name}", hyper.architecture);
    let mut info = Map::new();
    info.insert("general.architecture".into(), hyper.architecture.as_str().into());
    info.insert("general.parameter_count".into(), served.n_params().into());
    info.insert(of("context_length"), hyper.n_ctx_train.into());
    info.insert(of("embedding_length"), hyper.dim.into());
    info.insert(of("block_count"), hyper.n_layers.into());
    let template = if served.chats() { served.template.source() } else { "" };
    Ok(json(&json!({
        "modelfile": "",
        "parameters": "",
        "template": template,
        "details": details(Some(served)),
        "model_info": info,
        "capabilities": capabilities(served),
        "modified_at": time(served.created),
    })))
}

/// One of the two endpoints.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Chat,
    Generate,
}

/// A parsed request.
struct ParsedRequest {
    kind: Kind,
    /// `None` only loads the model, or unloads it.
    job: Option<Job>,
    reading: ParserOptions,
    unloads: bool,
    stream: bool,
    logprobs: bool,
}

/// Tokens of a prompt, and options of its answer's parser.
type Turn = (Vec<u32>, ParserOptions);

impl ParsedRequest {
    fn of(kind: Kind, read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        let stream = fields.bool("stream")?.unwrap_or(true);
        let logprobs = fields.bool("logprobs")?.unwrap_or(false);
        let top = fields.count("top_logprobs", 0, TOP_LOGPROBS)?.unwrap_or(0);
        let options = fields.object("options")?.unwrap_or_default();
        let mut generation = sampling::generation(&options, served)?;
        generation.logprobs = logprobs.then_some(top);
        let turn = match kind {
            Kind::Chat => chat_prompt(read, served, &mut generation)?,
            Kind::Generate => generate_prompt(read, served, &mut generation)?,
        };
        let (prompt, reading) =
            turn.map_or_else(Default::default, |(prompt, reading)| (Some(prompt), reading));
        let max_tokens = options.int("num_predict", -2..=i64::from(i32::MAX))?.map(|max| max.max(-1));
        let job =
            prompt.map(|prompt| read.job(served, vec![prompt], generation, 1, max_tokens)).transpose()?;
        // Without a prompt it is told how long to stay loaded: not at all, for one that can be loaded again.
        let unloads = job.is_none() && read.app.models.by_name && is_zero(fields.get("keep_alive"));
        Ok(Self { kind, job, reading, unloads, stream, logprobs })
    }
}

/// The form of an answer: `"json"`, or a schema, of which what cannot be enforced is left out.
fn format(fields: &Fields) -> Result<Option<(String, Source)>, ApiError> {
    let source = match fields.get("format") {
        None => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) if text == "json" => Some(Source::JsonObject),
        Some(value @ Value::Object(_)) => schema(value, false),
        Some(_) => None,
    };
    let wrong =
        || ApiError::field("format", "`json` or a JSON schema", fields.get("format").unwrap_or(&Value::Null));
    Ok(Some(("format".to_owned(), source.ok_or_else(wrong)?)))
}

/// The field `think`: true, false, or how much.
fn thinking(fields: &Fields, served: &Served) -> Result<Thinking, ApiError> {
    let thinking = match fields.get("think") {
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

/// True for no time: 0, or a text as `0s`.
fn is_zero(time: Option<&Value>) -> bool {
    match time {
        Some(Value::String(text)) => text.trim_end_matches(char::is_alphabetic) == "0",
        Some(number) => number.as_f64() == Some(0.0),
        None => false,
    }
}

/// A conversation; `None` if nothing is said.
fn chat_prompt(
    read: &Read,
    served: &Served,
    generation: &mut GenerateOptions,
) -> Result<Option<Turn>, ApiError> {
    let fields = &read.fields;
    let list = fields.list("messages", messages::MESSAGES)?.unwrap_or_default();
    let mut messages = Vec::with_capacity(list.len());
    for (at, message) in list.iter().enumerate() {
        let name = format!("messages[{at}]");
        let mut said = messages::message(name.clone(), message)?;
        if message.get("images").and_then(Value::as_array).is_some_and(|images| !images.is_empty()) {
            let images = format!("{name}.images");
            if said.role != "tool" {
                return Err(ApiError::unsupported(images));
            }
            said.content = format!("{}\n{}", said.content, messages::unseen(&images));
        }
        messages.push(said);
    }
    let constraints =
        Constraints::of_conversation(fields, format(fields)?, ToolConfig::ollama(fields)?, served)?;
    let extras = messages::extras(fields, thinking(fields, served)?)?;
    if messages.is_empty() {
        return Ok(None);
    }
    let chat = messages::going_on(fields, messages, extras)?;
    read.turn(served, chat, &constraints, generation).map(Some)
}

/// A prompt: raw, or as a user's message if the model has a template of its own.
fn generate_prompt(
    read: &Read,
    served: &Served,
    generation: &mut GenerateOptions,
) -> Result<Option<Turn>, ApiError> {
    let fields = &read.fields;
    for name in ["suffix", "template"] {
        if fields.text(name)?.is_some_and(|text| !text.is_empty()) {
            return Err(ApiError::unsupported(name));
        }
    }
    if fields.list("images", usize::MAX)?.is_some_and(|images| !images.is_empty()) {
        return Err(ApiError::unsupported("images"));
    }
    let text = fields.text("prompt")?.unwrap_or_default();
    let context = prompts::tokens("context", fields.get("context"), served)?;
    let thinking = thinking(fields, served)?;
    let constraints = Constraints::of_conversation(fields, format(fields)?, ToolConfig::default(), served)?;
    if text.is_empty() && context.is_empty() {
        return Ok(None);
    }
    let raw = fields.bool("raw")?.unwrap_or(false) || !served.chats();
    let tokenizer = served.tokenizer();
    if raw {
        let behind = tokenizer.encode(text, Special::Parse, context.is_empty());
        let prompt = Prompt { text: text.to_owned(), ids: [context, behind].concat() };
        constraints.unread().apply(served, &prompt, generation)?;
        // A client that writes the prompt reads the text as it comes.
        return Ok(Some((prompt.ids, ParserOptions::default())));
    }
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let mut messages: Vec<Message> =
        system.map(|system| Message::new("system", system)).into_iter().collect();
    messages.push(Message::new("user", text));
    let extras = messages::extras(fields, thinking)?;
    let chat = ChatPrompt { messages, add_generation_prompt: true, assistant_prefix: None, extras };
    let (mut ids, reading) = read.turn(served, chat, &constraints, generation)?;
    // A text begins once.
    if !context.is_empty() && ids.first().copied() == tokenizer.bos() {
        ids.remove(0);
    }
    Ok(Some(([context, ids].concat(), reading)))
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Answer {
    respond(&app, request, Kind::Chat).await
}

async fn generate(State(app): State<Arc<App>>, request: Request) -> Answer {
    respond(&app, request, Kind::Generate).await
}

async fn respond(app: &Arc<App>, request: Request, kind: Kind) -> Answer {
    let read = Read::of(app, request).await?;
    let (model, at) = (Arc::clone(&read.model), read.at);
    let parsed = read.work(move |read, served| ParsedRequest::of(kind, read, served)).await?;
    let reader = Reader::new(parsed.reading.clone());
    let mut lines = Lines { model, parsed, reader, tokens: Vec::new() };
    let Some(job) = lines.parsed.job.clone() else {
        let mut line = lines.line(Vec::new());
        line["done"] = true.into();
        line["done_reason"] = if lines.parsed.unloads { "unload" } else { "load" }.into();
        if lines.parsed.unloads {
            app.models.unload(at);
        }
        return Ok(json(&line));
    };
    let handle = app.begin(&lines.model, job)?;
    if lines.parsed.stream {
        return answer(&app.options, handle, Framing::Lines, app.options.ping, lines).await;
    }
    let mut choices = collect(handle, 1).await?;
    lines.reader = Reader::of(lines.parsed.reading.clone(), choices.swap_remove(0));
    lines.tokens = std::mem::take(&mut lines.reader.choice.tokens);
    let calls: Vec<Value> = lines.reader.blocks().iter().filter_map(call).collect();
    let mut said = vec![("content", lines.reader.text().into())];
    let thoughts = lines.reader.thoughts();
    if !thoughts.is_empty() {
        said.push(("thinking", thoughts.into()));
    }
    if !calls.is_empty() {
        said.push(("tool_calls", calls.into()));
    }
    let mut last = lines.last(said);
    if lines.parsed.logprobs {
        last["logprobs"] = lines.logprobs(&lines.tokens);
    }
    Ok(json(&last))
}

/// A call that can be run; `None` for other blocks.
fn call(block: &Block) -> Option<Value> {
    let Part::Call { index, id, name } = &block.kind else { return None };
    let arguments = block.arguments()?;
    Some(json!({ "id": id, "function": { "index": index, "name": name, "arguments": arguments } }))
}

/// Parts of a message, by their names.
type Said = Vec<(&'static str, Value)>;

/// The answer as lines.
struct Lines {
    model: Arc<Instance>,
    parsed: ParsedRequest,
    reader: Reader,
    /// Tokens of the answer.
    tokens: Vec<PickedToken>,
}

impl Lines {
    fn line(&self, said: Said) -> Value {
        let mut line = json!({ "model": self.model.served.name, "created_at": time(now()), "done": false });
        match self.parsed.kind {
            Kind::Chat => {
                line["message"] = json!({ "role": "assistant", "content": "" });
                said.into_iter().for_each(|(name, value)| line["message"][name] = value);
            }
            Kind::Generate => {
                line["response"] = "".into();
                let name = |name| if name == "content" { "response" } else { name };
                said.into_iter().for_each(|(key, value)| line[name(key)] = value);
            }
        }
        line
    }

    fn last(&self, said: Said) -> Value {
        let stats = self.reader.choice.stats;
        let Stats { prompt_tokens, prompt_time, generated_tokens, generate_time, .. } = stats;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut line = self.line(said);
        line["done"] = true.into();
        line["done_reason"] = if self.reader.is_whole() { "stop" } else { "length" }.into();
        line["total_duration"] = ns(prompt_time + generate_time).into();
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = prompt_tokens.into();
        line["prompt_eval_duration"] = ns(prompt_time).into();
        line["eval_count"] = generated_tokens.into();
        line["eval_duration"] = ns(generate_time).into();
        if self.parsed.kind == Kind::Generate {
            let prompt = self.parsed.job.iter().flat_map(|job| &job.prompts[0]);
            let context = prompt.copied().chain(self.tokens.iter().map(|token| token.id));
            line["context"] = context.collect::<Vec<u32>>().into();
        }
        line
    }

    fn logprobs(&self, tokens: &[PickedToken]) -> Value {
        let tokenizer = self.model.served.tokenizer();
        tokens.iter().filter_map(|token| logprob_entry(tokenizer, token)).collect()
    }
}

impl Encoder for Lines {
    fn begin(&mut self, _: &mut Out) {}

    fn update(&mut self, update: Update, out: &mut Out) {
        let Update::Event { event, stats, .. } = update else { return };
        let mut said: Said = Vec::new();
        let token = self.reader.take(&event, stats, |_, block, change| match (change, &block.kind) {
            (Change::More(text), Part::Text) => said.push(("content", text.into())),
            (Change::More(text), Part::Thoughts) => said.push(("thinking", text.into())),
            (Change::Ended, Part::Call { .. }) => {
                said.extend(call(block).map(|call| ("tool_calls", json!([call]))));
            }
            _ => {}
        });
        self.tokens.extend(token.clone());
        let with_logprobs = self.parsed.logprobs && token.is_some();
        if said.is_empty() && with_logprobs {
            // A token without text of its own still has its log-probabilities.
            said.push(("content", "".into()));
        }
        for (at, part) in said.into_iter().enumerate() {
            let mut line = self.line(vec![part]);
            if with_logprobs {
                line["logprobs"] = self.logprobs(if at == 0 { token.as_slice() } else { &[] });
            }
            out.line(&line);
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.line(&Family::Ollama.error_body(error));
    }

    fn end(&mut self, out: &mut Out) {
        self.reader.end(|_, _, _| ());
        out.line(&self.last(Vec::new()));
    }
}

/// Seconds since 1970 as RFC 3339, in UTC.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end; eras of 400 years are alike.
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
