//! A server inside a process: requests and answers are passed without a listener. Bindings for other
//! languages use it, with the same requests as clients over HTTP. [`InProcess::listen`] adds a listener.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::Request;
use hyper::header::HeaderMap;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::api;
use super::app::App;
use super::engine_thread;
use super::error::ServeError;
use super::http::connection::Connections;
use super::http::places::Places;
use super::instance::ModelBudget;
use super::job::Command;
use super::model::ModelSource;
use super::models::Models;
use super::options::ServeOptions;
use super::server;
use super::slots::{Action, SlotError, SlotLimits, SlotOrder, SlotPath};
use super::status::Phase;
use super::watchdog;
use sterna_engine::Engine;

/// A model that is queried inside the process. Dropping it aborts running requests.
pub struct InProcess {
    app: Arc<App>,
    router: Router,
    /// `None` only during drop.
    runtime: Option<Runtime>,
}

impl InProcess {
    /// Loads the model, and returns once requests are accepted. Only those of `options` apply that concern
    /// the model and its answers: there are no keys, connections or client time limits.
    ///
    /// # Errors
    /// A thread cannot be started; errors of loading.
    pub fn start(options: ServeOptions, model: ModelSource) -> Result<Self, ServeError> {
        let options = ServeOptions {
            keys: Vec::new(),
            queue: usize::MAX,
            max_body_bytes: usize::MAX,
            write_time: Duration::MAX,
            ping: Duration::MAX,
            ..options
        };
        let models = Models::new(vec![model], false, ModelBudget::new(1, u64::MAX));
        let app = Arc::new(App::new(options, true, models));
        let this = Self { router: api::router(&app), runtime: Some(server::runtime()?), app };
        watchdog::start(&this.app)?;
        engine_thread::begin_first(&this.app)?;
        this.runtime().block_on(this.app.life.until(|phase| phase != Phase::Loading));
        match this.app.failure() {
            Some(failure) => Err(failure),
            None => Ok(this),
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the end")
    }

    /// Sends a request, and returns its answer. Its pieces are kept until they are read, so that a text whose
    /// reader is slow is generated as fast as others: a few hundred bytes per token.
    ///
    /// A method, path or header that HTTP does not allow is answered with status 400.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Body::from(body));
        let (sender, pieces) = mpsc::unbounded_channel();
        let router = TowerToHyperService::new(self.router.clone());
        let task = self.runtime().spawn(async move {
            // The reader may be gone at any time, which also ends this task.
            let send = |piece| drop(sender.send(piece));
            let request = match request {
                Ok(request) => request,
                Err(err) => {
                    send(Piece::Head { status: 400, headers: HeaderMap::new() });
                    return send(Piece::Body(err.to_string().into()));
                }
            };
            let response = router.call(request).await.unwrap_or_else(|never: Infallible| match never {});
            let (head, mut body) = response.into_parts();
            send(Piece::Head { status: head.status.as_u16(), headers: head.headers });
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                // Bodies of this server do not fail, and have no trailers.
                if let Some(data) = frame.ok().and_then(|frame| frame.into_data().ok()) {
                    send(Piece::Body(data));
                }
            }
        });
        Answer { pieces, task: task.abort_handle() }
    }

    /// The model.
    pub fn engine(&self) -> Option<Engine> {
        self.app.models.alive().first().map(|instance| instance.served.engine.clone())
    }

    /// Saves the KV cache of a prompt that has been computed to a file, and returns its number of tokens:
    /// whole pages of 64.
    ///
    /// # Errors
    /// Fewer than 64 tokens are in the prefix cache; the file cannot be written; the engine has stopped.
    pub fn save_prompt(&self, tokens: Vec<u32>, file: &Path) -> Result<usize, String> {
        self.act(|path| Action::SavePrompt(path, tokens), file)
    }

    /// Restores the KV cache of a saved prompt to the prefix cache, and returns its number of tokens.
    ///
    /// # Errors
    /// The file cannot be read, or is of another model; too little memory; the engine has stopped.
    pub fn restore_prompt(&self, file: &Path) -> Result<usize, String> {
        self.act(Action::Restore, file)
    }

    fn act(&self, action: impl FnOnce(SlotPath) -> Action, file: &Path) -> Result<usize, String> {
        let fails = |err: &dyn std::fmt::Display| format!("{}: {err}", file.display());
        let name = file.file_name().and_then(|name| name.to_str()).ok_or_else(|| fails(&"want a file"))?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let path = SlotPath {
            folder: folder.unwrap_or(Path::new(".")).to_owned(),
            client: Arc::from(""),
            name: name.to_owned(),
            limits: SlotLimits { files: usize::MAX, bytes: u64::MAX },
        };
        let (reply, done) = oneshot::channel();
        let order = SlotOrder { slot: 0, action: action(path), client: Arc::from(""), reply };
        let stopped = || fails(&"the engine has stopped");
        let model = self.app.models.alive().into_iter().next().ok_or_else(stopped)?;
        model.tell(Command::Slot(order)).map_err(|_| stopped())?;
        match done.blocking_recv().map_err(|_| stopped())? {
            Ok(done) => Ok(done.tokens),
            Err(SlotError::Empty(_)) => Err(fails(&"the prompt has fewer than 64 tokens, which are a page")),
            Err(err) => Err(fails(&err)),
        }
    }

    /// Serves the model over HTTP, too, until the result is dropped or the model is. There are no keys.
    ///
    /// # Errors
    /// An address that cannot be listened on; one that other machines can reach.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listening> {
        if !address.ip().is_loopback() {
            let why = format!("{}: only loopback addresses, because there are no keys", address.ip());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let _guard = self.runtime().enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let ServeOptions { max_connections, header_time, write_time, .. } = ServeOptions::default();
        let (ending, is_ending) = watch::channel(false);
        let places = Places::new(max_connections);
        let connections = Connections { places, header_time, write_time, tls: None, ending: is_ending };
        self.runtime().spawn(connections.accept(listener, self.router.clone()));
        Ok(Listening { address, ending })
    }
}

