//! Embeddings in OpenAI's format and in llama-server's, which also supports one vector per token.

use std::sync::Arc;

use axum::extract::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Serialize;

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read};
use crate::answer::InputUsage;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::request;
use crate::http::json::json;
use crate::job::Job;
use crate::kinds::{Any, Int, UpTo, Word};
use crate::model::Served;
use crate::pooled::{self, CUT_TOKENS, Cutting, TEXTS, VectorForm};
use sterna_engine::{Pooled, Pooling};

/// Maximum numbers in an answer with one vector per token.
const NUMBERS: usize = 1 << 25;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Embeddings of texts").body::<EmbeddingRequest>().fails(&[429]);
    to.post(&["/v1/embeddings", "/embeddings"], embeddings, &operation.answer::<Answered>());
    let operation = Operation::new("Embeddings in llama-server's format").body::<EmbeddingRequest>();
    to.post(&["/embedding"], native, &operation.fails(&[429]).answer::<Vec<NativeEmbedding>>());
}

request! {
    /// Texts to embed. `content` selects llama-server's format.
    struct EmbeddingRequest {
        ..OfModel,
        ..Cutting,
        /// A text, a list of texts, a list of tokens, or a list of these.
        input: Any as {
            "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "maxItems": TEXTS }],
        },
        /// The same under llama-server's name.
        content: Any as {
            "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "maxItems": TEXTS }],
        },
        /// `base64` encodes little-endian f32. llama-server's format supports only numbers.
        encoding_format: Word<Encoding>(&[("float", Encoding::Float), ("base64", Encoding::Base64)]),
        /// Keeps only the first `dimensions` numbers of each vector, and normalises again; at most the
        /// model's dimension.
        dimensions: UpTo(1),
        /// Norm to scale vectors by: -1 none, 0 the largest magnitude (to 32760), 1 the sum of magnitudes, 2
        /// Euclidean, otherwise that p-norm. Vectors per token are not scaled.
        embd_normalize: Int(-1, 64),
    }
}

#[derive(Clone, Copy)]
enum Encoding {
    Float,
    Base64,
}

struct ParsedRequest {
    job: Job,
    form: VectorForm,
    encoding: Encoding,
    /// The field was named `content`.
    is_native: bool,
}

impl ParsedRequest {
    fn of(read: &Read<EmbeddingRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        pooled::check_embeds(served)?;
        let most = pooled::most_tokens(&fields.part(), served)?;
        let (name, value) = match (fields.input()?, fields.content()?) {
            (Some(input), _) => ("input", input),
            (None, Some(content)) => ("content", content),
            (None, None) => return Err(ApiError::missing("input", pooled::WANT)),
        };
        let form = VectorForm {
            dimensions: pooled::dimensions(fields.dimensions()?, served)?,
            norm: fields.embd_normalize()?.map_or(read.app.options.embd_normalize, |p| p as i32),
        };
        let texts = pooled::texts(name, value, served, most, CUT_TOKENS)?;
        check_numbers(name, &texts, served)?;
        Ok(Self {
            job: Job::pooled(&read.client.0, &read.sender, texts),
            form,
            encoding: fields.encoding_format()?.unwrap_or(Encoding::Float),
            is_native: name == "content",
        })
    }
}

/// Refuses a request for more token vectors than an answer may have.
fn check_numbers(name: &str, texts: &[(Vec<u32>, Pooled)], served: &Served) -> Result<(), ApiError> {
    let most = NUMBERS / served.engine.vector_len();
    let n_tokens: usize = texts.iter().map(|(text, _)| text.len()).sum();
    match served.engine.pooling() == Pooling::None && n_tokens > most {
        true => {
            let message =
                format!("`{name}`: want at most {most} tokens with one vector each, got {n_tokens}");
            Err(ApiError::in_field(name, message))
        }
        false => Ok(()),
    }
}

/// An answer in either format.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Embeddings")]
enum Answered {
    OpenAi(EmbeddingList),
    /// With `content`.
    Native(Vec<NativeEmbedding>),
}

#[derive(Serialize, JsonSchema)]
struct EmbeddingList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: InputUsage,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Embedding {
    #[schemars(extend("const" = "embedding"))]
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Numbers {
    Floats(Vec<f32>),
    Base64(String),
}

/// The vector of a text in llama-server's format: a list of one, or of one per token.
#[derive(Serialize, JsonSchema)]
struct NativeEmbedding {
    index: usize,
    embedding: Vec<Vec<f32>>,
}

async fn embeddings(app: Arc<App>, request: Request) -> Answer {
    let read = Read::<EmbeddingRequest>::of(&app, request).await?;
    let model = Arc::clone(&read.model);
    let parsed = read.work(ParsedRequest::of).await?;
    let served = &model.served;
    if parsed.is_native {
        return Ok(json(&Answered::Native(in_lists(&app, &model, parsed).await?)));
    }
    pooled::check_pools(served)?;
    let ParsedRequest { job, form, encoding, .. } = parsed;
    let usage = InputUsage::of(&job.prompts);
    let vectors = pooled::compute(&app, &model, job).await?;
    let entry = |(index, vector)| {
        let vector = form.apply(vector);
        let embedding = match encoding {
            Encoding::Float => Numbers::Floats(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Numbers::Base64(STANDARD.encode(bytes))
            }
        };
        Embedding { object: "embedding", index, embedding }
    };
    let data = vectors.into_iter().enumerate().map(entry).collect();
    let list = EmbeddingList { object: "list", data, model: served.name.clone(), usage };
    Ok(json(&Answered::OpenAi(list)))
}

async fn native(app: Arc<App>, request: Request) -> Answer {
    let read = Read::<EmbeddingRequest>::of(&app, request).await?;
    let model = Arc::clone(&read.model);
    let parsed = read.work(ParsedRequest::of).await?;
    Ok(json(&in_lists(&app, &model, parsed).await?))
}

/// The vectors in llama-server's format.
async fn in_lists(
    app: &App,
    model: &crate::instance::Instance,
    parsed: ParsedRequest,
) -> Result<Vec<NativeEmbedding>, ApiError> {
    let ParsedRequest { job, form, .. } = parsed;
    let engine = &model.served.engine;
    let is_pooled = engine.pooling() != Pooling::None;
    let form = if is_pooled { form } else { VectorForm { norm: -1, ..form } };
    let vectors = pooled::compute(app, model, job).await?;
    let entry = |(index, vector): (usize, Vec<f32>)| {
        let each = vector.chunks_exact(engine.vector_len());
        NativeEmbedding { index, embedding: each.map(|vector| form.apply(vector.to_vec())).collect() }
    };
    Ok(vectors.into_iter().enumerate().map(entry).collect())
}
