//! A server from start to end: the listener, the threads, and the shutdown.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::api;
use super::app::App;
use super::companion::{Companion, Endpoint, Started};
use super::engine_thread;
use super::error::ServeError;
use super::http::connection::Connections;
use super::http::places::Places;
use super::http::tls::Acceptor;
use super::instance::ModelBudget;
use super::job::Command;
use super::lanes;
use super::model::ModelSource;
use super::models::Models;
use super::options::ServeOptions;
use super::status::{Life, Phase};
use super::watchdog;

/// Threads that serve HTTP. The other cores are left to the model.
const HTTP_THREADS: usize = 2;
/// Maximum time for the ends of aborted answers to reach their clients.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A running server. It listens before a model is loaded, and answers 503 meanwhile.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    runtime: Runtime,
    places: Arc<Places>,
    ending: watch::Sender<bool>,
    companions: Vec<Started>,
}

/// Handle to stop a server from any thread.
#[derive(Clone)]
pub struct Stopper {
    life: Arc<Life>,
}

impl Stopper {
    /// Refuses new requests; running ones may finish within [`drain_time`](ServeOptions::drain_time).
    pub fn stop(&self) {
        self.life.advance(Phase::Ending);
    }
}

impl Server {
    /// Serves one model over HTTP and `companions`, under the name in its file or else that of `model`.
    /// Requests may use any model name.
    ///
    /// # Errors
    /// A thread or a socket cannot be created; a key that no client could send. Errors of loading are
    /// returned by [`wait`](Self::wait).
    pub fn start(
        listener: TcpListener,
        options: ServeOptions,
        companions: Vec<Box<dyn Companion>>,
        model: ModelSource,
    ) -> io::Result<Self> {
        Self::with(listener, options, companions, vec![model], false)
    }

    /// Serves several models, which requests choose by name. Each is loaded for its first request, and
    /// unloaded to make room for others, as limited by [`ServeOptions::models_max`] and
    /// [`ServeOptions::models_bytes`]. Requests without a name use the first.
    ///
    /// # Errors
    /// A thread or a socket cannot be created; a key that no client could send.
    ///
    /// # Panics
    /// If there are no models.
    pub fn start_many(
        listener: TcpListener,
        options: ServeOptions,
        companions: Vec<Box<dyn Companion>>,
        models: Vec<ModelSource>,
    ) -> io::Result<Self> {
        assert!(!models.is_empty(), "a server needs at least one model");
        Self::with(listener, options, companions, models, true)
    }

    fn with(
        listener: TcpListener,
        options: ServeOptions,
        companions: Vec<Box<dyn Companion>>,
        sources: Vec<ModelSource>,
        by_name: bool,
    ) -> io::Result<Self> {
        if let Some(fault) = options.keys.iter().find_map(|key| ServeOptions::key_fault(key)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("an API key {fault}")));
        }
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let tls = options.tls.as_ref().map(|files| Acceptor::new(files, &[b"http/1.1"])).transpose()?;
        let places = Places::new(options.max_connections);
        let (header_time, write_time) = (options.header_time, options.write_time);
        let budget = match by_name {
            true => ModelBudget::new(options.models_max, options.models_bytes),
            // A model that is loaded once more is next to the one before for a while.
            false if options.lora_folder.is_some() => ModelBudget::new(usize::MAX, u64::MAX),
            false => ModelBudget::new(1, u64::MAX),
        };
        let models = Models::new(sources, by_name, budget);
        let app = Arc::new(App::new(options, address.ip().is_loopback(), models));
        let runtime = runtime()?;
        let (ending, is_ending) = watch::channel(false);
        let places_of = Arc::clone(&places);
        let connections = Connections { places: places_of, header_time, write_time, tls, ending: is_ending };
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let companions = companions.into_iter().map(|companion| companion.start(&app, ending.subscribe()));
        let companions = companions.collect::<io::Result<_>>()?;
        drop(guard);
        watchdog::start(&app)?;
        runtime.spawn(connections.accept(listener, api::router(&app)));
        match by_name {
            true => app.life.advance(Phase::Ready),
            false => engine_thread::begin_first(&app)?,
        }
        Ok(Self { address, app, runtime, places, ending, companions })
    }

    /// Addresses of the services besides HTTP.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.companions.iter().flat_map(|companion| &companion.endpoints)
    }

    /// Address of the HTTP listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Handle to stop the server.
    pub fn stopper(&self) -> Stopper {
        Stopper { life: Arc::clone(&self.app.life) }
    }

    /// Waits until the server has been stopped or has failed.
    ///
    /// # Errors
    /// The failure: the only model could not be loaded, or an engine panicked or hangs.
    pub fn wait(self) -> Result<(), ServeError> {
        let Self { app, runtime, places, ending, companions, .. } = self;
        let mut tasks: Vec<_> = companions.into_iter().filter_map(|companion| companion.task).collect();
        runtime.block_on(async {
            app.life.until(|phase| phase >= Phase::Ending).await;
            ending.send_replace(true);
            let mut all_closed = async || {
                places.all_left().await;
                // A task that panicked is finished as well.
                for task in tasks.iter_mut().filter(|task| !task.is_finished()) {
                    let _ = task.await;
                }
            };
            let drained = tokio::select! {
                () = all_closed() => true,
                () = tokio::time::sleep(app.options.drain_time) => false,
                () = app.life.until(|phase| phase == Phase::Failed) => false,
            };
            if !drained {
                tell_all(&app.models, || Command::EndAll);
                let _ = tokio::time::timeout(LAST_WORDS, all_closed()).await;
            }
        });
        tell_all(&app.models, || Command::Stop);
        if let Some(events) = app.page_events.get() {
            // An engine that has ended frees its pages, and publishes that.
            runtime.block_on(async { drop(tokio::time::timeout(LAST_WORDS, events.ended.notified()).await) });
        }
        end(&app, runtime)
    }
}

/// Runtime of the threads that take and answer requests.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .max_blocking_threads(lanes::THREADS)
        .thread_name("http")
        .enable_io()
        .enable_time()
        .build()
}

/// Waits until the threads of a server have ended. They must have been told to end before.
///
/// # Errors
/// The failure of the server.
pub fn end(app: &App, runtime: Runtime) -> Result<(), ServeError> {
    runtime.shutdown_timeout(LAST_WORDS);
    match app.failure() {
        // Does not wait for a thread that hangs.
        Some(failure @ ServeError::Hung(_)) => Err(failure),
        failure => {
            app.models.end();
            failure.map_or(Ok(()), Err)
        }
    }
}

/// Sends a command to all engine threads. Some of them may be gone.
pub fn tell_all(models: &Models, command: impl Fn() -> Command) {
    models.alive().iter().for_each(|instance| drop(instance.tell(command())));
}
