//! Endpoints, one file per family. Each converts requests to jobs and their updates to answers, and describes
//! both for `/openapi.json`.

mod anthropic;
mod chat;
mod completions;
mod embeddings;
mod keep_alive;
mod load_adapters;
mod lora_adapters;
mod models;
mod native;
mod ollama;
mod ollama_embed;
mod ollama_models;
mod openapi;
mod page;
mod rerank;
mod responses;
mod slot_files;
mod status;
mod tei_embed;
mod tokens;

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::response::Response;
use axum::{RequestExt, Router};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::app::App;
use super::constraints::Constraints;
use super::engine_thread;
use super::error::ApiError;
use super::fields::{Fields, Includes, missing, request};
use super::http::body::{self, Parsed};
use super::http::guard::{Client, guard};
use super::http::places::Peer;
use super::images;
use super::instance::Instance;
use super::job::{Handle, Job};
use super::kinds::{Bool, Int, List, MAX_INT, Text, UpTo};
use super::messages::{ChatFields, ChatPrompt, MESSAGES, Message};
use super::model::Served;
use super::shares::Share;
use super::slots;
use lora_adapters::AdapterChoice;
use openapi::Endpoints;
use sterna_engine::{AdapterScale, GenerateOptions, PlacedImage};
use sterna_tools::ParserOptions;

/// The endpoints of all families.
fn endpoints() -> Endpoints {
    let mut endpoints = Endpoints::new();
    for add in [
        anthropic::add,
        chat::add,
        completions::add,
        embeddings::add,
        load_adapters::add,
        lora_adapters::add,
        models::add,
        native::add,
        ollama::add,
        ollama_embed::add,
        ollama_models::add,
        rerank::add,
        responses::add,
        slot_files::add,
        status::add,
        tei_embed::add,
        tokens::add,
    ] {
        add(&mut endpoints);
    }
    endpoints
}

/// Router of the requests of a server.
pub fn router(app: &Arc<App>) -> Router {
    let router = endpoints().into_router().merge(page::routes());
    let router = router
        .fallback(unknown)
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(axum::middleware::from_fn_with_state(Arc::clone(app), guard))
        .with_state(Arc::clone(app));
    // The layer that changes the path must run before the router.
    Router::new().fallback_service(router).layer(axum::middleware::map_request(with_plain_path))
}

