//! llama-server's actions on slots: save, restore, erase.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::openapi::{Endpoints, Operation};
use super::{Answer, client_of, model_of_query, path_parameter, query, sender_of};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, request};
use crate::http::body::object;
use crate::http::guard::Client;
use crate::http::json::json;
use crate::job::Command;
use crate::kinds::Text;
use crate::slots::{Action, Done, SlotError, SlotOrder, SlotPath, is_plain_name};
use sterna_engine::{Error, StateError};

pub fn add(to: &mut Endpoints) {
    let actions = json!({ "enum": ["save", "restore", "erase"] });
    let operation = Operation::new("Saves a slot to a file, restores it, or erases it")
        .parameter(json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }))
        .parameter(json!({ "name": "action", "in": "query", "required": true, "schema": actions }))
        .of_model()
        .body::<SlotFile>()
        .optional_body()
        .answer::<SlotAnswer>()
        .fails(&[501]);
    to.post(&["/slots/{id}"], act, &operation);
}

/// Allowed names of a file.
const WANT: &str = "1 to 64 letters, digits, `.`, `_` and `-`, not starting with `.`";

request! {
    /// The file that a slot is saved to or restored from.
    struct SlotFile {
        filename: Text as { "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$" },
    }
}

async fn act(app: Arc<App>, mut request: Request) -> Answer {
    let (uri, Client(client)) = (request.uri().clone(), client_of(&request));
    let sender = sender_of(&request);
    let id = path_parameter(&mut request).await?;
    let model = model_of_query(&app, &uri).await?;
    let n_slots = model.served.n_slots();
    let slot = id.parse().ok().filter(|slot| (*slot as usize) < n_slots);
    let slot: u32 = slot.ok_or_else(|| {
        ApiError::bad(format!("want a slot from 0 to {}, got `{}`", n_slots - 1, id.escape_debug()))
    })?;
    let name = query(&uri, "action").unwrap_or_default();
    let (action, file) = match name.as_str() {
        "erase" => (Action::Erase, None),
        "save" | "restore" => {
            let Some(folder) = &app.options.slot_folder else {
                return Err(ApiError::not_here("this server was started without --slot-save-path"));
            };
            let body = object(&app, &sender, request).await?;
            let file = Fields::<SlotFile>::of(&body).filename()?;
            let file = file.ok_or_else(|| ApiError::missing("filename", WANT))?;
            if !is_plain_name(file) {
                return Err(ApiError::field("filename", WANT, &file.into()));
            }
            // Each key has its own folder. Without keys all clients share one.
            let path = SlotPath {
                folder: folder.clone(),
                client: Arc::clone(&client),
                name: file.to_owned(),
                limits: app.options.slot_limits,
            };
            (if name == "save" { Action::Save(path) } else { Action::Restore(path) }, Some(file.to_owned()))
        }
        _ => {
            let message = format!("want action=save, restore or erase, got `{}`", name.escape_debug());
            return Err(ApiError::in_field("action", message));
        }
    };
    let (reply, done) = tokio::sync::oneshot::channel();
    model.tell(Command::Slot(SlotOrder { slot, action, client, reply }))?;
    let done = done.await.map_err(|_| ApiError::ours("the engine has stopped; the server is ending"))?;
    let done = done.map_err(|err| api_error(&err))?;
    Ok(json(&answer(slot, &name, file, done)))
}

/// Result of an action: saved, restored or erased.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum SlotAnswer {
    Saved { id_slot: u32, filename: Option<String>, n_saved: usize, n_written: u64, timings: SaveTime },
    Restored { id_slot: u32, filename: Option<String>, n_restored: usize, n_read: u64, timings: RestoreTime },
    Erased { id_slot: u32, n_erased: usize },
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct SaveTime {
    save_ms: f64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct RestoreTime {
    restore_ms: f64,
}

fn answer(id_slot: u32, action: &str, filename: Option<String>, done: Done) -> SlotAnswer {
    let Done { tokens, bytes, time } = done;
    let ms = time.as_secs_f64() * 1e3;
    match action {
        "save" => {
            let timings = SaveTime { save_ms: ms };
            SlotAnswer::Saved { id_slot, filename, n_saved: tokens, n_written: bytes, timings }
        }
        "restore" => {
            let timings = RestoreTime { restore_ms: ms };
            SlotAnswer::Restored { id_slot, filename, n_restored: tokens, n_read: bytes, timings }
        }
        _ => SlotAnswer::Erased { id_slot, n_erased: tokens },
    }
}

fn api_error(err: &SlotError) -> ApiError {
    match err {
        SlotError::Empty(_) | SlotError::Images(_) => ApiError::bad(err.to_string()),
        SlotError::NoFile => ApiError::not_found(err.to_string()),
        SlotError::Engine(Error::NoSession { .. } | Error::OutOfPages { .. }) => {
            ApiError::unavailable(err.to_string())
        }
        SlotError::Engine(Error::State(StateError::Io(_)) | Error::Backend(_)) | SlotError::Write(_) => {
            ApiError::ours(err.to_string())
        }
        SlotError::NotAFile
        | SlotError::TooMany { .. }
        | SlotError::TooLarge { .. }
        | SlotError::Engine(_) => ApiError::in_field("filename", err.to_string()),
    }
}
