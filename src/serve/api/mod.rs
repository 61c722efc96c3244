//! Endpoints: one file a family. Each turns its requests into jobs, and what becomes of them into its
//! answers.

mod anthropic;
mod chat;
mod completions;
mod models;
mod native;
mod ollama;
mod openapi;
mod page;
mod responses;
mod status;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;

use super::app::App;
use super::error::ApiError;
use super::fields::Fields;
use super::http::body;
use super::http::guard::{Client, guard};
use super::job::Job;
use super::model::Served;
use super::sampling;
use crate::engine::GenerateOptions;

/// What answers the requests of a server.
pub fn router(app: &Arc<App>) -> Router {
    let router = Router::new()
        .merge(anthropic::routes())
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(models::routes())
        .merge(native::routes())
        .merge(ollama::routes())
        .merge(openapi::routes())
        .merge(page::routes())
        .merge(responses::routes())
        .merge(status::routes())
        .merge(tokens::routes());
    router
        .fallback(unknown)
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(axum::middleware::from_fn_with_state(Arc::clone(app), guard))
        .with_state(Arc::clone(app))
}

/// Endpoints of other servers that are not here.
const NOT_HERE: &[&str] = &[
    "/embedding",
    "/embeddings",
    "/infill",
    "/lora-adapters",
    "/rerank",
    "/reranking",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/reranking",
];

async fn unknown(request: Request) -> ApiError {
    let path = request.uri().path();
    match NOT_HERE.contains(&path) {
        true => ApiError::not_here(format!("{path} is not supported: this server generates text")),
        false => ApiError::not_found(format!("there is nothing at {}", path.escape_debug())),
    }
}

/// A request that has been read.
struct Read {
    app: Arc<App>,
    fields: Fields,
    client: Client,
}

impl Read {
    async fn of(app: &Arc<App>, request: hyper::Request<Body>) -> Result<Self, ApiError> {
        // Whoever cannot be answered need not be read.
        app.served()?;
        let client = request.extensions().get::<Client>().cloned();
        let client = client.unwrap_or_else(|| Client(Arc::from("")));
        let fields = body::fields(&app.options, request).await?;
        Ok(Self { app: Arc::clone(app), fields, client })
    }

    /// Does what may take long (templates, tokens) beside the threads that answer everybody.
    async fn work<T: Send + 'static>(
        self,
        work: impl FnOnce(&Self, &Served) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let done = tokio::task::spawn_blocking(move || work(&self, self.app.served()?)).await;
        done.unwrap_or_else(|_| Err(ApiError::ours("the request could not be worked on")))
    }

    /// The job of a request: `max_tokens` is what it says of the length of its answer.
    fn job(
        &self,
        served: &Served,
        prompts: Vec<Vec<u32>>,
        options: GenerateOptions,
        n: usize,
        max_tokens: Option<i64>,
    ) -> Result<Job, ApiError> {
        let (fields, app) = (&self.fields, &self.app);
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
        let salt = fields.text(fields.first(&["cache_salt", "prompt_cache_key"]).unwrap_or("cache_salt"))?;
        let client = &self.client.0;
        Ok(Job {
            prompts,
            options,
            n,
            client: Arc::clone(client),
            salt: Arc::from(format!("{client}\n{}", salt.unwrap_or_default())),
            cache_prompt: fields.bool("cache_prompt")?.unwrap_or(app.options.cache_prompt),
            progress: fields.bool("return_progress")?.unwrap_or(false),
            time_limit: sampling::time_limit(fields)?,
        })
    }

    /// How many choices are asked for.
    fn n(&self, served: &Served) -> Result<usize, ApiError> {
        Ok(self.fields.count("n", 1, served.n_slots())?.unwrap_or(1))
    }
}

/// What a handler gives.
type Answer = Result<Response, ApiError>;

/// The program and its version, as OpenAI's `system_fingerprint` and llama-server's `build_info` have it.
const BUILD: &str = concat!("b1-sterna-", env!("CARGO_PKG_VERSION"));
