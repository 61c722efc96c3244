//! The thread of a model: loads it, runs its jobs, and reports how it ended.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use super::app::App;
use super::error::{ApiError, ServeError};
use super::instance::Instance;
use super::model::{LoadError, Loaded, NamedScale, Served};
use super::models;
use super::status::{EngineStatus, Phase, Snapshot};
use super::watchdog;
use super::worker::Worker;
use sterna_engine::{Batch, BatchOptions};

/// The model called `name`, or the first one. Loads it if needed.
///
/// # Errors
/// The errors of [`App::check`]; 404 for an unknown model, 500 if it cannot be loaded.
pub async fn model(app: &Arc<App>, name: Option<&str>) -> Result<Arc<Instance>, ApiError> {
    app.check()?;
    let at = app.models.find(name)?;
    let no_thread = |err| ApiError::ours(format!("cannot start a thread for the model: {err}"));
    app.models.get(at, || spawn(app, at).map_err(no_thread)).await
}

/// Starts to load the first model, before the first request.
///
/// # Errors
/// The system cannot start a thread.
pub fn begin_first(app: &Arc<App>) -> io::Result<()> {
    app.models.first(|| spawn(app, 0))
}

fn spawn(app: &Arc<App>, at: usize) -> io::Result<JoinHandle<()>> {
    let app = Arc::clone(app);
    std::thread::Builder::new().name("engine".into()).spawn(move || {
        let ended = catch_unwind(AssertUnwindSafe(|| run(&app, at, &[], || ())));
        let failure = match ended {
            Ok(Ok(())) => return,
            Ok(Err(err)) if app.models.by_name => {
                let model = &app.models.source(at).name;
                tracing::error!(model, "the model could not be loaded: {err}");
                // Errors of files contain paths and bytes of this machine.
                let why = match models::is_about_memory(&*err) {
                    true => err.to_string(),
                    false => "the server's log says why".into(),
                };
                return app.models.failed(at, &format!("the model `{model}` could not be loaded: {why}"));
            }
            Ok(Err(err)) => ServeError::Load(err),
            Err(panic) => ServeError::Panicked(panic_message(&*panic)),
        };
        app.models.failed(at, "the engine has stopped");
        app.fail(failure);
    })
}

/// Loads the model once more, and replaces it. Requests that are being answered end on the model before,
/// which is then freed, and new ones begin on the new one; if there is no memory for both, new ones wait.
///
/// # Errors
/// The reason why it could not be loaded. The model before stays, or is loaded again for the next request.
pub async fn reload(app: &Arc<App>, at: usize) -> Result<(), String> {
    let list = app.models.list();
    let scales = list[at].2.as_ref().map_or_else(Vec::new, |model| model.served.scales());
    // It must not keep the model before in memory.
    drop(list);
    let (told, result) = tokio::sync::oneshot::channel();
    let of_thread = Arc::clone(app);
    let load = move || {
        let (app, mut told) = (of_thread, Some(told));
        let mut tell = |result: Result<(), String>| {
            // The request may have ended.
            if let Some(told) = told.take() {
                drop(told.send(result));
            }
        };
        let ready = || {
            app.models.end_reload(at, None);
            tell(Ok(()));
        };
        match catch_unwind(AssertUnwindSafe(|| run(&app, at, &scales, ready))) {
            Ok(Ok(())) => {}
            Ok(Err(err)) => {
                tracing::error!("the model could not be loaded with other adapters: {err}");
                app.models.end_reload(at, Some("the model could not be loaded"));
                tell(Err(err.to_string()));
            }
            Err(panic) => {
                app.models.failed(at, "the engine has stopped");
                app.fail(ServeError::Panicked(panic_message(&*panic)));
            }
        }
    };
    let started = app.models.reload(at, || std::thread::Builder::new().name("engine".into()).spawn(load));
    started.map_err(|err| format!("cannot start a thread for the model: {err}"))?;
    result.await.unwrap_or_else(|_| Err("the engine has stopped".to_owned()))
}

/// Message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// Loads a model and answers its requests. `scales` are those of its adapters in requests that choose none,
/// by their names; `ready` is called when requests can reach it.
fn run(app: &App, at: usize, scales: &[NamedScale], ready: impl FnOnce()) -> Result<(), LoadError> {
    let ((served, mut batch), permit) = app.models.load(at, &app.life, |loaded| served(app, at, loaded))?;
    served.set_scales(scales);
    let (sender, commands) = channel();
    let step_time = app.options.step_time.unwrap_or_else(|| watchdog::step_time(&served.engine));
    let status = Arc::new(EngineStatus::new(step_time, app.options.queue));
    if let Some(events) = app.page_events.get() {
        let sender = events.sender.clone();
        // The publisher may have ended before the engine.
        batch.listen(Box::new(move |event| drop(sender.send(event))));
    }
    status.publish(Snapshot { stats: batch.stats(), slots: Vec::new() });
    let (name, n_ctx, slots) = (served.name.clone(), served.n_ctx(), served.n_slots());
    let instance =
        Instance::new(served, Arc::clone(&status), batch.saved_size(), sender, Arc::clone(&permit));
    app.models.loaded(at, Arc::new(instance));
    app.life.advance(Phase::Ready);
    ready();
    // A client may send a request as soon as this line is logged.
    tracing::info!(model = name, n_ctx, slots, "ready");
    Worker::new(batch, commands, Arc::clone(&status), Arc::clone(&app.metrics)).run();
    app.models.budget.remember(&status.snapshot());
    drop(permit);
    Ok(())
}

/// A loaded model with its name, and the batch of its engine.
fn served(app: &App, at: usize, loaded: Loaded) -> Result<(Served, Batch), LoadError> {
    let name = match app.models.by_name {
        true => None,
        false => app.options.alias.clone().or_else(|| loaded.engine.hyper().name.clone()),
    };
    let name = name.filter(|name| !name.trim().is_empty());
    let name = name.unwrap_or_else(|| app.models.source(at).name.clone());
    let mut served = Served::new(loaded, name, app.options.template.as_deref())?;
    served.fetch_image.clone_from(&app.options.fetch_image);
    let options = BatchOptions { host_bytes: app.options.swap_bytes, ..BatchOptions::default() };
    let batch = served.engine.batch(options)?;
    Ok((served, batch))
}
