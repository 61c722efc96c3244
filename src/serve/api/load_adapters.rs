//! vLLM's endpoints that load and unload LoRA adapters by name.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::IntoResponse;

use super::models::is_called;
use super::openapi::{Endpoints, Operation};
use super::{Answer, sender_of};
use crate::adapter_folder::AdapterFolder;
use crate::app::App;
use crate::engine_thread;
use crate::error::ApiError;
use crate::fields::{Fields, missing, request};
use crate::http::body::object;
use crate::kinds::{Bool, Text};
use sterna_engine::{Adapter, EngineOptions};

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Loads a LoRA adapter, which requests may then name as their model");
    let operation = operation.body::<AdapterToLoad>().text().fails(&[404, 501]);
    to.post(&["/v1/load_lora_adapter"], load, &operation);
    let operation = Operation::new("Unloads a LoRA adapter after its requests have ended");
    let operation = operation.body::<AdapterToUnload>().text().fails(&[404, 501]);
    to.post(&["/v1/unload_lora_adapter"], unload, &operation);
}

request! {
    /// A LoRA adapter to load.
    struct AdapterToLoad {
        lora_name: Text or missing("a name for the adapter"),
        /// Within the folder of the server.
        lora_path: Text or missing("the path of an adapter in the server's folder of adapters"),
        /// Replaces the adapter of this name, if there is one.
        load_inplace: Bool,
    }
}

request! {
    /// A LoRA adapter to unload.
    struct AdapterToUnload {
        lora_name: Text or missing("the name of a loaded adapter"),
    }
}

async fn load(app: Arc<App>, request: Request) -> Answer {
    let folder = folder(&app)?;
    let sender = sender_of(&request);
    let body = object(&app, &sender, request).await?;
    let fields = Fields::<AdapterToLoad>::of(&body);
    let (name, path) = (fields.lora_name()?.to_owned(), fields.lora_path()?.to_owned());
    let replaces = fields.load_inplace()?.unwrap_or(false);
    if name.trim().is_empty() {
        return Err(ApiError::field("lora_name", "a name", &name.into()));
    }
    change(app, folder, move |app: Arc<App>, folder: AdapterFolder| async move {
        let mut named = folder.named();
        let known = named.iter().position(|adapter| adapter.is_called(&name));
        if known.is_some() && !replaces {
            let message = format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the adapter in \
                 place, set 'load_inplace' to True."
            );
            return Err(ApiError::in_field("lora_name", message));
        }
        let adapter = opened(&app, &folder, &name, path).await?;
        match known {
            Some(at) => named[at] = adapter,
            None => named.push(adapter),
        }
        Ok((named, format!("Success: LoRA adapter '{name}' added successfully.")))
    })
    .await
}

async fn unload(app: Arc<App>, request: Request) -> Answer {
    let folder = folder(&app)?;
    let sender = sender_of(&request);
    let body = object(&app, &sender, request).await?;
    let name = Fields::<AdapterToUnload>::of(&body).lora_name()?.to_owned();
    change(app, folder, move |_, folder: AdapterFolder| async move {
        let mut named = folder.named();
        let known = named.iter().position(|adapter| adapter.is_called(&name));
        let Some(at) = known else {
            let shown: String = name.escape_debug().take(80).collect();
            return Err(ApiError::not_found(format!("The lora adapter '{shown}' cannot be found.")));
        };
        named.remove(at);
        Ok((named, format!("Success: LoRA adapter '{name}' removed successfully.")))
    })
    .await
}

/// The folder of adapters.
fn folder(app: &App) -> Result<AdapterFolder, ApiError> {
    app.check()?;
    let folder = app.options.lora_folder.clone();
    let option = app.options.shown_option;
    folder.ok_or_else(|| {
        ApiError::not_here(format!("this server was started without {}", option("ServeOptions::lora_folder")))
    })
}

/// Opens an adapter of the folder, and checks that it is one of the model.
async fn opened(
    app: &Arc<App>,
    folder: &AdapterFolder,
    name: &str,
    path: String,
) -> Result<Adapter, ApiError> {
    let model = engine_thread::model(app, None).await?;
    if is_called(name, app.models.source(0), Some(&model)) {
        return Err(ApiError::in_field("lora_name", "`lora_name` is a name of the model"));
    }
    let (folder, name) = (folder.clone(), name.to_owned());
    app.lanes
        .run(move || {
            let wrong = |why: String| ApiError::in_field("lora_path", format!("`lora_path`: {why}"));
            let nothing =
                || ApiError::not_found(format!("no adapter at {} in the folder", path.escape_debug()));
            let adapter = folder.open(&path).ok_or_else(nothing)?.map_err(wrong)?;
            let adapter = adapter.with_scale(0.0).with_alias(name);
            let options = EngineOptions { adapters: vec![adapter.clone()], ..EngineOptions::default() };
            let gguf = model.served.engine.gguf();
            sterna_engine::program(gguf, &options).map_err(|err| wrong(err.to_string()))?;
            Ok(adapter)
        })
        .await
}

/// Changes the list of adapters as `make` says, which also returns the text of the answer, and loads the
/// model with it. Runs to its end if the client disconnects.
async fn change<F>(
    app: Arc<App>,
    folder: AdapterFolder,
    make: impl FnOnce(Arc<App>, AdapterFolder) -> F + Send + 'static,
) -> Answer
where
    F: Future<Output = Result<(Vec<Adapter>, String), ApiError>> + Send + 'static,
{
    let task = tokio::spawn(async move {
        let _turn = folder.turn().await;
        let before = folder.named();
        let (named, done) = make(Arc::clone(&app), folder.clone()).await?;
        folder.set_named(named);
        if let Err(why) = engine_thread::reload(&app, 0).await {
            folder.set_named(before);
            return Err(ApiError::bad(format!("the model could not be loaded with these adapters: {why}")));
        }
        Ok(done)
    });
    let done = task.await.unwrap_or_else(|_| Err(ApiError::ours("the adapters could not be changed")))?;
    Ok(done.into_response())
}
