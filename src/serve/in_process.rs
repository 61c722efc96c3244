//! A server without a listener: requests and answers stay inside the process. Bindings for other languages
//! use it, with the same requests as clients over HTTP.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::service::Service;
use hyper::{Method, Request};
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::api;
use super::app::App;
use super::engine_thread;
use super::error::ServeError;
use super::instance::ModelBudget;
use super::job::Command;
use super::model::ModelSource;
use super::models::Models;
use super::options::ServeOptions;
use super::server;
use super::status::Phase;
use super::watchdog;

/// Maximum pieces of an answer waiting for their reader.
const PIECES: usize = 4;

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

    /// Sends a request to an endpoint: with a JSON object as its body, or without a body for GET.
    pub fn request(&self, path: &str, body: Option<String>) -> Answer {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let request =
            Request::builder().method(method).uri(path).body(body.map_or(Body::empty(), Body::from));
        let (sender, pieces) = mpsc::channel(PIECES);
        let router = TowerToHyperService::new(self.router.clone());
        let task = self.runtime().spawn(async move {
            let refused = |status, body: String| Err(Refusal { status, body });
            let request = match request {
                Ok(request) => request,
                Err(err) => return drop(sender.send(refused(400, err.to_string())).await),
            };
            let response = router.call(request).await.unwrap_or_else(|never: Infallible| match never {});
            let (status, mut body) = (response.status(), response.into_body());
            let mut refusal = Vec::new();
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                // Bodies of this server do not fail, and have no trailers.
                let Some(data) = frame.ok().and_then(|frame| frame.into_data().ok()) else { continue };
                if !status.is_success() {
                    refusal.extend_from_slice(&data);
                } else if sender.send(Ok(data)).await.is_err() {
                    return;
                }
            }
            if !status.is_success() {
                let body = String::from_utf8_lossy(&refusal).into_owned();
                // The reader may be gone.
                let _ = sender.send(refused(status.as_u16(), body)).await;
            }
        });
        Answer { pieces, task: task.abort_handle() }
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
        }
    }
}

/// A request that was refused, or failed before it was answered.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{body}")]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The error in the endpoint's format.
    pub body: String,
}

/// A streamed answer: whole events, or parts of one document. Dropping it cancels the request.
pub struct Answer {
    pieces: mpsc::Receiver<Result<Bytes, Refusal>>,
    task: AbortHandle,
}

impl Answer {
    /// Polls for the next piece; `None` after the last. The waker may be called from any thread.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refusal>>> {
        self.pieces.poll_recv(context)
    }

    /// Waits for the next piece for up to `time`; `Poll::Pending` if none has arrived by then. Needs no
    /// runtime.
    pub fn next_within(&mut self, time: Duration) -> Poll<Option<Result<Bytes, Refusal>>> {
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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