/// Removes empty segments from the path: clients often join base URL and path with an extra slash.
async fn with_plain_path(mut request: Request) -> Request {
    let uri = request.uri();
    if let Some(path) = plain_path(uri.path()) {
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = format!("{path}{query}").parse().ok();
        if let Ok(uri) = hyper::Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// The path without double or trailing slashes; `None` if it has none. The trailing slash of a page's path
/// stays, because links are relative to it.
fn plain_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let end = if parts.first() == Some(&"local") && path.ends_with('/') { "/" } else { "" };
    let plain = format!("/{}{end}", parts.join("/"));
    (plain != path).then_some(plain)
}

/// Endpoints of other servers that are not supported.
const NOT_HERE: &[&str] =
    &["/infill", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/images/generations", "/v1/moderations"];

async fn unknown(request: Request) -> ApiError {
    let path = request.uri().path();
    match NOT_HERE.contains(&path) {
        true => ApiError::not_here(format!(
            "{path} is not supported: this server generates text, and makes embeddings"
        )),
        false => ApiError::not_found(format!("no endpoint at {}", path.escape_debug())),
    }
}

request! {
    /// The model that a request is for.
    struct OfModel {
        /// Ignored if the server has a single model.
        model: Text,
    }
}

/// Maximum number of adapters of a request.
const ADAPTERS: usize = 1024;

request! {
    /// Options of how a text is generated.
    struct Running {
        stream: Bool,
        /// Reuses cached prompts, and caches this one.
        cache_prompt: Bool,
        /// Prompts are only shared between requests with the same salt.
        cache_salt | prompt_cache_key: Text,
        return_progress: Bool,
        /// Maximum time after the first token; 0 and -1 are unlimited.
        t_max_predict_ms: Int(-1, MAX_INT),
        /// The slot that stores the answer; -1 is any.
        id_slot: UpTo(-1),
        /// LoRA adapters of this request, in place of the server's scales; those that are not listed have 0.
        lora: List<AdapterChoice>(ADAPTERS),
    }
}

request! {
    /// A conversation.
    struct Talk {
        ..OfModel,
        ..ChatInput,
    }
}

request! {
    /// Messages of a conversation, with the other fields of a chat.
    struct ChatInput {
        ..ChatFields,
        messages: List<Message>(MESSAGES) as { "minItems": 1 } or missing("a list of messages"),
    }
}

request! {
    /// Options of a stream.
    struct StreamOptions {
        include_usage: Bool,
    }
}

/// A request as it was received, and the model that it is for.
struct Received {
    app: Arc<App>,
    model: Arc<Instance>,
    /// Index of the model.
    at: usize,
    body: Map<String, Value>,
    client: Client,
    /// Key or address that the request is from.
    sender: Arc<str>,
    /// Place in the queue, which large bodies take before they are parsed.
    place: Option<Arc<Share>>,
    /// Permit of a large body. Must be dropped after it.
    permit: Option<OwnedSemaphorePermit>,
}

impl Received {
    async fn new(app: &Arc<App>, request: Request) -> Result<Self, ApiError> {
        // A request that cannot be answered is not read.
        app.check()?;
        let (client, sender) = (client_of(&request), sender_of(&request));
        let arrived = body::receive(app, &sender, request).await?;
        let mut place = None;
        if arrived.is_large() && !app.models.by_name {
            let model = engine_thread::model(app, None).await?;
            place = Some(app.place(&model, &sender)?);
        }
        let mut parsed = unless_displaced(place.as_ref(), arrived.parse(app)).await?;
        let name = match app.models.by_name {
            true => Fields::<OfModel>::of(&parsed.object).model()?.map(str::to_owned),
            false => None,
        };
        let at = app.models.find(name.as_deref())?;
        let loaded = tokio::time::timeout(Duration::ZERO, engine_thread::model(app, name.as_deref())).await;
        let model = match loaded {
            Ok(model) => model?,
            Err(_) => {
                // Other large bodies do not wait for this model.
                let is_large = parsed.permit.is_some();
                if is_large {
                    parsed = Parsed::default();
                }
                let model = engine_thread::model(app, name.as_deref()).await?;
                if is_large {
                    parsed = arrived.parse(app).await?;
                }
                model
            }
        };
        let Parsed { object: body, permit } = parsed;
        Ok(Self { app: Arc::clone(app), model, at, body, client, sender, place, permit })
    }

    /// The request's place in the queue, which it takes if it has none yet.
    fn place(&mut self) -> Result<Arc<Share>, ApiError> {
        let place = match self.place.take() {
            Some(place) => place,
            None => self.app.place(&self.model, &self.sender)?,
        };
        Ok(Arc::clone(self.place.insert(place)))
    }

    /// The job of a request; `max_tokens` limits the length of its answer.
    fn job(
        &self,
        fields: &Fields<'_, Running>,
        prompts: Vec<Vec<u32>>,
        options: GenerateOptions,
        n: usize,
        max_tokens: Option<i64>,
    ) -> Result<Job, ApiError> {
        let (app, served) = (&self.app, &self.model.served);
        if !served.engine.generates() {
            return Err(ApiError::no_text(&served.engine.hyper().architecture));
        }
        let n_ctx = served.n_ctx();
        if let Some(prompt) = prompts.iter().find(|prompt| prompt.len() >= n_ctx) {
            return Err(ApiError::too_long(prompt.len(), n_ctx));
        }
        let max_tokens = match max_tokens {
            Some(max) => usize::try_from(max).ok(),
            None => app.options.max_tokens,
        };
        let mut options = GenerateOptions { max_tokens, ..options };
        options.sampler.seed.get_or_insert_with(|| app.seed());
        let salt = fields.cache_salt()?;
        let client = &self.client.0;
        Ok(Job {
            export_to: None,
            transferred: None,
            adapters: self.adapters(fields)?,
            images: Vec::new(),
            prompts,
            options,
            n,
            client: Arc::clone(client),
            sender: Arc::clone(&self.sender),
            salt: slots::salt(client, salt.unwrap_or_default()),
            cache_prompt: fields.cache_prompt()?.unwrap_or(app.options.cache_prompt),
            score_prompt: None,
            pooled: None,
            progress: fields.return_progress()?.unwrap_or(false),
            time_limit: fields
                .t_max_predict_ms()?
                .filter(|ms| *ms > 0)
                .map(|ms| Duration::from_millis(ms as u64)),
            slot: slot(fields, served)?,
        })
    }

    /// The adapters that a request chooses: in a list, or one by its name in place of the model's.
    fn adapters(&self, fields: &Fields<'_, Running>) -> Result<Option<Arc<[AdapterScale]>>, ApiError> {
        let served = &self.model.served;
        if let Some(list) = fields.lora()?.filter(|list| !list.is_empty()) {
            return lora_adapters::chosen(&list, served).map(Some);
        }
        let model = Fields::<OfModel>::of(&self.body).model()?;
        Ok(model.and_then(|name| served.adapter_called(name)))
    }

    /// Tokens of a conversation and the images among them, and parser options for its answer. Adds the
    /// constraints of the answer to `options`.
    fn prompt_ids(
        &self,
        chat: ChatPrompt,
        constraints: &Constraints,
        options: &mut GenerateOptions,
    ) -> Result<PromptIds, ApiError> {
        let served = &self.model.served;
        chat.check_bytes(served, served.n_ctx())?;
        let chat = chat.offering(constraints, served);
        let mut prompt = chat.prompt(served)?;
        let placed = images::placed(served, &mut prompt, &chat.images)?;
        constraints.apply(served, &prompt, options)?;
        let reading = constraints.reading(&prompt, self.app.seed());
        Ok((prompt.ids, placed, reading))
    }
}

/// Tokens of a prompt, the images among them, and parser options for its answer.
type PromptIds = (Vec<u32>, Vec<PlacedImage>, ParserOptions);

/// A request with the fields of `R`. What does not depend on `R` is in [`Received`], which is compiled once.
struct Read<R> {
    received: Received,
    request: PhantomData<fn() -> R>,
}

impl<R> Deref for Read<R> {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.received
    }
}

impl<R: Includes<OfModel> + 'static> Read<R> {
    async fn of(app: &Arc<App>, request: Request) -> Result<Self, ApiError> {
        Ok(Self { received: Received::new(app, request).await?, request: PhantomData })
    }

    fn fields(&self) -> Fields<'_, R> {
        Fields::of(&self.body)
    }

    /// Runs `work`, which may take long (templates, tokenising), outside the HTTP threads.
    async fn work<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&Self, &Served) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (app, place) = (Arc::clone(&self.app), self.received.place()?);
        let is_large = self.permit.is_some();
        let work = move || work(&self, &self.model.served);
        match is_large {
            true => app.lanes.run_large(work).await,
            false => unless_displaced(Some(&place), app.lanes.run(work)).await,
        }
    }

    /// Parses the request with `work`, and starts its job.
    async fn begin<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&Self, &Served) -> Result<T, ApiError> + Send + 'static,
        job: impl FnOnce(&T) -> &Job,
    ) -> Result<(Arc<Instance>, T, Handle), ApiError> {
        let (app, model) = (Arc::clone(&self.app), Arc::clone(&self.model));
        let place = self.received.place()?;
        let parsed = self.work(work).await?;
        let handle = app.begin_in(&model, job(&parsed).clone(), place)?;
        Ok((model, parsed, handle))
    }
}

