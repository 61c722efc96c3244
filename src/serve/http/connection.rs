//! Connections: how many, how long they may be silent, and how they end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep};

use super::tls::Acceptor;

/// Largest head of a request, in bytes.
const HEAD_BYTES: usize = 64 << 10;

/// How connections are kept.
#[derive(Clone)]
pub struct Connections {
    /// Places for connections.
    pub places: Arc<Semaphore>,
    /// How long a head may take, and a silence.
    pub header_time: Duration,
    /// How long a client may leave what it is sent unread.
    pub write_time: Duration,
    /// What makes a connection one of TLS, if it is to be one.
    pub tls: Option<Acceptor>,
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
                        this.begin(stream, router).await;
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

    async fn begin(self, stream: TcpStream, router: Router) {
        // Tokens are small, and each is wanted at once.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.serve(stream, router).await };
        match tokio::time::timeout(self.header_time, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, router).await,
            Ok(Err(err)) => tracing::debug!("no TLS: {err}"),
            Err(_) => tracing::debug!("no TLS: the client did not speak in time"),
        }
    }

    async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
        let stream = Watched::new(stream, self.write_time);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_time)
            .max_buf_size(HEAD_BYTES)
            // Some clients look for `Content-Type` and no other form of it.
            .title_case_headers(true)
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

/// A socket whose other end must read now and then: one that takes nothing for a while is closed.
struct Watched<S> {
    stream: S,
    patience: Duration,
    /// When it runs out, while something waits to be written.
    until: Pin<Box<Sleep>>,
    waits: bool,
}

impl<S> Watched<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, until: Box::pin(tokio::time::sleep(patience)), waits: false }
    }

    /// What a write came to; an error if it has waited for too long.
    fn watched<T>(&mut self, wrote: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.waits = false;
            return wrote;
        }
        if !self.waits {
            self.waits = true;
            self.until.as_mut().reset(Instant::now() + self.patience);
        }
        ready!(self.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(wrote, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watched(wrote, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
