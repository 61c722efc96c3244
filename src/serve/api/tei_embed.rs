//! Embeddings in the format of Hugging Face's TEI (text-embeddings-inference).

use std::sync::Arc;

use axum::extract::Request;
use serde_json::json;

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read};
use crate::app::App;
use crate::fields::{missing, request};
use crate::http::json::json as answer;
use crate::job::Job;
use crate::kinds::{Any, Bool, Only, UpTo};
use crate::pooled::{self, CUT, Cutting, TEXTS, VectorForm};

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Embeddings of texts (TEI)").body::<TeiEmbedRequest>();
    to.post(&["/embed"], embed, &operation.fails(&[429]).answer::<Vec<Vec<f32>>>());
}

request! {
    /// Texts in TEI's format.
    struct TeiEmbedRequest {
        ..OfModel,
        ..Cutting,
        /// A text, a list of texts, a list of tokens, or a list of these.
        inputs: Any as {
            "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "maxItems": TEXTS }],
        } or missing(pooled::WANT),
        /// Keeps only the first `dimensions` numbers of each vector, and normalises again.
        dimensions: UpTo(1),
        /// Normalises vectors to length 1; true by default.
        normalize: Bool,
        prompt_name: Only(|| json!([])),
    }
}

async fn embed(app: Arc<App>, request: Request) -> Answer {
    let read = Read::<TeiEmbedRequest>::of(&app, request).await?;
    let model = Arc::clone(&read.model);
    let parsed = read.work(|read, served| {
        let fields = read.fields();
        pooled::check_pools(served)?;
        fields.prompt_name()?;
        let most = pooled::most_tokens(&fields.part(), served)?;
        let form = VectorForm {
            dimensions: pooled::dimensions(fields.dimensions()?, served)?,
            norm: if fields.normalize()?.unwrap_or(true) { 2 } else { -1 },
        };
        pooled::check_unmixed("inputs", fields.inputs()?)?;
        let texts = pooled::texts("inputs", fields.inputs()?, served, most, CUT)?;
        Ok((Job::pooled(&read.client.0, &read.sender, texts), form))
    });
    let (job, form) = parsed.await?;
    let vectors = pooled::compute(&app, &model, job).await?;
    Ok(answer(&vectors.into_iter().map(|vector| form.apply(vector)).collect::<Vec<_>>()))
}
