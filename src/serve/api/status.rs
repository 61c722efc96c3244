//! How the server is: health, properties, slots, counters.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use hyper::header::HeaderValue;
use hyper::{StatusCode, Uri};
use serde_json::{Map, Value, json};

use super::native::settings;
use super::openapi::{Endpoints, Operation};
use super::{Answer, BUILD, model_of_query, query};
use crate::app::App;
use crate::error::ApiError;
use crate::http::json::json;
use crate::model::TemplateSource;
use sterna_engine::GenerateOptions;

pub fn add(to: &mut Endpoints) {
    let health_is = Operation::new("Whether the server answers").without_key().fails(&[500, 503]);
    to.get(&["/health", "/v1/health"], health, &health_is.answer::<Map<String, Value>>());
    let props_are = Operation::new("What the model and the server are").of_model().fails(&[500, 503]);
    to.get(&["/props"], props, &props_are.answer::<Map<String, Value>>());
    let slots_are = Operation::new("What runs").of_model().fails(&[500, 501, 503]);
    to.get(&["/slots"], slots, &slots_are.answer::<Vec<Map<String, Value>>>());
    to.get(&["/metrics"], metrics, &Operation::new("Counters for Prometheus").text().fails(&[501]));
}

async fn health(State(app): State<Arc<App>>) -> Answer {
    app.check()?;
    Ok(json(&json!({ "status": "ok" })))
}

async fn props(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let model = model_of_query(&app, &uri).await?;
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
    let source = match served.template_source {
        TemplateSource::Chosen => "chosen",
        TemplateSource::File => "file",
        TemplateSource::Fallback => "fallback",
    };
    Ok(json(&json!({
        "default_generation_settings": {
            "n_ctx": served.n_ctx(),
            "params": settings(&options, served),
        },
        "total_slots": served.n_slots(),
        // Never a path of this machine.
        "model_path": served.name,
        "model_alias": served.name,
        // A model that was not made for turns continues texts: clients offer that first.
        "chat_template": if served.chats() { served.template.source() } else { "" },
        "chat_template_source": source,
        "chat_template_caps": {
            "supports_system_role": served.abilities.system,
            "supports_tools": served.abilities.tools,
            "supports_tool_calls": served.abilities.calls,
            "supports_parallel_tool_calls": served.abilities.parallel_calls,
        },
        "modalities": { "vision": false, "audio": false },
        "bos_token": spelled(tokenizer.bos()),
        "eos_token": spelled(tokenizer.eos()),
        "build_info": BUILD,
        "is_sleeping": false,
    })))
}

async fn slots(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    if !app.options.slots {
        return Err(ApiError::not_here("this server does not show its slots"));
    }
    let model = model_of_query(&app, &uri).await?;
    let (served, snapshot) = (&model.served, model.status.snapshot());
    let slots = (0..served.n_slots() as u32).map(|id| {
        let slot = snapshot.slots.iter().find(|slot| slot.id == id);
        let mut entry = json!({
            "id": id,
            "n_ctx": served.n_ctx(),
            "speculative": false,
            "is_processing": slot.is_some(),
        });
        if let Some(slot) = slot {
            entry["id_task"] = slot.job.into();
            entry["n_prompt_tokens"] = slot.n_prompt.into();
            entry["n_past"] = slot.n_past.into();
            entry["next_token"] = json!([{
                "has_next_token": true,
                "n_decoded": slot.n_generated,
                "n_remain": slot.n_remaining.map_or(-1, |left| left as i64),
            }]);
        }
        entry
    });
    let slots: Vec<Value> = slots.collect();
    if query(&uri, "fail_on_no_slot").as_deref() == Some("1") && snapshot.slots.len() >= served.n_slots() {
        return Err(ApiError::unavailable("no slot is free"));
    }
    Ok(json(&slots))
}

async fn metrics(State(app): State<Arc<App>>) -> Answer {
    if !app.options.metrics {
        return Err(ApiError::not_here("this server was started without metrics"));
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
