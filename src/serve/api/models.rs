//! What models there are, and which are loaded.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use serde_json::{Map, Value, json};

use super::Answer;
use super::openapi::{Endpoints, Operation};
use crate::app::App;
use crate::details::details;
use crate::engine_thread;
use crate::error::ApiError;
use crate::http::body::fields;
use crate::http::json::json;
use crate::instance::Instance;
use crate::model::ModelSource;
use crate::models::Status;

pub fn add(to: &mut Endpoints) {
    let operation = |summary| Operation::new(summary).fails(&[500, 503]).answer::<Map<String, Value>>();
    to.get(&["/v1/models", "/models"], models, &operation("The models"));
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } });
    let paths = ["/v1/models/{*id}", "/models/{*id}"];
    to.get(&paths, model, &operation("A model").parameter(id).fails(&[404]));
    let operation = |summary| {
        let operation = Operation::new(summary).body("ModelName").optional_body().fails(&[501]);
        operation.answer::<Map<String, Value>>()
    };
    to.post(&["/models/load"], load, &operation("Loads a model before it is needed"));
    to.post(&["/models/unload"], unload, &operation("Unloads a model when its requests have ended"));
}

async fn models(State(app): State<Arc<App>>) -> Answer {
    app.check()?;
    let list = app.models.list();
    let entries = list.iter().map(|(source, status, model)| entry(&app, source, *status, model.as_deref()));
    let of_ollama = list.iter().map(|(source, _, model)| {
        let name = name(source, model.as_deref());
        json!({
            "name": name,
            "model": name,
            "type": "model",
            "capabilities": ["completion"],
            "details": details(model.as_ref().map(|model| &model.served)),
        })
    });
    Ok(json(&json!({
        "object": "list",
        "data": entries.collect::<Value>(),
        "models": of_ollama.collect::<Value>(),
    })))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    app.check()?;
    let list = app.models.list();
    let found = list.iter().find(|(source, _, model)| name(source, model.as_deref()) == id);
    let (source, status, model) = found.ok_or_else(|| ApiError::unknown_model(&id))?;
    Ok(json(&entry(&app, source, *status, model.as_deref())))
}

/// Loads a model before it is needed, and answers when it is loaded.
async fn load(State(app): State<Arc<App>>, request: Request) -> Answer {
    let name = named(&app, request).await?;
    engine_thread::model(&app, Some(&name)).await?;
    Ok(json(&json!({ "success": true })))
}

/// Unloads a model when its requests have ended.
async fn unload(State(app): State<Arc<App>>, request: Request) -> Answer {
    let name = named(&app, request).await?;
    match app.models.unload(app.models.find(Some(&name))?) {
        true => Ok(json(&json!({ "success": true }))),
        false => Err(ApiError::bad(format!("the model `{}` is not loaded", name.escape_debug()))),
    }
}

/// The name in a request to load or unload a model.
async fn named(app: &App, request: Request) -> Result<String, ApiError> {
    app.check()?;
    if !app.models.by_name {
        return Err(ApiError::not_here("this server has one model, which stays loaded"));
    }
    let fields = fields(&app.options, request).await?;
    let name = fields.text("model")?.ok_or_else(|| ApiError::missing("model", "the name of a model"))?;
    Ok(name.to_owned())
}

/// Name of a model: of a single one that in its file, once that has been read.
fn name<'m>(source: &'m ModelSource, model: Option<&'m Instance>) -> &'m str {
    model.map_or(&source.name, |model| &model.served.name)
}

fn entry(app: &App, source: &ModelSource, status: Status, model: Option<&Instance>) -> Value {
    let mut entry = json!({
        "id": name(source, model),
        "aliases": [],
        "tags": [],
        "object": "model",
        "created": model.map_or(app.started, |model| model.served.created),
        "owned_by": "sterna",
        "status": { "value": status.name() },
    });
    if status == Status::Failed {
        entry["status"]["failed"] = true.into();
    }
    let Some(served) = model.map(|model| &model.served) else { return entry };
    let hyper = served.engine.hyper();
    entry["max_model_len"] = served.n_ctx().into();
    entry["meta"] = json!({
        "n_vocab": hyper.n_vocab,
        "n_ctx": served.n_ctx(),
        "n_ctx_train": hyper.n_ctx_train,
        "n_embd": hyper.dim,
        "n_params": served.n_params(),
        "size": served.engine.plan().weights_bytes,
    });
    entry
}
