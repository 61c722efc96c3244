//! What stands in place of gRPC in builds without it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use super::app::App;

/// This build has no gRPC, and so none of these.
pub enum Grpc {}

impl Grpc {
    /// Refuses, if it is asked for.
    ///
    /// # Errors
    /// If it is asked for.
    pub fn start(app: &Arc<App>, _: watch::Receiver<bool>) -> io::Result<Option<Self>> {
        if app.options.grpc.is_none() {
            return Ok(None);
        }
        let message = "this build has no gRPC: the cargo feature `grpc` adds it";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    /// Is never called.
    pub fn address(&self) -> SocketAddr {
        match *self {}
    }

    /// Is never called.
    pub fn kv_transfer(&self) -> Option<SocketAddr> {
        match *self {}
    }

    /// Is never called.
    pub async fn ended(&mut self) {
        match *self {}
    }
}

/// Events of the prefix cache.
pub mod kv_events {
    use std::io;
    use std::sync::Arc;

    use crate::app::App;

    /// Refuses, if they are asked for.
    ///
    /// # Errors
    /// If they are asked for.
    pub async fn start(app: &Arc<App>) -> io::Result<()> {
        if app.options.kv_events.is_none() {
            return Ok(());
        }
        let message = "this build publishes no events of the KV cache: the cargo feature `grpc` adds it";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }
}
