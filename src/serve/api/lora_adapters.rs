//! llama-server's LoRA adapters: their list, and the scales of requests that choose none.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::openapi::{Endpoints, Operation};
use super::{Answer, model_of_query, sender_of};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{missing, request};
use crate::http::body;
use crate::http::json::json;
use crate::kinds::{Entries, Float, Int, MAX_INT};
use crate::model::Served;
use sterna_engine::AdapterScale;

pub fn add(to: &mut Endpoints) {
    let path = ["/lora-adapters"];
    let operation = Operation::new("The LoRA adapters").of_model().fails(&[500, 503]);
    to.get(&path, adapters, &operation.answer::<Vec<AdapterEntry>>());
    let operation =
        Operation::new("Sets the scales of adapters for requests that choose none; 0 for the others");
    to.post(&path, set, &operation.of_model().list::<AdapterChoice>().answer::<Done>());
}

request! {
    /// A LoRA adapter with its scale.
    pub struct AdapterChoice {
        id: Int(0, MAX_INT) or missing("the id of an adapter, as in /lora-adapters"),
        scale: Float(-1e6, 1e6) or missing("the scale of the adapter"),
    }
}

/// A LoRA adapter of the server.
#[derive(Serialize, JsonSchema)]
struct AdapterEntry {
    id: usize,
    path: String,
    /// Its scale in requests that choose no adapters.
    scale: f32,
    task_name: String,
    prompt_prefix: String,
}

/// Success of an action.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Done {
    #[schemars(extend("const" = true))]
    success: bool,
}

async fn adapters(app: Arc<App>, request: Request) -> Answer {
    let model = model_of_query(&app, request.uri()).await?;
    let current = model.served.adapters();
    let entry = |(id, adapter): (usize, &sterna_engine::Adapter)| {
        let text = |key: &str| {
            let found = adapter.gguf().metadata().str(&format!("adapter.lora.{key}")).ok().flatten();
            found.unwrap_or_default().to_owned()
        };
        let of = current.iter().find(|of| of.adapter as usize == id);
        AdapterEntry {
            id,
            path: adapter.name.clone(),
            scale: of.map_or(0.0, |of| of.scale),
            task_name: text("task_name"),
            prompt_prefix: text("prompt_prefix"),
        }
    };
    let all = model.served.engine.adapters().iter().enumerate();
    Ok(json(&all.map(entry).collect::<Vec<_>>()))
}

async fn set(app: Arc<App>, request: Request) -> Answer {
    let model = model_of_query(&app, request.uri()).await?;
    let sender = sender_of(&request);
    let list = body::list(&app, &sender, request).await?;
    let chosen = chosen(&Entries::of(String::new(), &list), &model.served)?;
    model.served.set_adapters(chosen);
    Ok(json(&Done { success: true }))
}

/// The adapters of a list in a request.
///
/// # Errors
/// 400 for an id that does not exist or is repeated.
pub fn chosen(list: &Entries<'_, AdapterChoice>, served: &Served) -> Result<Arc<[AdapterScale]>, ApiError> {
    let n = served.engine.adapters().len() as i64;
    let (mut all, mut known) = (Vec::new(), BTreeSet::new());
    for entry in list.iter() {
        let entry = entry?;
        let (id, scale) = (entry.id()?, entry.scale()?);
        let wrong = |want: &str| Err(ApiError::field(entry.path("id"), want, &json!(id)));
        if n == 0 {
            return wrong("no adapter: this server was started without any");
        }
        if id >= n {
            return wrong(&format!("the id of an adapter, 0 to {}", n - 1));
        }
        if !known.insert(id) {
            return wrong("each adapter once");
        }
        all.push(AdapterScale { adapter: id as u32, scale });
    }
    served.engine.chosen_adapters(&all).map_err(|err| ApiError::bad(err.to_string()))
}
