//! Connections: how many, how long they may be silent, and how they end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Largest head of a request, in bytes.
const HEAD_BYTES: usize = 64 << 10;

/// How connections are kept.
#[derive(Clone)]
pub struct Connections {
    /// Places for connections.
    pub places: Arc<Semaphore>,
    /// How long a head may take, and a silence.
    pub header_time: Duration,
    /// Becomes true when no new requests are taken.
    pub ending: watch::Receiver<bool>,
}

impl Connections {
    /// Takes connections until the server ends.
    pub async fn accept(mut self, listener: TcpListener, router: Router) {
        loop {
            let place = Arc::clone(&self.places).acquire_owned();
            let (place, stream) = tokio::select! {
                _ = self.ending.wait_for(|ending| *ending) => return,
                accepted = async { (place.await, listener.accept().await) } => accepted,
            };
            let Ok(place) = place else { return };
            match stream {
                Ok((stream, _)) => {
                    let (this, router) = (self.clone(), router.clone());
                    tokio::spawn(async move {
                        this.serve(stream, router).await;
                        drop(place);
                    });
                }
                // Too many open files, say: others close theirs in time.
                Err(err) => {
                    tracing::warn!("a connection could not be taken: {err}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve(mut self, stream: TcpStream, router: Router) {
        // Tokens are small, and each is wanted at once.
        let _ = stream.set_nodelay(true);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_time)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return log(ended),
            _ = self.ending.wait_for(|ending| *ending) => connection.as_mut().graceful_shutdown(),
        }
        log(connection.await);
    }
}

fn log(ended: hyper::Result<()>) {
    if let Err(err) = ended {
        tracing::debug!("a connection broke: {err}");
    }
}
