//! Connections: how many, how long they may be silent, and how they end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::Version;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep_until};

use super::arriving::{Arriving, Flag};
use super::tls::Acceptor;

/// Largest head of a request, in bytes.
const HEAD_BYTES: usize = 64 << 10;
/// Longest time from a request to the close of the writing side, by a client that waits for the answer.
const CLOSES_WITHIN: Duration = Duration::from_millis(200);
/// Sent to a client that has closed its writing side, to learn whether it still reads: HTTP/1.1 lets any
/// number of such responses go before the answer.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Times from one probe to the next. The system of a client that has left refuses the first one that arrives,
/// and the next one then fails. Go's clients take five.
const PROBES_AFTER: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

/// Limits and state of connections.
#[derive(Clone)]
pub struct Connections {
    /// Places for connections.
    pub places: Arc<Semaphore>,
    /// Longest time for a head, and for a silence.
    pub header_time: Duration,
    /// Longest time that a client may leave what it is sent unread.
    pub write_time: Duration,
    /// TLS, if the server has it.
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
                    tracing::warn!("a connection could not be accepted: {err}");
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
            Ok(Err(err)) => tracing::debug!("TLS handshake failed: {err}"),
            Err(_) => tracing::debug!("TLS handshake failed: the client timed out"),
        }
    }

    async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
        let (whole, waits, said_all) = (Flag::default(), Flag::default(), Arc::new(Notify::new()));
        let flags = (whole.clone(), waits.clone());
        let stream = Watched::new(stream, self.write_time, flags, Arc::clone(&said_all));
        let router = TowerToHyperService::new(router);
        let service = service_fn(move |request| {
            let waits = waits.clone();
            waits.set(request.version() == Version::HTTP_11);
            let answer = router.call(Arriving::request(request, &whole));
            async move {
                let answer = answer.await;
                waits.set(false);
                answer
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_time)
            .max_buf_size(HEAD_BYTES)
            // Some clients look for `Content-Type` and no other form of it.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return log(ended),
            _ = self.ending.wait_for(|ending| *ending) => {}
            () = said_all.notified() => {}
        }
        connection.as_mut().graceful_shutdown();
        log(connection.await);
    }
}

fn log(ended: hyper::Result<()>) {
    if let Err(err) = ended {
        tracing::debug!("a connection broke: {err}");
    }
}

/// A socket whose other end must read now and then: one that takes nothing for a while is closed.
///
/// A client that closes its writing side has left, or it has said all and waits for the answer. Both look the
/// same until something is sent. One that closes it right behind a request is taken to wait for the answer,
/// and is sent a [`PROBE`] now and then until that begins.
struct Watched<S> {
    stream: S,
    patience: Duration,
    /// Runs out after `patience`, while something waits to be written.
    until: Pin<Box<Sleep>>,
    waits: bool,
    /// Time of the last bytes.
    heard: Instant,
    whole: Flag,
    /// The answer to the newest request has not begun, and may follow a [`PROBE`].
    probes: Flag,
    n_probes: usize,
    /// Time after which an end right behind the last bytes is that of a request that broke off; then the time
    /// of the next probe.
    ends: Option<Pin<Box<Sleep>>>,
    /// Told when the client has said all: the connection ends with its answer.
    said_all: Arc<Notify>,
    has_said_all: bool,
}

impl<S> Watched<S> {
    /// `flags` are those of a whole request, and of one whose answer has not begun.
    fn new(stream: S, patience: Duration, flags: (Flag, Flag), said_all: Arc<Notify>) -> Self {
        let ((whole, probes), until) = (flags, Box::pin(tokio::time::sleep(patience)));
        Self {
            stream,
            patience,
            until,
            waits: false,
            heard: Instant::now(),
            whole,
            probes,
            n_probes: 0,
            ends: None,
            said_all,
            has_said_all: false,
        }
    }
    /// Result of a write; an error if it has waited for too long.
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

impl<S: AsyncWrite + Unpin> Watched<S> {
    /// The end of what the client sends: of no bytes if it has left, and `Pending` for ever if it waits.
    fn ended(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_said_all {
            return self.probe(context);
        }
        let until = self.heard + CLOSES_WITHIN;
        if self.ends.is_none() && Instant::now() >= until {
            return Poll::Ready(Ok(()));
        }
        // Bytes that have been read may not have reached the one who says that the request is whole.
        let ends = self.ends.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if !self.whole.get() {
            ready!(ends.as_mut().poll(context));
            return Poll::Ready(Ok(()));
        }
        self.has_said_all = true;
        self.said_all.notify_one();
        self.probe(context)
    }

    /// Asks whether a client that has said all still reads: an error if it has left.
    fn probe(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(ends) = self.ends.as_mut().filter(|_| self.n_probes <= PROBES_AFTER.len()) {
            if self.n_probes > 0 {
                ready!(ends.as_mut().poll(context));
            }
            // An answer that has begun is a probe itself.
            if !self.probes.get() || self.waits {
                break;
            }
            match Pin::new(&mut self.stream).poll_write(context, PROBE)? {
                Poll::Ready(bytes) if bytes == PROBE.len() => {}
                // It has not taken what was sent before.
                _ => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            }
            let _ = Pin::new(&mut self.stream).poll_flush(context)?;
            let next = PROBES_AFTER.get(self.n_probes).copied().unwrap_or_default();
            ends.as_mut().reset(Instant::now() + next);
            self.n_probes += 1;
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ends.is_none() {
            let before = into.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
            if into.filled().len() > before {
                self.heard = Instant::now();
                return Poll::Ready(Ok(()));
            }
        }
        self.ended(context)
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