/// The result of `work`, or 429 if the request is displaced from its place meanwhile.
async fn unless_displaced<T>(
    place: Option<&Arc<Share>>,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match place {
        None => work.await,
        Some(place) => tokio::select! {
            done = work => done,
            () = place.displaced() => Err(ApiError::displaced()),
        },
    }
}

/// The slot that stores an answer; -1 is any.
fn slot(fields: &Fields<'_, Running>, served: &Served) -> Result<Option<u32>, ApiError> {
    let slot = fields.id_slot()?.map(|slot| slot.up_to(served.n_slots() - 1)).transpose()?;
    Ok(slot.and_then(|slot| u32::try_from(slot).ok()))
}

/// Result of a handler.
type Answer = Result<Response, ApiError>;

/// The client that has sent a request.
fn client_of(request: &Request) -> Client {
    request.extensions().get::<Client>().cloned().unwrap_or_else(|| Client(Arc::from("")))
}

/// The key that a request is sent with, or the client's address on a server without keys.
fn sender_of(request: &Request) -> Arc<str> {
    let Client(client) = client_of(request);
    match request.extensions().get::<Peer>() {
        Some(Peer(address)) if client.is_empty() => Arc::clone(address),
        _ => client,
    }
}

/// The parameter in the path of a request.
async fn path_parameter(request: &mut Request) -> Result<String, ApiError> {
    let Path(parameter) =
        request.extract_parts().await.map_err(|err: PathRejection| ApiError::bad(err.body_text()))?;
    Ok(parameter)
}

