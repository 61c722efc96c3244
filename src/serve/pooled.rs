//! Embeddings of texts and scores of text pairs: reading requests, and the job that computes them.

use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, request};
use super::http::stream::api_error;
use super::instance::Instance;
use super::job::{Job, Update};
use super::kinds::{Bool, Only, Unread, UpTo};
use super::model::Served;
use super::prompts::{self, TextLimit};
use sterna_engine::{Pooled, Pooling, cut, normalise};

/// Maximum texts of a request.
pub const TEXTS: usize = 2048;

/// The way out for a text that is too long, in the APIs of vLLM and llama-server.
pub const CUT_TOKENS: &str = "`truncate_prompt_tokens`: -1 truncates it";
/// The same in the APIs of TEI and ollama.
pub const CUT: &str = "`truncate`: true truncates it";

/// Description of the texts that a request may have.
pub const WANT: &str = "a text, a list of texts, a list of tokens, or a list of those";

request! {
    /// Truncation of texts that are too long, which are refused otherwise.
    pub struct Cutting {
        /// Maximum tokens of a text; -1 is the context length.
        truncate_prompt_tokens: UpTo(-1),
        /// Truncates to the context length.
        truncate: Bool,
        truncation_direction | truncation_side: Only(|| json!(["Right", "right"])),
    }
}

/// Number of tokens to truncate texts to; `None` does not truncate.
pub fn most_tokens(fields: &Fields<'_, Cutting>, served: &Served) -> Result<Option<usize>, ApiError> {
    fields.truncation_direction()?;
    let n_ctx = served.n_ctx();
    match fields.truncate_prompt_tokens()?.map(|most| most.up_to(n_ctx)).transpose()? {
        None => Ok(fields.truncate()?.unwrap_or(false).then_some(n_ctx)),
        Some(-1) => Ok(Some(n_ctx)),
        Some(0) => {
            let want = format!("-1, or 1 to {n_ctx} tokens");
            Err(ApiError::field("truncate_prompt_tokens", &want, &Value::from(0)))
        }
        Some(most) => Ok(Some(most as usize)),
    }
}

/// The tokens of each text, truncated to `most`. If a text is too long, `way_out` says how to truncate it.
///
/// # Errors
/// 400 for a value that is not a text, is empty or too long, or contains tokens that the model does not have.
pub fn texts(
    name: &str,
    value: &Value,
    served: &Served,
    most: Option<usize>,
    way_out: &str,
) -> Result<Vec<(Vec<u32>, Pooled)>, ApiError> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if let Some(at) = list.iter().position(|text| text.as_str() == Some("")) {
        let name = if value.is_array() { format!("{name}[{at}]") } else { name.to_owned() };
        return Err(ApiError::field(name, "a text that is not empty", &list[at]));
    }
    let n_ctx = served.n_ctx();
    let too_long = |name, n_tokens| ApiError::text_too_long(name, n_tokens, n_ctx, way_out);
    let limit = most.is_none().then_some(TextLimit { tokens: n_ctx, error: &too_long });
    let mut texts = prompts::several(name, value, served, TEXTS, limit)?;
    let n_texts = texts.len();
    for (at, text) in texts.iter_mut().enumerate() {
        if let Some(most) = most {
            cut(text, most, served.tokenizer());
        }
        let name = || if n_texts > 1 { format!("{name}[{at}]") } else { name.to_owned() };
        check_length(name, text.len(), served, way_out)?;
    }
    Ok(texts.into_iter().map(|text| (text, Pooled::default())).collect())
}

/// Refuses a list of texts with a token among them, which would be one text.
pub fn check_unmixed(name: &str, value: &Value) -> Result<(), ApiError> {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    let is_odd = |one: &Value| one.is_number() != list[0].is_number();
    match list.iter().position(is_odd) {
        Some(at) => Err(ApiError::field(format!("{name}[{at}]"), "only texts, or only tokens", &list[at])),
        None => Ok(()),
    }
}

/// Refuses a text of more bytes than can fit the context.
pub fn check_bytes(
    name: impl FnOnce() -> String,
    text: &str,
    served: &Served,
    way_out: &str,
) -> Result<(), ApiError> {
    match served.exceeds(text.len(), served.n_ctx()) {
        Some(n_tokens) => Err(ApiError::text_too_long(name(), n_tokens, served.n_ctx(), way_out)),
        None => Ok(()),
    }
}

/// Refuses a text that is longer than the context, and says with `way_out` how to truncate it.
pub fn check_length(
    name: impl FnOnce() -> String,
    n_tokens: usize,
    served: &Served,
    way_out: &str,
) -> Result<(), ApiError> {
    match n_tokens > served.n_ctx() {
        true => Err(ApiError::text_too_long(name(), n_tokens, served.n_ctx(), way_out)),
        false => Ok(()),
    }
}

/// Refuses a model that scores documents.
pub fn check_embeds(served: &Served) -> Result<(), ApiError> {
    match served.engine.pooling() {
        Pooling::Rank => Err(ApiError::bad(
            "this model is served with the pooling `rank`: it scores documents (/v1/rerank). For embeddings, \
             start the server with the pooling none, mean, cls or last",
        )),
        _ => Ok(()),
    }
}

/// Refuses a model that scores documents, or that makes one vector per token.
pub fn check_pools(served: &Served) -> Result<(), ApiError> {
    check_embeds(served)?;
    match served.engine.pooling() {
        Pooling::None => Err(ApiError::bad(
            "this model is served with the pooling `none`, a vector per token: use /embedding for these. For \
             a vector per text, start the server with the pooling mean, cls or last",
        )),
        _ => Ok(()),
    }
}

/// Refuses a model that makes embeddings.
pub fn check_ranks(served: &Served) -> Result<(), ApiError> {
    match served.engine.pooling() {
        Pooling::Rank => Ok(()),
        pooling => Err(ApiError::bad(format!(
            "this model is served with the pooling `{}`: it makes embeddings (/v1/embeddings). To rank, \
             start the server with --reranking, and a model that has a classifier",
            pooling.name()
        ))),
    }
}

/// Number of dimensions to keep of a vector, if the request sets it.
pub fn dimensions(field: Option<Unread<'_>>, served: &Served) -> Result<Option<usize>, ApiError> {
    Ok(field.map(|n| n.up_to(served.engine.vector_len())).transpose()?.map(|n| n as usize))
}

/// Output format of vectors.
#[derive(Clone, Copy, Debug)]
pub struct VectorForm {
    /// Number of dimensions to keep; all by default.
    pub dimensions: Option<usize>,
    /// Norm to scale by, numbered as in [`normalise`].
    pub norm: i32,
}

impl VectorForm {
    /// Converts a vector to this format.
    pub fn apply(self, mut vector: Vec<f32>) -> Vec<f32> {
        if let Some(n) = self.dimensions {
            vector.truncate(n);
        }
        normalise(&mut vector, self.norm);
        vector
    }
}

/// Computes the vectors or scores of a job's prompts.
///
/// # Errors
/// The failure of the job; 429 if too many requests are waiting.
pub async fn compute(app: &App, model: &Instance, job: Job) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = vec![Vec::new(); job.prompts.len()];
    let mut handle = app.begin(model, job)?;
    while let Some(update) = handle.next().await {
        let update = update.map_err(|err| api_error(&err))?;
        if let Update::Vector { choice, vector } = update {
            vectors[choice] = vector;
        }
    }
    match vectors.iter().all(|vector| !vector.is_empty()) {
        true => Ok(vectors),
        false => Err(ApiError::ours("the engine has not computed all texts")),
    }
}
