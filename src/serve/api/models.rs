//! The list of models, and loading and unloading them.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::openapi::{Endpoints, Operation};
use super::{Answer, path_parameter, sender_of};
use crate::app::App;
use crate::details::Details;
use crate::engine_thread;
use crate::error::ApiError;
use crate::fields::{Fields, missing, request};
use crate::http::body::object;
use crate::http::json::json;
use crate::instance::Instance;
use crate::kinds::Text;
use crate::model::{ModelSource, Served};
use crate::models::Status;
use sterna_engine::Adapter;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("The models").fails(&[500, 503]).answer::<ModelList>();
    to.get(&["/v1/models", "/models"], models, &operation);
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } });
    let paths = ["/v1/models/{*id}", "/models/{*id}"];
    let operation = Operation::new("A model").parameter(id).fails(&[404, 500, 503]);
    to.get(&paths, model, &operation.answer::<ModelEntry>());
    let operation = |summary| {
        Operation::new(summary).body::<ModelName>().optional_body().fails(&[501]).answer::<Success>()
    };
    to.post(&["/models/load"], load, &operation("Loads a model ahead of its first request"));
    to.post(&["/models/unload"], unload, &operation("Unloads a model after its requests have ended"));
}

request! {
    /// A model to load or unload.
    struct ModelName {
        model: Text or missing("the name of a model"),
    }
}

/// The models of a server.
#[derive(Serialize, JsonSchema)]
struct ModelList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<ModelEntry>,
    /// The same list in ollama's format.
    models: Vec<NamedModel>,
}

/// A model in OpenAI's format, with the fields that llama-server and vLLM add.
#[derive(Clone, Serialize, JsonSchema)]
struct ModelEntry {
    id: String,
    /// Further names that requests may use.
    aliases: Vec<String>,
    /// The model of a LoRA adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    tags: [&'static str; 0],
    #[schemars(extend("const" = "model"))]
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    status: ModelStatus,
    /// Maximum positions of a sequence, for a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<ModelMeta>,
}

#[derive(Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct ModelStatus {
    #[schemars(extend("enum" = ["unloaded", "loading", "loaded"]))]
    value: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<bool>,
}

#[derive(Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct ModelMeta {
    n_vocab: usize,
    n_ctx: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: usize,
    /// Size of its weights in bytes.
    size: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct NamedModel {
    name: String,
    model: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "model"))]
    kind: &'static str,
    /// The capabilities of most models, if the model is not loaded.
    capabilities: Vec<&'static str>,
    details: Details,
}

/// Success of an action.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Success {
    #[schemars(extend("const" = true))]
    success: bool,
}

async fn models(app: Arc<App>, _: Request) -> Answer {
    app.check()?;
    let list = app.models.list();
    let entries = list.iter().flat_map(|(source, status, model)| {
        let model = model.as_deref();
        let entry = entry(&app, source, *status, model);
        let adapters = model.into_iter().flat_map(|model| model.served.engine.adapters());
        let adapters: Vec<_> = adapters.filter_map(|adapter| of_adapter(&entry, adapter)).collect();
        [entry].into_iter().chain(adapters)
    });
    let of_ollama = list.iter().map(|(source, _, model)| {
        let name = name(source, model.as_deref());
        NamedModel {
            name: name.to_owned(),
            model: name.to_owned(),
            kind: "model",
            capabilities: match model {
                Some(model) => model.served.capabilities(),
                None => vec!["completion"],
            },
            details: Details::new(model.as_ref().map(|model| &model.served)),
        }
    });
    Ok(json(&ModelList { object: "list", data: entries.collect(), models: of_ollama.collect() }))
}

async fn model(app: Arc<App>, mut request: Request) -> Answer {
    let id = path_parameter(&mut request).await?;
    app.check()?;
    let list = app.models.list();
    let found = list.iter().find_map(|(source, status, model)| {
        let model = model.as_deref();
        let entry = || entry(&app, source, *status, model);
        if is_called(&id, source, model) {
            return Some(entry());
        }
        let mut adapters = model?.served.engine.adapters().iter();
        of_adapter(&entry(), adapters.find(|adapter| adapter.is_called(&id))?)
    });
    Ok(json(&found.ok_or_else(|| ApiError::unknown_model(&id))?))
}

/// Loads a model ahead of its first request, and answers after it is loaded.
async fn load(app: Arc<App>, request: Request) -> Answer {
    let name = named(&app, request).await?;
    engine_thread::model(&app, Some(&name)).await?;
    Ok(json(&Success { success: true }))
}

/// Unloads a model after its requests have ended.
async fn unload(app: Arc<App>, request: Request) -> Answer {
    let name = named(&app, request).await?;
    match app.models.unload(app.models.find(Some(&name))?, None) {
        true => Ok(json(&Success { success: true })),
        false => Err(ApiError::bad(format!("the model `{}` is not loaded", name.escape_debug()))),
    }
}

/// The model name in a request to load or unload.
async fn named(app: &App, request: Request) -> Result<String, ApiError> {
    app.check()?;
    if !app.models.by_name {
        return Err(ApiError::not_here("this server has one model, which stays loaded"));
    }
    let sender = sender_of(&request);
    let body = object(app, &sender, request).await?;
    Ok(Fields::<ModelName>::of(&body).model()?.to_owned())
}

/// True if `called` is one of the names of a model.
pub(super) fn is_called(called: &str, source: &ModelSource, model: Option<&Instance>) -> bool {
    name(source, model) == called || source.aliases.iter().any(|alias| alias == called)
}

/// Name of a model. A single model is named by its file, after that has been read.
fn name<'m>(source: &'m ModelSource, model: Option<&'m Instance>) -> &'m str {
    model.map_or(&source.name, |model| &model.served.name)
}

/// The entry of an adapter that requests may name as their model.
fn of_adapter(model: &ModelEntry, adapter: &Adapter) -> Option<ModelEntry> {
    let (id, parent) = (adapter.alias.clone()?, Some(model.id.clone()));
    Some(ModelEntry { id, parent, aliases: Vec::new(), ..model.clone() })
}

fn entry(app: &App, source: &ModelSource, status: Status, model: Option<&Instance>) -> ModelEntry {
    let served = model.map(|model| &model.served);
    ModelEntry {
        id: name(source, model).to_owned(),
        aliases: source.aliases.clone(),
        parent: None,
        tags: [],
        object: "model",
        created: served.map_or(app.started, |served| served.created),
        owned_by: "sterna",
        status: ModelStatus { value: status.name(), failed: (status == Status::Failed).then_some(true) },
        max_model_len: served.map(Served::n_ctx),
        meta: served.map(|served| {
            let hyper = served.engine.hyper();
            ModelMeta {
                n_vocab: hyper.n_vocab,
                n_ctx: served.n_ctx(),
                n_ctx_train: hyper.n_ctx_train,
                n_embd: hyper.dim,
                n_params: served.n_params(),
                size: served.engine.plan().weights_bytes,
            }
        }),
    }
}
