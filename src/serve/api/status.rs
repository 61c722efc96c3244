//! State of the server: health, properties, slots, metrics.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::IntoResponse;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use schemars::JsonSchema;
use serde::Serialize;

use super::native::Settings;
use super::openapi::{Endpoints, Operation};
use super::{Answer, model_of_query, query};
use crate::answer::BUILD;
use crate::app::App;
use crate::error::ApiError;
use crate::http::json::json;
use crate::model::TemplateSource;
use sterna_engine::GenerateOptions;

pub fn add(to: &mut Endpoints) {
    let health_is = Operation::new("Health of the server").without_key().fails(&[500, 503]);
    to.get(&["/health", "/v1/health"], health, &health_is.answer::<Health>());
    let props_are = Operation::new("Properties of the model and the server").of_model().fails(&[500, 503]);
    to.get(&["/props"], props, &props_are.answer::<Props>());
    let slots_are = Operation::new("The slots and their sequences").of_model().fails(&[500, 501, 503]);
    to.get(&["/slots"], slots, &slots_are.answer::<Vec<SlotState>>());
    to.get(&["/metrics"], metrics, &Operation::new("Metrics for Prometheus").text().fails(&[501]));
}

async fn health(app: Arc<App>, _: Request) -> Answer {
    app.check()?;
    Ok(json(&Health { status: "ok" }))
}

/// Health of the server.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Health {
    #[schemars(extend("const" = "ok"))]
    status: &'static str,
}

/// Properties of the model and the server.
#[derive(Serialize, JsonSchema)]
struct Props {
    default_generation_settings: DefaultSettings,
    total_slots: usize,
    /// The name of the model, never a path.
    model_path: String,
    model_alias: String,
    /// Empty for a model that was not trained for chat: clients then offer text completion.
    chat_template: String,
    chat_template_source: TemplateSource,
    chat_template_caps: TemplateCaps,
    modalities: Modalities,
    /// Capabilities in ollama's terms, and `rerank`.
    capabilities: Vec<&'static str>,
    /// Pooling of embeddings: none, mean, cls, last or rank.
    pooling: &'static str,
    bos_token: String,
    eos_token: String,
    build_info: &'static str,
    is_sleeping: bool,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct DefaultSettings {
    n_ctx: usize,
    params: Settings,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct TemplateCaps {
    supports_system_role: bool,
    supports_tools: bool,
    supports_tool_calls: bool,
    supports_parallel_tool_calls: bool,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Modalities {
    vision: bool,
    audio: bool,
}

/// A slot, and the sequence in it.
#[derive(Serialize, JsonSchema)]
struct SlotState {
    id: u32,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    id_task: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// Number of computed tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_past: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<[NextToken; 1]>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct NextToken {
    has_next_token: bool,
    n_decoded: usize,
    /// Tokens that it may still generate; -1 if unlimited.
    n_remain: i64,
}

async fn props(app: Arc<App>, request: Request) -> Answer {
    let model = model_of_query(&app, request.uri()).await?;
    let served = &model.served;
    let tokenizer = served.tokenizer();
    let spelled = |id: Option<u32>| {
        id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).unwrap_or_default()
    };
    let options = GenerateOptions {
        sampler: served.sampler.clone(),
        max_tokens: app.options.max_tokens,
        ..GenerateOptions::default()
    };
    Ok(json(&Props {
        default_generation_settings: DefaultSettings {
            n_ctx: served.n_ctx(),
            params: Settings::new(&options, served),
        },
        total_slots: served.n_slots(),
        model_path: served.name.clone(),
        model_alias: served.name.clone(),
        chat_template: if served.chats() { served.template.source().to_owned() } else { String::new() },
        chat_template_source: served.template_source,
        chat_template_caps: TemplateCaps {
            supports_system_role: served.abilities.system,
            supports_tools: served.abilities.tools,
            supports_tool_calls: served.abilities.calls,
            supports_parallel_tool_calls: served.abilities.parallel_calls,
        },
        modalities: Modalities { vision: served.engine.vision().is_some(), audio: false },
        capabilities: served.capabilities(),
        pooling: served.engine.pooling().name(),
        bos_token: spelled(tokenizer.bos()),
        eos_token: spelled(tokenizer.eos()),
        build_info: BUILD,
        is_sleeping: false,
    }))
}

async fn slots(app: Arc<App>, request: Request) -> Answer {
    if !app.options.slots {
        return Err(ApiError::not_here("this server was started with --no-slots"));
    }
    let model = model_of_query(&app, request.uri()).await?;
    let (served, snapshot) = (&model.served, model.status.snapshot());
    let slots = (0..served.n_slots() as u32).map(|id| {
        let slot = snapshot.slots.iter().find(|slot| slot.id == id);
        SlotState {
            id,
            n_ctx: served.n_ctx(),
            speculative: false,
            is_processing: slot.is_some(),
            id_task: slot.map(|slot| slot.job),
            n_prompt_tokens: slot.map(|slot| slot.n_prompt),
            n_past: slot.map(|slot| slot.n_past),
            next_token: slot.map(|slot| {
                let n_remain = slot.n_remaining.map_or(-1, |left| left as i64);
                [NextToken { has_next_token: true, n_decoded: slot.n_generated, n_remain }]
            }),
        }
    });
    let slots: Vec<SlotState> = slots.collect();
    let refuses = query(request.uri(), "fail_on_no_slot").as_deref() == Some("1");
    if refuses && snapshot.slots.len() >= served.n_slots() {
        return Err(ApiError::unavailable("no slot is free"));
    }
    Ok(json(&slots))
}

async fn metrics(app: Arc<App>, _: Request) -> Answer {
    if !app.options.metrics {
        return Err(ApiError::not_here("this server was started without --metrics"));
    }
    let (snapshot, waiting) = app.models.snapshot();
    let list = app.models.list();
    let single = list.first().filter(|_| !app.models.by_name).and_then(|(.., instance)| instance.as_ref());
    let text = app.metrics.text(&snapshot, waiting, single.map(|instance| instance.served.name.as_str()));
    let mut response = (StatusCode::OK, text).into_response();
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("text/plain; version=0.0.4"));
    headers.insert("process-start-time-unix", app.started.into());
    Ok(response)
}
