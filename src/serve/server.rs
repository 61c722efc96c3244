//! A server from its start to its end: the listener, the threads, and how they stop.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use super::api;
use super::app::App;
use super::board::{Board, Phase, Standing};
use super::http::connection::Connections;
use super::job::Command;
use super::model::{Loaded, Served};
use super::options::ServeOptions;
use super::worker::Worker;
use crate::engine::{BatchOptions, Error};

/// Threads that speak HTTP. The cores are for the model.
const HTTP_THREADS: usize = 2;
/// Threads for templates and long texts.
const TEXT_THREADS: usize = 2;
/// How long answers that were ended may take to reach their clients.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a server has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It could not be set up.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its model could not be loaded.
    #[error(transparent)]
    Load(Box<dyn std::error::Error + Send + Sync>),
    /// Its engine came upon a bug.
    #[error("the engine thread panicked: {0}")]
    Panicked(String),
}

impl From<Error> for ServeError {
    fn from(err: Error) -> Self {
        Self::Load(err.into())
    }
}

/// A server that runs. It listens before its model is loaded, and says so meanwhile.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    runtime: Runtime,
    engine: JoinHandle<Result<(), ServeError>>,
    places: Arc<Semaphore>,
    ending: watch::Sender<bool>,
}

/// Tells a server to end, from any thread.
#[derive(Clone)]
pub struct Stopper {
    board: Arc<Board>,
}

impl Stopper {
    /// No new requests; those that are there may end within
    /// [`drain_time`](ServeOptions::drain_time).
    pub fn stop(&self) {
        self.board.advance(Phase::Ending);
    }
}

impl Server {
    /// Serves what `load` loads, under `fallback_name` if the file has no name for it.
    ///
    /// # Errors
    /// What the system says to threads and sockets. What `load` says comes from [`wait`](Self::wait).
    pub fn start(
        listener: TcpListener,
        options: ServeOptions,
        fallback_name: &str,
        load: impl FnOnce() -> Result<Loaded, Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (commands, orders) = channel();
        let places = Arc::new(Semaphore::new(options.max_connections));
        let (header_time, write_time) = (options.header_time, options.write_time);
        let app = Arc::new(App::new(options, address.ip().is_loopback(), commands));
        let runtime = Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .max_blocking_threads(TEXT_THREADS)
            .thread_name("http")
            .enable_io()
            .enable_time()
            .build()?;
        let (ending, is_ending) = watch::channel(false);
        let places_of = Arc::clone(&places);
        let connections = Connections { places: places_of, header_time, write_time, ending: is_ending };
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        drop(guard);
        runtime.spawn(connections.accept(listener, api::router(&app)));
        let (of_engine, name) = (Arc::clone(&app), fallback_name.to_owned());
        let engine = std::thread::Builder::new().name("engine".into()).spawn(move || {
            let run = || run(&of_engine, &name, load, orders);
            let ended = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                let said = panic.downcast_ref::<String>().map(String::as_str);
                let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
                Err(ServeError::Panicked(said.unwrap_or("without a word").to_owned()))
            });
            if ended.is_err() {
                of_engine.board.advance(Phase::Failed);
            }
            ended
        })?;
        Ok(Self { address, app, runtime, engine, places, ending })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper { board: Arc::clone(&self.app.board) }
    }

    /// Waits until the server has been told to end and has ended, or has failed.
    ///
    /// # Errors
    /// Why it failed: its model could not be loaded, or its engine panicked.
    pub fn wait(self) -> Result<(), ServeError> {
        let Self { app, runtime, engine, places, ending, .. } = self;
        let n_places = u32::try_from(app.options.max_connections).unwrap_or(u32::MAX);
        runtime.block_on(async {
            until(&app.board, |phase| phase >= Phase::Ending).await;
            ending.send_replace(true);
            let all_closed = || async { drop(places.acquire_many(n_places).await) };
            let drained = tokio::select! {
                () = all_closed() => true,
                () = tokio::time::sleep(app.options.drain_time) => false,
                () = until(&app.board, |phase| phase == Phase::Failed) => false,
            };
            if !drained {
                stop(&app.commands, Command::EndAll);
                let _ = tokio::time::timeout(LAST_WORDS, all_closed()).await;
            }
        });
        stop(&app.commands, Command::Stop);
        let was_loading = app.served.get().is_none();
        runtime.shutdown_timeout(LAST_WORDS);
        // Loading cannot be interrupted, and nobody waits for it any more.
        if was_loading && !engine.is_finished() && app.board.phase() != Phase::Failed {
            return Ok(());
        }
        drop(app);
        engine.join().unwrap_or_else(|_| Err(ServeError::Panicked("outside its loop".into())))
    }
}

/// Tells the engine thread something. One that is gone needs no telling.
fn stop(commands: &Sender<Command>, command: Command) {
    let _ = commands.send(command);
}

/// Waits until the server's phase is one of `wanted`.
async fn until(board: &Board, wanted: impl Fn(Phase) -> bool) {
    loop {
        let mut changed = std::pin::pin!(board.changed.notified());
        changed.as_mut().enable();
        if wanted(board.phase()) {
            return;
        }
        changed.await;
    }
}

/// What the engine thread does.
fn run(
    app: &App,
    name: &str,
    load: impl FnOnce() -> Result<Loaded, Box<dyn std::error::Error + Send + Sync>>,
    orders: Receiver<Command>,
) -> Result<(), ServeError> {
    let loaded = load().map_err(ServeError::Load)?;
    let served = Served::new(loaded, &app.options, name)?;
    let batch = served.engine.batch(BatchOptions::default())?;
    app.board.publish(Standing { stats: batch.stats(), slots: Vec::new() });
    tracing::info!(model = served.name, n_ctx = served.n_ctx(), slots = served.n_slots(), "ready");
    // It is set here alone.
    let _ = app.served.set(served);
    app.board.advance(Phase::Ready);
    Worker::new(batch, orders, Arc::clone(&app.board), Arc::clone(&app.metrics)).run();
    Ok(())
}
