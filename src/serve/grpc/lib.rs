//! vLLM's gRPC API next to HTTP, on the same scheduler, for Dynamo's sidecar and vLLM's own frontend.
//!
//! `request.rs` converts a request to the job that the same request over HTTP would become, `stream.rs`
//! converts its updates to messages, and `kv_transfer.rs` sends the KV pages of prompts to other servers.
//! Unsupported calls fail with UNIMPLEMENTED. The message types are from the crate `vllm-proto`.
//! `kv_events.rs` publishes changes of the prefix cache. Start at [`Grpc`].
#![forbid(unsafe_code)]

mod control;
mod incoming;
mod inference;
mod kv_events;
mod kv_transfer;
mod options;
mod request;
mod stream;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
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
use sterna_serve::companion::{
    self, Acceptor, ApiError, App, Client, Companion, Endpoint, FIRST_HEAD, Instance, Phase, Places, Started,
    client,
};

pub use self::kv_events::KvEvents;
pub use self::options::{GrpcOptions, KvTransferOptions};

/// Idle time after which a connection is pinged, and time limit for the reply.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Services whose health is reported.
const SERVICES: [&str; 3] = ["vllm.Control", "vllm.Inference", ""];

/// vLLM's gRPC service, for a server with a single model.
pub struct Grpc(GrpcOptions);

impl Grpc {
    /// A service with these options.
    pub fn new(options: GrpcOptions) -> Self {
        Self(options)
    }
}

impl Companion for Grpc {
    fn start(self: Box<Self>, app: &Arc<App>, ending: watch::Receiver<bool>) -> io::Result<Started> {
        let GrpcOptions { address, card, kv_transfer } = self.0;
        if app.models.by_name {
            let message = "gRPC serves a single model, and this server has several";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let transfer = kv_transfer.as_ref().map(Transfer::start).transpose()?;
        let listener = TcpListener::bind(address).map_err(|err| {
            io::Error::new(err.kind(), format!("cannot listen on {address} for gRPC: {err}"))
        })?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let tls = app.options.tls.as_ref().map(|files| Acceptor::new(files, &[b"h2"])).transpose()?;
        let places = Places::new(app.options.max_connections);
        let patience = FIRST_HEAD.min(app.options.header_time);
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let incoming = Incoming::new(listener, tls, patience, places);
        let (reporter, health) = tonic_health::server::health_reporter();
        let running: Arc<Running> = Arc::default();
        let most = app.options.max_body_bytes;
        let (transfer_of, running_of) = (transfer.clone(), Arc::clone(&running));
        let inference = Inference { app: Arc::clone(app), running: running_of, transfer: transfer_of };
        let control = Control { app: Arc::clone(app), running, card };
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
                tracing::error!("the gRPC server failed: {err}");
            }
            reporting.abort();
        });
        let mut endpoints = vec![endpoint(app, address)];
        endpoints.extend(transfer.map(|transfer| transfer.endpoint()));
        Ok(Started { endpoints, task: Some(task) })
    }
}

/// The address of the service.
fn endpoint(app: &App, address: SocketAddr) -> Endpoint {
    let is_open = !address.ip().is_loopback() && app.options.keys.is_empty();
    let warning = is_open.then(|| format!("anyone who can reach {address} can use this model by gRPC"));
    Endpoint { service: "gRPC", address: address.to_string(), warning }
}

/// Reports the health of the services: serving from when the model is loaded until the server shuts down.
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

/// The client of a request.
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
/// UNAVAILABLE while it is loading, or when the server is shutting down.
async fn model(app: &Arc<App>) -> Result<Arc<Instance>, Status> {
    companion::model(app, None).await.map_err(|err| status(&err))
}

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
