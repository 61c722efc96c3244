//! Ollama's endpoints for models: what they are, and which are loaded.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::models::is_called;
use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, sender_of};
use crate::app::{App, now};
use crate::details::Details;
use crate::engine_thread;
use crate::error::ApiError;
use crate::fields::{Fields, request};
use crate::http::body::object;
use crate::http::json::json;
use crate::kinds::Text;
use crate::model::{ModelSource, Served};

/// Clients compare this with the version that added the features they need. `capabilities` in `/api/tags` are
/// the latest of those that are here.
const VERSION: &str = "0.30.0";

pub fn add(to: &mut Endpoints) {
    let version = |_, _| async { Ok(json(&Version { version: VERSION })) };
    let operation = Operation::new("The version of ollama's API").answer::<Version>();
    to.get(&["/api/version"], version, &operation);
    let operation = |summary| Operation::new(summary).fails(&[500, 503]).answer::<Models>();
    to.get(&["/api/tags"], tags, &operation("The models"));
    to.get(&["/api/ps"], ps, &operation("The models that are loaded"));
    let operation = Operation::new("Shows a model").body::<OllamaShowRequest>().answer::<Shown>();
    to.post(&["/api/show"], show, &operation);

    let operation = Operation::new("Succeeds for a model of this server, which downloads no others");
    let operation = operation.body::<OllamaPullRequest>().fails(&[500, 501]).answer::<Pulled>();
    to.post(&["/api/pull"], pull, &operation);

    let operation = || Operation::new("Not supported").fails(&[500, 501]);
    for path in ["/api/push", "/api/create", "/api/copy"] {
        to.post(&[path], not_here, &operation());
    }
    to.delete(&["/api/delete"], not_here, &operation());
    let digest = json!({ "name": "digest", "in": "path", "required": true, "schema": { "type": "string" } });
    to.post(&["/api/blobs/{*digest}"], not_here, &operation().parameter(digest));
}

/// Refuses to change the models of the server, and says what to do instead.
async fn not_here(_: Arc<App>, request: Request) -> Answer {
    Err(ApiError::not_here(match request.uri().path() {
        "/api/push" => "this server uploads no models: `hf upload` of huggingface_hub does",
        "/api/copy" => "models are named when the server is started: `sterna serve -a NAME,OTHER` gives two",
        "/api/delete" => "models are chosen when the server is started: `sterna rm` removes downloaded ones",
        _ => {
            "models are chosen when the server is started: `sterna convert` and `sterna quantize` make \
             files, `sterna serve --models NAME=FILE` serves them; requests have the system prompt"
        }
    }))
}

async fn pull(app: Arc<App>, request: Request) -> Answer {
    app.check()?;
    let sender = sender_of(&request);
    let body = object(&app, &sender, request).await?;
    let fields = Fields::<OllamaPullRequest>::of(&body);
    let name = of_either(fields.part::<OfModel>().model()?, fields.name()?).unwrap_or_default();
    let is_called = |name: &str| {
        let models = app.models.list();
        models.iter().any(|(source, _, model)| is_called(name, source, model.as_deref()))
    };
    match is_called(name) || name.strip_suffix(":latest").is_some_and(is_called) {
        true => Ok(json(&Pulled { status: "success" })),
        false => Err(ApiError::not_here(
            "models are chosen when the server is started: `sterna pull REPOSITORY` downloads one, and \
             `sterna serve --models NAME=hf.co/REPOSITORY` serves it",
        )),
    }
}

/// The name of a model, which older clients send as `name`.
fn of_either<'v>(model: Option<&'v str>, name: Option<&'v str>) -> Option<&'v str> {
    model.filter(|model| !model.is_empty()).or(name)
}

request! {
    /// A model to download.
    struct OllamaPullRequest {
        ..OfModel,
        /// The older name of `model`.
        name: Text,
    }
}

/// The end of a download.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Pulled {
    #[schemars(extend("const" = "success"))]
    status: &'static str,
}

/// The version of ollama's API.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Version {
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaModels")]
struct Models {
    models: Vec<Entry>,
}

/// A model.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Entry {
    name: String,
    model: String,
    modified_at: String,
    /// Size of its weights, or of its file, in bytes.
    size: u64,
    /// SHA-256 of the path, the size and the time of its file.
    digest: String,
    details: Details,
    /// Present for a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<Vec<&'static str>>,
    #[serde(flatten)]
    loaded: Option<LoadedEntry>,
}

/// Additional fields of loaded models.
#[derive(Serialize, JsonSchema)]
struct LoadedEntry {
    size_vram: u64,
    context_length: usize,
    expires_at: String,
}

/// All details of a model.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
struct Shown {
    modelfile: &'static str,
    parameters: &'static str,
    template: String,
    details: Details,
    /// Metadata of its file, by name.
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

fn entry(app: &App, source: &ModelSource, served: Option<&Served>) -> Entry {
    let name = served.map_or(&source.name, |served| &served.name);
    Entry {
        name: name.clone(),
        model: name.clone(),
        modified_at: time(served.map_or(app.started, |served| served.created)),
        size: served.map_or(source.file_bytes, |served| served.engine.plan().weights_bytes),
        digest: source.digest.clone(),
        details: Details::new(served),
        capabilities: served.map(Served::capabilities),
        loaded: None,
    }
}

async fn tags(app: Arc<App>, _: Request) -> Answer {
    app.check()?;
    let models = app.models.list();
    let entries = models.iter().map(|(source, _, instance)| {
        let served = instance.as_ref().map(|instance| &instance.served);
        entry(&app, source, served)
    });
    Ok(json(&Models { models: entries.collect() }))
}

async fn ps(app: Arc<App>, _: Request) -> Answer {
    app.check()?;
    let models = app.models.list();
    let entries = models.iter().filter_map(|(source, _, instance)| {
        let served = &instance.as_ref()?.served;
        let expires_at = time(now() + 86_400);
        let loaded = LoadedEntry { size_vram: 0, context_length: served.n_ctx(), expires_at };
        Some(Entry { loaded: Some(loaded), ..entry(&app, source, Some(served)) })
    });
    Ok(json(&Models { models: entries.collect() }))
}

async fn show(app: Arc<App>, request: Request) -> Answer {
    app.check()?;
    let sender = sender_of(&request);
    let body = object(&app, &sender, request).await?;
    let fields = Fields::<OllamaShowRequest>::of(&body);
    let name = of_either(fields.part::<OfModel>().model()?, fields.name()?);
    let model = engine_thread::model(&app, name).await?;
    let served = &model.served;
    let hyper = served.engine.hyper();
    let of = |name: &str| format!("{}.{name}", hyper.architecture);
    let mut info = Map::new();
    info.insert("general.architecture".into(), hyper.architecture.as_str().into());
    info.insert("general.parameter_count".into(), served.n_params().into());
    info.insert(of("context_length"), hyper.n_ctx_train.into());
    info.insert(of("embedding_length"), hyper.dim.into());
    info.insert(of("block_count"), hyper.n_layers.into());
    Ok(json(&Shown {
        modelfile: "",
        parameters: "",
        template: if served.chats() { served.template.source().to_owned() } else { String::new() },
        details: Details::new(Some(served)),
        model_info: info,
        capabilities: served.capabilities(),
        modified_at: time(served.created),
    }))
}

request! {
    /// A model to show.
    struct OllamaShowRequest {
        ..OfModel,
        /// The older name of `model`.
        name: Text,
    }
}

/// Seconds since 1970 as RFC 3339, in UTC.
pub(super) fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that start in March have the leap day at the end; eras of 400 years have equal lengths.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_clients_read_them() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(time(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(time(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
