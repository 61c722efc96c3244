//! Services besides HTTP on the same models, and their interface. gRPC is one, in its own crate.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use super::answer::finite;
pub use super::app::{App, PageEvents};
pub use super::constraints::Constraints;
pub use super::engine_thread::model;
pub use super::error::ApiError;
pub use super::fields::Fields;
pub use super::handover::{COMPUTED_HERE, ExportedPrompts, KEY_BYTES, Key, Ticket, TransferredPages};
pub use super::http::connection::FIRST_HEAD;
pub use super::http::guard::{Client, client};
pub use super::http::places::{Doing, Peer, Place, Places};
pub use super::http::stream::api_error;
pub use super::http::tls::{Acceptor, TlsStream};
pub use super::instance::Instance;
pub use super::job::{Handle, Job, JobError, Update};
pub use super::model::Served;
pub use super::sampling::{TOP_LOGPROBS, generation, n};
pub use super::slots::salt;
pub use super::status::{Life, Phase};

/// A service besides HTTP, passed to [`Server::start`](super::Server::start).
pub trait Companion: Send {
    /// Starts the service on the current runtime, before a model is loaded. The service takes no new requests
    /// once `ending` is true.
    ///
    /// # Errors
    /// The address cannot be bound, or the service does not support an option.
    fn start(self: Box<Self>, app: &Arc<App>, ending: watch::Receiver<bool>) -> io::Result<Started>;
}

/// A running service.
pub struct Started {
    /// Addresses of the service.
    pub endpoints: Vec<Endpoint>,
    /// The task, which ends with the last request; `None` for a service without requests.
    pub task: Option<JoinHandle<()>>,
}

/// An address of a service.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Name of the service to be shown.
    pub service: &'static str,
    /// Address as clients write it.
    pub address: String,
    /// Warning for the operator.
    pub warning: Option<String>,
}
