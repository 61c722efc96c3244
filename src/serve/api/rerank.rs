//! Scores of documents for a query, in the format of Jina, Cohere, vLLM and llama-server, and in TEI's with
//! `texts`.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read};
use crate::answer::InputUsage;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{missing, request};
use crate::http::json::json;
use crate::job::Job;
use crate::kinds::{Array, Bool, Int, MAX_INT, Text};
use crate::model::Served;
use crate::pooled::{self, CUT, CUT_TOKENS, Cutting, TEXTS};

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Ranks documents by relevance to a query").body::<RerankRequest>();
    let paths = ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank"];
    to.post(&paths, rerank, &operation.fails(&[429]).answer::<Answered>());
}

request! {
    /// A query, and documents to be scored for it. `texts` selects TEI's format.
    struct RerankRequest {
        ..OfModel,
        ..Cutting,
        query: Text or missing("a text"),
        /// Texts, or objects with a `text`.
        documents: Array(TEXTS) as {
            "minItems": 1,
            "items": { "anyOf": [{ "type": "string" }, { "type": "object", "required": ["text"] }] },
        },
        /// The documents under TEI's name.
        texts: Array(TEXTS) as { "minItems": 1 },
        /// Number of best documents to return; all by default.
        top_n: Int(1, MAX_INT),
        return_documents: Bool,
        /// `return_documents` in TEI's format.
        return_text: Bool,
        /// Truncates each document to this number of tokens.
        max_tokens_per_doc: Int(1, MAX_INT),
        /// False applies a sigmoid to logits; the default in TEI's format. A decoder's scores are
        /// probabilities, and are not changed.
        raw_scores: Bool,
    }
}

struct ParsedRequest {
    job: Job,
    /// The documents, if the answer repeats them.
    documents: Option<Vec<String>>,
    top_n: usize,
    has_sigmoid: bool,
    is_tei: bool,
}

impl ParsedRequest {
    fn of(read: &Read<RerankRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        pooled::check_ranks(served)?;
        let most = pooled::most_tokens(&fields.part(), served)?;
        let query = fields.query()?;
        if query.is_empty() {
            return Err(ApiError::field("query", "a text that is not empty", &Value::from("")));
        }
        let (name, list) = match (fields.documents()?, fields.texts()?) {
            (Some(documents), _) => ("documents", documents),
            (None, Some(texts)) => ("texts", texts),
            (None, None) => return Err(ApiError::missing("documents", "a list of texts")),
        };
        if list.is_empty() {
            return Err(ApiError::field(name, &format!("1 to {TEXTS} texts"), &Value::Array(Vec::new())));
        }
        let pairs = served.engine.pairs().map_err(|err| ApiError::ours(err.to_string()))?;
        let shorten = "A query is not truncated: shorten it";
        pooled::check_bytes(|| "query".to_owned(), query, served, shorten)?;
        // The query is read again with each document.
        let without = pairs.encode(query, "", None).0.len();
        pooled::check_length(|| "query".to_owned(), without, served, shorten)?;
        let of_documents = fields.max_tokens_per_doc()?.map(|most| without.saturating_add(most as usize));
        let most = most.into_iter().chain(of_documents).min();
        let way_out = if name == "texts" { CUT } else { CUT_TOKENS };
        let mut texts = Vec::with_capacity(list.len());
        let mut documents = Vec::with_capacity(list.len());
        for (at, document) in list.iter().enumerate() {
            let name = || format!("{name}[{at}]");
            let text = document.as_str().or_else(|| document.get("text")?.as_str());
            let text =
                text.ok_or_else(|| ApiError::field(name(), "a text, or an object with `text`", document))?;
            if most.is_none() {
                pooled::check_bytes(name, text, served, way_out)?;
            }
            let pair = pairs.encode(query, text, most);
            pooled::check_length(name, pair.0.len(), served, way_out)?;
            texts.push(pair);
            documents.push(text.to_owned());
        }
        let is_tei = name == "texts";
        let shows = if is_tei { fields.return_text()? } else { fields.return_documents()? };
        Ok(Self {
            job: Job::pooled(&read.client.0, &read.sender, texts),
            top_n: fields.top_n()?.map_or(documents.len(), |n| n as usize),
            documents: shows.unwrap_or(false).then_some(documents),
            has_sigmoid: !fields.raw_scores()?.unwrap_or(!is_tei)
                && !served.engine.scores_are_probabilities(),
            is_tei,
        })
    }
}

/// An answer in either format.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Ranking")]
enum Answered {
    Results(Results),
    /// With `texts`.
    Tei(Vec<Rank>),
}

#[derive(Serialize, JsonSchema)]
struct Results {
    id: String,
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    model: String,
    /// The best document first.
    results: Vec<Ranked>,
    usage: InputUsage,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Ranked {
    /// Index of the document.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Document {
    text: String,
}

/// A document in TEI's format.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Rank {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

async fn rerank(app: Arc<App>, request: Request) -> Answer {
    let read = Read::<RerankRequest>::of(&app, request).await?;
    let model = Arc::clone(&read.model);
    let ParsedRequest { job, mut documents, top_n, has_sigmoid, is_tei } =
        read.work(ParsedRequest::of).await?;
    let usage = InputUsage::of(&job.prompts);
    let scores = pooled::compute(&app, &model, job).await?;
    let score = |scores: Vec<f32>| if has_sigmoid { 1.0 / (1.0 + (-scores[0]).exp()) } else { scores[0] };
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().map(score).enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranked.truncate(top_n);
    let mut text = |index: usize| documents.as_mut().map(|texts| std::mem::take(&mut texts[index]));
    if is_tei {
        let rank = |(index, score)| Rank { index, score, text: text(index) };
        return Ok(json(&Answered::Tei(ranked.into_iter().map(rank).collect())));
    }
    let result = |(index, relevance_score)| {
        let document = text(index).map(|text| Document { text });
        Ranked { index, relevance_score, document }
    };
    Ok(json(&Answered::Results(Results {
        id: app.name("rerank-"),
        object: "list",
        model: model.served.name.clone(),
        results: ranked.into_iter().map(result).collect(),
        usage,
    })))
}
