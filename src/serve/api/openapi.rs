//! Endpoints with their OpenAPI 3.1 descriptions: a family adds both in one call.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::Answer;
use crate::app::App;
use crate::family::Family;
use crate::fields;

/// Error statuses with their descriptions.
const ERRORS: &[(u16, &str)] = &[
    (400, "The request is invalid."),
    (401, "The API key is missing or wrong."),
    (403, "The request's `Host`, `Origin` or `Sec-Fetch-Site` is not allowed."),
    (404, "Not found."),
    (408, "The body did not arrive in time."),
    (413, "The body is too large."),
    (415, "The body's `Content-Encoding` is not supported."),
    (429, "Too many requests are waiting."),
    (500, "Internal error."),
    (501, "Not supported by this server."),
    (503, "The model is loading, or the server is shutting down."),
];

type SchemaOf<S = Schema> = fn(&mut SchemaGenerator) -> S;

/// Description of an endpoint.
pub struct Operation {
    summary: &'static str,
    /// Schema of the request body, and true if a body is required.
    body: Option<(SchemaOf<Value>, bool)>,
    parameters: Vec<Value>,
    /// Media type and schema of the answer.
    answer: Option<(&'static str, SchemaOf)>,
    /// Media type of a streamed answer, and the schema of its pieces.
    stream: Option<(&'static str, SchemaOf)>,
    errors: Vec<u16>,
    needs_key: bool,
}

impl Operation {
    /// An endpoint that requires a key and returns only errors; the methods below add to it.
    pub fn new(summary: &'static str) -> Self {
        Self {
            summary,
            body: None,
            parameters: Vec::new(),
            answer: None,
            stream: None,
            errors: vec![401, 403],
            needs_key: true,
        }
    }

    /// Reads a body of type `R`.
    pub fn body<R: fields::Request>(self) -> Self {
        Self { body: Some((fields::reference::<R>, true)), ..self }
            .fails(&[400, 404, 408, 413, 415, 429, 500, 503])
    }

    /// Reads a body that is a list of objects of type `R`.
    pub fn list<R: fields::Request>(self) -> Self {
        let list: SchemaOf<Value> =
            |schemas| json!({ "type": "array", "items": fields::reference::<R>(schemas) });
        Self { body: Some((list, true)), ..self.body::<R>() }
    }

    /// Makes the body optional.
    pub fn optional_body(mut self) -> Self {
        if let Some((_, required)) = &mut self.body {
            *required = false;
        }
        self
    }

    /// Adds a parameter.
    pub fn parameter(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self
    }

    /// Adds the query parameter `model`.
    pub fn of_model(self) -> Self {
        self.parameter(json!({ "name": "model", "in": "query", "schema": { "type": "string" } }))
            .fails(&[404])
    }

    /// Answers with JSON of the type `T`.
    pub fn answer<T: JsonSchema>(self) -> Self {
        Self { answer: Some(("application/json", |schemas| schemas.subschema_for::<T>())), ..self }
    }

    /// Answers with text.
    pub fn text(self) -> Self {
        Self { answer: Some(("text/plain", |schemas| schemas.subschema_for::<String>())), ..self }
    }

    /// Generates text and can stream it as server-sent events, each with a `T` as its data.
    pub fn events<T: JsonSchema>(self) -> Self {
        Self { stream: Some(("text/event-stream", |schemas| schemas.subschema_for::<T>())), ..self }
    }

    /// Generates text and can stream it as lines, each with a `T`.
    pub fn lines<T: JsonSchema>(self) -> Self {
        Self { stream: Some(("application/x-ndjson", |schemas| schemas.subschema_for::<T>())), ..self }
    }

    /// Adds error statuses.
    pub fn fails(mut self, statuses: &[u16]) -> Self {
        self.errors.extend(statuses);
        self
    }

    /// Allows clients without a key.
    pub fn without_key(mut self) -> Self {
        self.needs_key = false;
        self.errors.retain(|status| *status != 401);
        self
    }

    fn describe(&self, family: Family, schemas: &mut SchemaGenerator) -> Value {
        let mut responses = Map::new();
        if let Some((media, schema)) = self.answer {
            let mut content = Map::from_iter([(media.to_owned(), json!({ "schema": schema(schemas) }))]);
            if let Some((media, piece)) = self.stream {
                // OpenAPI 3.2 calls this `itemSchema`.
                let mut described = json!({ "x-itemSchema": piece(schemas) });
                if media == "application/x-ndjson" {
                    described["schema"] = json!({ "type": "string" });
                }
                content.insert(media.to_owned(), described);
            }
            responses.insert("200".into(), json!({ "description": "The answer.", "content": content }));
        }
        for (status, _) in ERRORS.iter().filter(|(status, _)| self.errors.contains(status)) {
            let response = format!("#/components/responses/{}", response_name(family, *status));
            responses.insert(status.to_string(), json!({ "$ref": response }));
        }
        let mut described = json!({ "summary": self.summary });
        if let Some((schema, required)) = self.body {
            let content = json!({ "application/json": { "schema": schema(schemas) } });
            described["requestBody"] = json!({ "required": required, "content": content });
        }
        if !self.parameters.is_empty() {
            described["parameters"] = self.parameters.clone().into();
        }
        described["responses"] = responses.into();
        if self.needs_key {
            described["security"] = json!([{}, { "key": [] }]);
        }
        described
    }
}

/// Name of a family's error response of that status in the document.
fn response_name(family: Family, status: u16) -> String {
    match family {
        Family::OpenAi => status.to_string(),
        family => format!("{family:?}{status}"),
    }
}

/// A handler of one type for all endpoints, so that axum's services are compiled once.
#[derive(Clone)]
pub struct Boxed(Arc<dyn Fn(Arc<App>, Request) -> BoxedFuture + Send + Sync>);

type BoxedFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Boxed {
    /// A handler that answers with `answer`.
    pub fn new<F: Future<Output = Answer> + Send + 'static>(answer: fn(Arc<App>, Request) -> F) -> Self {
        Self(Arc::new(move |app, request| {
            let answer = answer(app, request);
            Box::pin(async { answer.await.into_response() })
        }))
    }
}

impl Handler<(), Arc<App>> for Boxed {
    type Future = BoxedFuture;

