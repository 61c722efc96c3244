//! Vectors of texts and scores of pairs of texts: what requests ask for, and the job that computes it.

use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, request};
use super::http::stream::api_error;
use super::instance::Instance;
use super::job::{Job, Update};
use super::kinds::{Bool, Only, Unread, UpTo};
use super::model::Served;
use super::prompts;
use sterna_engine::{Pooled, Pooling, cut, normalise};

/// Most texts of a request.
pub const TEXTS: usize = 2048;

/// Texts that a request may have.
pub const WANT: &str = "a text, a list of texts, a list of tokens, or a list of those";

request! {
    /// Whether texts that are too long are cut at their ends, which otherwise fails the request.
    pub struct Cutting {
        /// Tokens that are left of a text; -1 is as many as the context has.
        truncate_prompt_tokens: UpTo(-1),
        /// To as many as the context has.
        truncate: Bool,
        truncation_direction | truncation_side: Only(|| json!(["Right", "right"])),
    }
}

/// The most tokens that a text is cut to. `None` cuts none.
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

/// The tokens of each text; `most` cuts them.
///
/// # Errors
/// 400 for what is no text, is empty, is too long, or names tokens that the model does not have.
pub fn texts(
    name: &str,
    value: &Value,
    served: &Served,
    most: Option<usize>,
) -> Result<Vec<(Vec<u32>, Pooled)>, ApiError> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if let Some(at) = list.iter().position(|text| text.as_str() == Some("")) {
        let name = if value.is_array() { format!("{name}[{at}]") } else { name.to_owned() };
        return Err(ApiError::field(name, "a text that is not empty", &list[at]));
    }
    let mut texts = prompts::several(name, value, served, TEXTS)?;
    let n_texts = texts.len();
    for (at, text) in texts.iter_mut().enumerate() {
        if let Some(most) = most {
            cut(text, most, served.tokenizer());
        }
        let name = || if n_texts > 1 { format!("{name}[{at}]") } else { name.to_owned() };
        check_length(name, text.len(), served)?;
    }
    Ok(texts.into_iter().map(|text| (text, Pooled::default())).collect())
}

/// Refuses a text that the context has no room for.
pub fn check_length(name: impl FnOnce() -> String, n_tokens: usize, served: &Served) -> Result<(), ApiError> {
    match n_tokens > served.n_ctx() {
        true => Err(ApiError::text_too_long(name(), n_tokens, served.n_ctx())),
        false => Ok(()),
    }
}

/// Refuses a model that makes scores.
pub fn check_embeds(served: &Served) -> Result<(), ApiError> {
    match served.engine.pooling() {
        Pooling::Rank => Err(ApiError::bad(
            "this model is served with the pooling `rank`: it scores documents (/v1/rerank). For embeddings, \
             start the server with the pooling none, mean, cls or last",
        )),
        _ => Ok(()),
    }
}

/// The same, also for one that makes a vector of each token.
pub fn check_pools(served: &Served) -> Result<(), ApiError> {
    check_embeds(served)?;
    match served.engine.pooling() {
        Pooling::None => Err(ApiError::bad(
            "this model is served with the pooling `none`, a vector per token: ask /embedding for these. For \
             a vector per text, start the server with the pooling mean, cls or last",
        )),
        _ => Ok(()),
    }
}

/// Refuses a model that makes vectors.
pub fn check_ranks(served: &Served) -> Result<(), ApiError> {
    match served.engine.pooling() {
        Pooling::Rank => Ok(()),
        pooling => Err(ApiError::bad(format!(
            "this model is served with the pooling `{}`: it makes embeddings (/v1/embeddings). To rank, \
             start the server with the pooling rank, and a model that has a classifier",
            pooling.name()
        ))),
    }
}

/// First numbers of a vector that are kept, if a request says so.
pub fn dimensions(field: Option<Unread<'_>>, served: &Served) -> Result<Option<usize>, ApiError> {
    Ok(field.map(|n| n.up_to(served.engine.vector_len())).transpose()?.map(|n| n as usize))
}

/// The form of vectors.
#[derive(Clone, Copy, Debug)]
pub struct VectorForm {
    /// First numbers of each that are kept, if not all.
    pub dimensions: Option<usize>,
    /// How it is scaled, as [`normalise`] counts.
    pub norm: i32,
}

impl VectorForm {
    /// A vector in this form.
    pub fn apply(self, mut vector: Vec<f32>) -> Vec<f32> {
        if let Some(n) = self.dimensions {
            vector.truncate(n);
        }
        normalise(&mut vector, self.norm);
        vector
    }
}

/// Computes the vectors, or the scores, of the prompts of a job.
///
/// # Errors
/// The failure of the job; 429 if too many wait.
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