/// The model named by the query parameter `model`, or the first one.
async fn model_of_query(app: &Arc<App>, uri: &hyper::Uri) -> Result<Arc<Instance>, ApiError> {
    let name = query(uri, "model");
    engine_thread::model(app, name.as_deref()).await
}

/// Value of a query parameter.
fn query(uri: &hyper::Uri, name: &str) -> Option<String> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = (*first == b'%').then(|| after.first_chunk::<2>()).flatten();
        let code = escaped.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        rest = if code.is_some() { &after[2..] } else { after };
        bytes.push(code.unwrap_or(if *first == b'+' { b' ' } else { *first }));
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Collects every `$ref` of a document.
    fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_description_refers_to_all_that_it_has_and_to_nothing_else() {
        let document = endpoints().document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            let reference = format!("#/components/schemas/{name}");
            assert!(found.contains(&*reference), "{name} is not used");
        }
    }

    /// Names of the fields of a kind of object, one entry per declaration.
    fn declared(document: &Value, schema: &Value, found: &mut Vec<String>) {
        if let Some(reference) = schema["$ref"].as_str() {
            return declared(document, document.pointer(&reference[1..]).unwrap(), found);
        }
        found.extend(schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned()));
        schema["allOf"].as_array().into_iter().flatten().for_each(|part| declared(document, part, found));
    }

    #[test]
    fn a_request_has_each_field_once() {
        let document = endpoints().document();
        let operations = document["paths"].as_object().unwrap().values();
        let bodies = operations.filter_map(|methods| methods.pointer("/post/requestBody"));
        let mut n_bodies = 0;
        for body in bodies {
            let schema = &body["content"]["application/json"]["schema"];
            let schema = schema.get("items").unwrap_or(schema);
            let mut names = Vec::new();
            declared(&document, schema, &mut names);
            names.sort_unstable();
            let repeated = names.windows(2).find(|pair| pair[0] == pair[1]);
            assert!(!names.is_empty() && repeated.is_none(), "{schema}: {repeated:?}");
            n_bodies += 1;
        }
        assert!(n_bodies > 20, "{n_bodies}");
    }

    #[test]
    fn paths_have_no_empty_parts() {
        for plain in ["/", "/v1/models", "/local/", "/local/sterna/engine.js", "/v1/models/hf.co/x/y:Q4_0"] {
            assert_eq!(plain_path(plain), None, "{plain}");
        }
        for (path, plain) in [
            ("//", "/"),
            ("//v1/models", "/v1/models"),
            ("/v1//models/", "/v1/models"),
            ("/local//", "/local/"),
            ("//local/index.html", "/local/index.html"),
        ] {
            assert_eq!(plain_path(path).as_deref(), Some(plain), "{path}");
        }
    }

    #[test]
    fn values_of_a_query() {
        let of = |text: &str| query(&text.parse().unwrap(), "model");
        assert_eq!(of("/slots?a=1&model=x%2Fy+z.gguf").as_deref(), Some("x/y z.gguf"));
        assert_eq!(of("/slots?model=100%").as_deref(), Some("100%"));
        for none in ["/slots", "/slots?models=x", "/slots?model", "/slots?model=%ff"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