    fn call(self, request: Request, app: Arc<App>) -> BoxedFuture {
        (self.0)(app, request)
    }
}

/// Routes with their descriptions.
pub struct Endpoints {
    router: Router<Arc<App>>,
    paths: Map<String, Value>,
    schemas: SchemaGenerator,
}

impl Endpoints {
    /// No routes.
    pub fn new() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .for_serialize()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        Self { router: Router::new(), paths: Map::new(), schemas: settings.into_generator() }
    }

    /// Adds a GET endpoint. The paths after the first are aliases.
    pub fn get<F: Future<Output = Answer> + Send + 'static>(
        &mut self,
        paths: &[&str],
        answer: fn(Arc<App>, Request) -> F,
        operation: &Operation,
    ) {
        self.add("get", paths, &get(Boxed::new(answer)), operation);
    }

    /// Adds a POST endpoint.
    pub fn post<F: Future<Output = Answer> + Send + 'static>(
        &mut self,
        paths: &[&str],
        answer: fn(Arc<App>, Request) -> F,
        operation: &Operation,
    ) {
        self.add("post", paths, &post(Boxed::new(answer)), operation);
    }

    /// Adds a DELETE endpoint.
    pub fn delete<F: Future<Output = Answer> + Send + 'static>(
        &mut self,
        paths: &[&str],
        answer: fn(Arc<App>, Request) -> F,
        operation: &Operation,
    ) {
        self.add("delete", paths, &delete(Boxed::new(answer)), operation);
    }

    fn add(&mut self, method: &str, paths: &[&str], route: &MethodRouter<Arc<App>>, operation: &Operation) {
        for path in paths {
            self.router = std::mem::take(&mut self.router).route(path, route.clone());
            let mut described = operation.describe(Family::of(path), &mut self.schemas);
            if *path != paths[0] {
                described["summary"] = format!("As {}", plain(paths[0])).into();
            }
            let methods = self.paths.entry(plain(path)).or_insert_with(|| json!({}));
            methods[method] = described;
        }
    }

    /// Router of all routes, and of their description.
    pub fn into_router(mut self) -> Router<Arc<App>> {
        let router = std::mem::take(&mut self.router);
        let document = Bytes::from(self.document().to_string());
        let document = async move || ([(CONTENT_TYPE, "application/json")], document);
        router.route("/openapi.json", get(document))
    }

    /// The OpenAPI document, including its own endpoint.
    pub fn document(mut self) -> Value {
        let itself = Operation::new("This document").answer::<Map<String, Value>>();
        let itself = itself.describe(Family::OpenAi, &mut self.schemas);
        self.paths.insert("/openapi.json".into(), json!({ "get": itself }));
        let mut responses = Map::new();
        for family in [Family::OpenAi, Family::Anthropic, Family::Ollama] {
            let content = json!({ "application/json": { "schema": family.error_schema(&mut self.schemas) } });
            for (status, description) in ERRORS {
                let response = json!({ "description": description, "content": content });
                responses.insert(response_name(family, *status), response);
            }
        }
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Sterna",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Text from a language model. Fields that are not listed are ignored; null \
                                means absent.",
            },
            "paths": self.paths,
            "components": {
                "schemas": self.schemas.take_definitions(true),
                "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
                "responses": responses,
            },
        })
    }
}

/// A path in OpenAPI's syntax.
fn plain(path: &str) -> String {
    path.replace("{*", "{")
}