/// A listener of a model in this process. Dropping it closes the listener, and each connection after its
/// current answer.
pub struct Listening {
    address: SocketAddr,
    ending: watch::Sender<bool>,
}

impl Listening {
    /// Address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ending.send_replace(true);
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.app.life.advance(Phase::Ending);
        server::tell_all(&self.app.models, || Command::EndAll);
        server::tell_all(&self.app.models, || Command::Stop);
        if let Some(runtime) = self.runtime.take() {
            // The callers have received the error already.
            let _ = server::end(&self.app, runtime);
            sterna_host::memory::give_back();
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum Piece {
    /// The first piece.
    Head {
        /// HTTP status.
        status: u16,
        /// HTTP headers.
        headers: HeaderMap,
    },
    /// Some bytes of the body: of a stream, whole events.
    Body(Bytes),
}

/// An answer that is read in pieces. Dropping it cancels the request.
pub struct Answer {
    pieces: mpsc::UnboundedReceiver<Piece>,
    task: AbortHandle,
}

impl Answer {
    /// Polls for the next piece; `None` after the last. The waker may be called from any thread.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.pieces.poll_recv(context)
    }

    /// Waits for the next piece for up to `time`; `Poll::Pending` if none has arrived by then. Needs no
    /// runtime.
    pub fn next_within(&mut self, time: Duration) -> Poll<Option<Piece>> {
        let (begun, waker) = (Instant::now(), Waker::from(Arc::new(Unpark(std::thread::current()))));
        loop {
            let polled = self.poll(&mut Context::from_waker(&waker));
            let left = time.saturating_sub(begun.elapsed());
            if polled.is_ready() || left.is_zero() {
                return polled;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Handle to cancel the request from any thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.task.clone())
    }

    /// Cancels the request. Pieces that have arrived can still be read.
    pub fn cancel(&self) {
        self.task.abort();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Cancels a request.
#[derive(Clone, Debug)]
pub struct Canceller(AbortHandle);

impl Canceller {
    /// Cancels the request. Pieces that have arrived can still be read.
    pub fn cancel(&self) {
        self.0.abort();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
