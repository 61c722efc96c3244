//! Tokens of a text and text of tokens, and conversations as the model reads them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use serde_json::{Value, json};

use super::{Answer, Read};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::int;
use crate::http::body::json;
use crate::messages;
use sterna_tokenizer::Special;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
}

/// llama-server's form (`content`), and vLLM's (`prompt` or `messages`).
async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Answer {
    let answer = Read::of(&app, request).await?.work(|read, served| {
        let (fields, tokenizer) = (&read.fields, served.tokenizer());
        let vllm = fields.first(&["prompt", "messages"]);
        let ids = match vllm {
            Some("messages") => messages::chat_prompt_with_tools(fields, served)?.prompt(served)?.ids,
            other => {
                let name = other.unwrap_or("content");
                let Some(text) = fields.text(name)? else {
                    return Err(ApiError::missing(name, "a text"));
                };
                let add_special = match other {
                    Some(_) => fields.bool("add_special_tokens")?.unwrap_or(true),
                    None => fields.bool("add_special")?.unwrap_or(false),
                };
                let special = match fields.bool("parse_special")?.unwrap_or(true) {
                    true => Special::Parse,
                    false => Special::AsText,
                };
                tokenizer.encode(text, special, add_special)
            }
        };
        let piece = |id: &u32| match std::str::from_utf8(tokenizer.token_bytes(*id)) {
            Ok(text) => Value::from(text),
            Err(_) => tokenizer.token_bytes(*id).to_vec().into(),
        };
        let tokens: Value = match fields.bool("with_pieces")?.unwrap_or(false) {
            true => ids.iter().map(|id| json!({ "id": id, "piece": piece(id) })).collect(),
            false => ids.clone().into(),
        };
        Ok(match vllm {
            Some(_) => json!({ "count": ids.len(), "max_model_len": served.n_ctx(), "tokens": tokens }),
            None => json!({ "tokens": tokens }),
        })
    });
    Ok(json(&answer.await?))
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Answer {
    let answer = Read::of(&app, request).await?.work(|read, served| {
        let most = 16 * served.n_ctx().max(4096);
        let Some(list) = read.fields.list("tokens", most)? else {
            return Err(ApiError::missing("tokens", "a list of tokens"));
        };
        let n_vocab = served.tokenizer().n_vocab();
        let id = |value: &Value| {
            let id = int(value).and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_vocab);
            id.ok_or_else(|| ApiError::field("tokens", &format!("tokens below {n_vocab}"), value))
        };
        let ids: Vec<u32> = list.iter().map(id).collect::<Result<_, _>>()?;
        let text = String::from_utf8_lossy(&served.tokenizer().decode(&ids, true)).into_owned();
        Ok(json!({ "content": text, "prompt": text }))
    });
    Ok(json(&answer.await?))
}

async fn apply_template(State(app): State<Arc<App>>, request: Request) -> Answer {
    let answer = Read::of(&app, request).await?.work(|read, served| {
        let prompt = messages::chat_prompt_with_tools(&read.fields, served)?.prompt(served)?;
        Ok(json!({ "prompt": prompt.text }))
    });
    Ok(json(&answer.await?))
}
