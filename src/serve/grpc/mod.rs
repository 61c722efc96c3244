//! vLLM's gRPC beside HTTP, on the same scheduler: what Dynamo's sidecar and vLLM's own frontend speak.
//!
//! `request.rs` turns a request into the job that the same words over HTTP would be, `stream.rs` what becomes
//! of it into messages, and `kv_transfer.rs` hands the pages of prompts to other servers. What is not served
//! here is UNIMPLEMENTED. The messages are those of the crate `vllm-proto`. Start at [`Grpc`].

mod control;
mod incoming;
mod inference;
pub mod kv_events;
mod kv_transfer;
mod request;
mod stream;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Code, Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use vllm_proto::control_server::ControlServer;
use vllm_proto::inference_server::InferenceServer;

use self::control::Control;
use self::incoming::Incoming;
use self::inference::{Inference, Running};
use self::kv_transfer::Transfer;
use super::app::App;
use super::board::Phase;
use super::error::ApiError;
use super::http::guard::{Client, client};
use super::http::tls::Acceptor;
use super::instance::Instance;
use super::options::GrpcOptions;

/// After what silence a connection is asked whether anybody is there, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Services whose health is told.
const SERVICES: [&str; 3] = ["vllm.Control", "vllm.Inference", ""];

/// The gRPC side of a server.
pub struct Grpc {
    address: SocketAddr,
    transfer: Option<Arc<Transfer>>,
    task: JoinHandle<()>,
}

impl Grpc {
    /// Serves `app` at the address of its options, if these name one, until `ending` becomes true and what
    /// has begun has ended. To be called on a runtime.
    ///
    /// # Errors
    /// What the system says to sockets; a server of several models.
    pub fn start(app: &Arc<App>, ending: watch::Receiver<bool>) -> io::Result<Option<Self>> {
        let Some(GrpcOptions { address, kv_transfer, .. }) = &app.options.grpc else { return Ok(None) };
        if app.models.by_name {
            let message = "gRPC serves a single model, and this server has several";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let transfer = kv_transfer.as_ref().map(Transfer::start).transpose()?;
        let listener = TcpListener::bind(*address).map_err(|err| {
            io::Error::new(err.kind(), format!("cannot listen on {address} for gRPC: {err}"))
        })?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let tls = app.options.tls.as_ref().map(|files| Acceptor::new(files, &[b"h2"])).transpose()?;
        let incoming =
            Incoming::new(tokio::net::TcpListener::from_std(listener)?, tls, app.options.header_time);
        let (reporter, health) = tonic_health::server::health_reporter();
        let running: Arc<Running> = Arc::default();
        let most = app.options.max_body_bytes;
        let (transfer_of, running_of) = (transfer.clone(), Arc::clone(&running));
        let inference = Inference { app: Arc::clone(app), running: running_of, transfer: transfer_of };
        let control = Control { app: Arc::clone(app), running };
        let router = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_service(health)
            .add_service(InferenceServer::new(inference).max_decoding_message_size(most))
            .add_service(ControlServer::new(control).max_decoding_message_size(most));
        let told = Arc::clone(app);
        let task = tokio::spawn(async move {
            let reporting = tokio::spawn(report(told, reporter));
            let mut ending = ending;
            let ended = async move { drop(ending.wait_for(|ending| *ending).await) };
            if let Err(err) = router.serve_with_incoming_shutdown(incoming, ended).await {
                tracing::error!("gRPC has ended: {err}");
            }
            reporting.abort();
        });
        Ok(Some(Self { address, transfer, task }))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where pages are handed to other servers, if they are.
    pub fn kv_transfer(&self) -> Option<SocketAddr> {
        self.transfer.as_ref().map(|transfer| transfer.address)
    }

    /// Waits until everything has ended.
    pub async fn ended(&mut self) {
        if !self.task.is_finished() {
            // A task that panicked has ended, too.
            let _ = (&mut self.task).await;
        }
    }
}

/// Tells the health of the services: they serve from when the model is loaded until the server ends.
async fn report(app: Arc<App>, reporter: HealthReporter) {
    let tell = async |status| {
        for service in SERVICES {
            reporter.set_service_status(service, status).await;
        }
    };
    tell(ServingStatus::NotServing).await;
    app.life.until(|phase| phase >= Phase::Ready).await;
    if app.life.phase() == Phase::Ready {
        tell(ServingStatus::Serving).await;
    }
    app.life.until(|phase| phase >= Phase::Ending).await;
    tell(ServingStatus::NotServing).await;
}

/// Who asks.
///
/// # Errors
/// UNAUTHENTICATED without a key, on a server with keys.
fn who<T>(app: &App, request: &Request<T>) -> Result<Client, Status> {
    let known = client(&app.options.keys, request.metadata().as_ref());
    known.ok_or_else(|| status(&ApiError::unauthorised()))
}

/// The only model.
///
/// # Errors
/// UNAVAILABLE while it is loaded, or when the server ends.
async fn model(app: &Arc<App>) -> Result<Arc<Instance>, Status> {
    super::engine_thread::model(app, None).await.map_err(|err| status(&err))
}

/// An error as gRPC has it.
fn status(err: &ApiError) -> Status {
    let code = match err.status.as_u16() {
        400 | 413 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        408 => Code::DeadlineExceeded,
        429 => Code::ResourceExhausted,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, &err.message)
}
