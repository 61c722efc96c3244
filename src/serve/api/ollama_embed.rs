//! Ollama's embeddings: of a list, and the older endpoint for a single prompt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::keep_alive::{KeepAlive, Unload};
use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Includes, request};
use crate::http::json::json;
use crate::job::Job;
use crate::kinds::{Any, Bool, Text, UpTo};
use crate::pooled::{self, CUT, TEXTS, VectorForm};

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Embeddings of texts (ollama)").body::<OllamaEmbedRequest>();
    to.post(&["/api/embed"], embed, &operation.fails(&[429]).answer::<Embedded>());
    let operation = Operation::new("An embedding in ollama's older format").body::<OllamaEmbeddingRequest>();
    to.post(&["/api/embeddings"], embedding, &operation.fails(&[429]).answer::<OneEmbedded>());
}

request! {
    /// Fields of both requests. `options` is ignored: none of them affect embeddings.
    struct OllamaTexts {
        ..KeepAlive,
        /// Truncates texts that are too long; true by default.
        truncate: Bool,
    }
}

request! {
    /// Texts in ollama's format. Without texts it loads or unloads the model.
    struct OllamaEmbedRequest {
        ..OfModel,
        ..OllamaTexts,
        /// A text, or a list of texts.
        input: Any as {
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" }, "maxItems": TEXTS },
            ],
        },
        /// Keeps only the first `dimensions` numbers of each vector, and normalises again; 0 keeps all.
        dimensions: UpTo(0),
    }
}

request! {
    /// A text in ollama's format. Without a text it loads or unloads the model.
    struct OllamaEmbeddingRequest {
        ..OfModel,
        ..OllamaTexts,
        prompt: Text,
    }
}

/// Vectors of length 1, and times in ns.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddings")]
struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// A vector as the model computes it, not normalised.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedding")]
struct OneEmbedded {
    embedding: Vec<f32>,
}

/// Result of a request.
struct Computed {
    model: String,
    vectors: Vec<Vec<f32>>,
    n_tokens: usize,
    loading: Duration,
}

async fn embed(app: Arc<App>, request: Request) -> Answer {
    let begun = Instant::now();
    let computed = compute(&app, request, begun, |read: &Read<OllamaEmbedRequest>| {
        let fields = read.fields();
        let served = &read.model.served;
        let form = VectorForm { dimensions: pooled::dimensions(fields.dimensions()?, served)?, norm: 2 };
        let input = fields.input()?.cloned().unwrap_or(Value::Array(Vec::new()));
        let is_text = match &input {
            Value::Array(list) => list.iter().all(Value::is_string),
            one => one.is_string(),
        };
        match is_text {
            true => Ok((input, VectorForm { dimensions: form.dimensions.filter(|n| *n > 0), ..form })),
            false => Err(ApiError::field("input", "a text or a list of texts", &input)),
        }
    });
    let Computed { model, vectors, n_tokens, loading } = computed.await?;
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(json(&Embedded {
        model,
        embeddings: vectors,
        total_duration: ns(begun.elapsed()),
        load_duration: ns(loading),
        prompt_eval_count: n_tokens,
    }))
}

async fn embedding(app: Arc<App>, request: Request) -> Answer {
    let computed = compute(&app, request, Instant::now(), |read: &Read<OllamaEmbeddingRequest>| {
        let prompt = read.fields().prompt()?.unwrap_or_default();
        Ok((prompt.into(), VectorForm { dimensions: None, norm: -1 }))
    });
    Ok(json(&OneEmbedded { embedding: computed.await?.vectors.pop().unwrap_or_default() }))
}

/// Computes the vectors of the texts that `input` finds in a request. Without texts it loads or unloads the
/// model.
async fn compute<R: Includes<OfModel> + Includes<OllamaTexts> + 'static>(
    app: &Arc<App>,
    request: Request,
    begun: Instant,
    input: impl FnOnce(&Read<R>) -> Result<(Value, VectorForm), ApiError> + Send + 'static,
) -> Result<Computed, ApiError> {
    let read = Read::<R>::of(app, request).await?;
    let loading = begun.elapsed();
    let model = Arc::clone(&read.model);
    let (job, form, _unload) = read
        .work(move |read, served| {
            let (input, form) = input(read)?;
            let fields = read.fields().part::<OllamaTexts>();
            let is_empty = input.as_str() == Some("") || input.as_array().is_some_and(Vec::is_empty);
            let unload = Unload::asked(read, &fields.part())?;
            if is_empty {
                return Ok((None, form, unload));
            }
            pooled::check_pools(served)?;
            let most = fields.truncate()?.unwrap_or(true).then(|| served.n_ctx());
            let texts = pooled::texts("input", &input, served, most, CUT)?;
            Ok((Some(Job::pooled(&read.client.0, &read.sender, texts)), form, unload))
        })
        .await?;
    let name = model.served.name.clone();
    let Some(job) = job else {
        return Ok(Computed { model: name, vectors: Vec::new(), n_tokens: 0, loading });
    };
    let n_tokens = job.prompts.iter().map(Vec::len).sum();
    let vectors = pooled::compute(app, &model, job).await?;
    let vectors = vectors.into_iter().map(|vector| form.apply(vector)).collect();
    Ok(Computed { model: name, vectors, n_tokens, loading })
}
