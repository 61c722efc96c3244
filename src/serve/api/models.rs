//! What models there are: one.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use serde_json::{Value, json};

use super::Answer;
use crate::serve::app::App;
use crate::serve::error::ApiError;
use crate::serve::http::body::json;
use crate::serve::model::Served;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(models))
        .route("/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/models/{*id}", get(model))
}

async fn models(State(app): State<Arc<App>>) -> Answer {
    let served = app.served()?;
    let details = json!({
        "format": "gguf",
        "family": served.engine.hyper().architecture,
        "families": [served.engine.hyper().architecture],
        "parameter_size": "",
        "quantization_level": "",
    });
    Ok(json(&json!({
        "object": "list",
        "data": [entry(served)],
        "models": [{
            "name": served.name,
            "model": served.name,
            "type": "model",
            "capabilities": ["completion"],
            "details": details,
        }],
    })))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let served = app.served()?;
    match id == served.name {
        true => Ok(json(&entry(served))),
        false => {
            let message = format!("there is no model `{}`; this is `{}`", id.escape_debug(), served.name);
            Err(ApiError { code: Some("model_not_found"), ..ApiError::not_found(message) })
        }
    }
}

fn entry(served: &Served) -> Value {
    let hyper = served.engine.hyper();
    let tensors = served.engine.gguf().tensors();
    let n_params: usize = tensors.iter().map(|tensor| tensor.dims.iter().product::<usize>()).sum();
    json!({
        "id": served.name,
        "aliases": [],
        "tags": [],
        "object": "model",
        "created": served.created,
        "owned_by": "sterna",
        "max_model_len": served.n_ctx(),
        "meta": {
            "n_vocab": hyper.n_vocab,
            "n_ctx": served.n_ctx(),
            "n_ctx_train": hyper.n_ctx_train,
            "n_embd": hyper.dim,
            "n_params": n_params,
            "size": served.engine.plan().weights_bytes,
        },
    })
}
