//! Connections: their number, time limits, and how they end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::Version;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};

use super::arriving::{Arriving, Flag};
use super::places::{Doing, Peer, Place, Places};
use super::tls::Acceptor;

/// Largest head of a request, in bytes.
const HEAD_BYTES: usize = 64 << 10;
/// Maximum time for the TLS handshake and the head of the first request.
pub const FIRST_HEAD: Duration = Duration::from_secs(10);
/// Time for the last bytes of a connection whose place is given up.
const LAST_BYTES: Duration = Duration::from_millis(100);
/// Maximum time from a request to the close of the client's sending side, for the client to be taken to wait
/// for the answer.
const CLOSES_WITHIN: Duration = Duration::from_millis(200);
/// Sent to a client that has closed its sending side, to find out if it still reads. HTTP/1.1 allows any
/// number of such responses before the answer.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Times between probes. If the client has disconnected, its system rejects the first probe that arrives, and
/// the next one then fails. Go's clients take five.
const PROBES_AFTER: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

/// Limits and state of connections.
#[derive(Clone)]
pub struct Connections {
    /// Places of connections.
    pub places: Arc<Places>,
    /// Maximum time for a request's head, and for silence.
    pub header_time: Duration,
    /// Maximum time that a client may leave data unread.
    pub write_time: Duration,
    /// TLS, if the server has it.
    pub tls: Option<Acceptor>,
    /// Becomes true when no new requests are accepted.
    pub ending: watch::Receiver<bool>,
}

impl Connections {
    /// Accepts connections until the server shuts down.
    pub async fn accept(mut self, listener: TcpListener, router: Router) {
        loop {
            let places = Arc::clone(&self.places);
            let next = async {
                let (stream, address) = listener.accept().await?;
                let peer = Peer::new(address.ip());
                io::Result::Ok((stream, Arc::new(places.enter(&peer).await), peer))
            };
            let accepted = tokio::select! {
                _ = self.ending.wait_for(|ending| *ending) => return,
                accepted = next => accepted,
            };
            match accepted {
                Ok((stream, place, peer)) => {
                    let (this, router) = (self.clone(), router.clone());
                    tokio::spawn(this.begin(stream, place, peer, router));
                }
                // Too many open files, for instance: other connections will close.
                Err(err) => {
                    tracing::warn!("a connection could not be accepted: {err}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn begin(self, stream: TcpStream, place: Arc<Place>, peer: Peer, router: Router) {
        let first = Instant::now() + FIRST_HEAD.min(self.header_time);
        // Tokens are small, and must be sent at once.
        let _ = stream.set_nodelay(true);
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => tokio::select! {
                () = place.given_up() => return,
                accepted = timeout_at(first, tls.accept(stream)) => match accepted {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(err)) => return tracing::debug!("TLS handshake failed: {err}"),
                    Err(_) => return tracing::debug!("TLS handshake failed: the client timed out"),
                },
            },
        };
        self.serve(stream, place, peer, first, router).await;
    }

    /// Serves the requests of a connection, the first of which must begin until `first`.
    async fn serve(
        mut self,
        stream: Box<dyn Stream>,
        place: Arc<Place>,
        peer: Peer,
        first: Instant,
        router: Router,
    ) {
        let (whole, waits, said_all) = (Flag::default(), Flag::default(), Arc::new(Notify::new()));
        let flags = (whole.clone(), waits.clone());
        let stream = Watched::new(stream, self.write_time, flags, Arc::clone(&said_all));
        let router = TowerToHyperService::new(router);
        let (begun, of_request) = (Flag::default(), Arc::clone(&place));
        let has_begun = begun.clone();
        let service = service_fn(move |mut request: hyper::Request<_>| {
            let (waits, place) = (waits.clone(), Arc::clone(&of_request));
            waits.set(request.version() == Version::HTTP_11);
            begun.set(true);
            request.extensions_mut().insert(peer.clone());
            let answer = router.call(Arriving::request(request, &whole, &place));
            async move {
                let answer = answer.await;
                waits.set(false);
                place.now(Doing::Answer);
                answer.map(|answer| answer.map(|body| Answering { body, place }))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_time)
            .max_buf_size(HEAD_BYTES)
            // Some clients only recognise headers written as `Content-Type`.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let is_silent = async {
            sleep_until(first).await;
            if has_begun.get() {
                std::future::pending().await
            }
        };
        let mut is_given_up = false;
        tokio::select! {
            ended = connection.as_mut() => return log(ended),
            _ = self.ending.wait_for(|ending| *ending) => {}
            () = said_all.notified() => {}
            () = is_silent => return tracing::debug!("a connection has sent no request"),
            () = place.given_up() => is_given_up = true,
        }
        connection.as_mut().graceful_shutdown();
        match is_given_up {
            true => drop(timeout(LAST_BYTES, connection).await),
            false => log(connection.await),
        }
    }
}

/// The body of an answer. At its end the connection waits for its client again.
struct Answering {
    body: Body,
    place: Arc<Place>,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.place.now(Doing::Head);
    }
}

fn log(ended: hyper::Result<()>) {
    if let Err(err) = ended {
        tracing::debug!("a connection failed: {err}");
    }
}

/// A socket, with TLS or without: one type, so that hyper is compiled once.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A socket whose other end must read regularly: if it reads nothing for `patience`, the connection is
/// closed.
///
/// A client that closes its sending side has either disconnected, or has sent everything and waits for the
/// answer. The two look the same until something is sent. A client that closes it immediately after a request
/// is taken to wait for the answer, and gets a [`PROBE`] now and then until the answer starts.
struct Watched {
    stream: Box<dyn Stream>,
    patience: Duration,
    /// Expires after `patience` while data waits to be written.
    until: Pin<Box<Sleep>>,
    waits: bool,
    /// Time of the last received bytes.
    heard: Instant,
    whole: Flag,
    /// True while the answer to the newest request has not started and may follow a [`PROBE`].
    probes: Flag,
    n_probes: usize,
    /// Time after which a close right after the last bytes means that the request is incomplete; then the
    /// time of the next probe.
    ends: Option<Pin<Box<Sleep>>>,
    /// Notified when the client has sent everything: the connection ends after the answer.
    said_all: Arc<Notify>,
    has_said_all: bool,
}

impl Watched {
    /// The first of `flags` is set for a complete request, the second for one whose answer has not started.
    fn new(stream: Box<dyn Stream>, patience: Duration, flags: (Flag, Flag), said_all: Arc<Notify>) -> Self {
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

    /// Handles the end of the client's data: an empty read if the client has disconnected, `Pending` forever
    /// if it waits.
    fn ended(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_said_all {
            return self.probe(context);
        }
        let until = self.heard + CLOSES_WITHIN;
        if self.ends.is_none() && Instant::now() >= until {
            return Poll::Ready(Ok(()));
        }
        // The bytes may not have reached the code that sets `whole` yet.
        let ends = self.ends.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if !self.whole.get() {
            ready!(ends.as_mut().poll(context));
            return Poll::Ready(Ok(()));
        }
        self.has_said_all = true;
        self.said_all.notify_one();
        self.probe(context)
    }

    /// Checks if a client that has sent everything still reads; an error if it has disconnected.
    fn probe(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(ends) = self.ends.as_mut().filter(|_| self.n_probes <= PROBES_AFTER.len()) {
            if self.n_probes > 0 {
                ready!(ends.as_mut().poll(context));
            }
            // An answer that has started acts as a probe itself.
            if !self.probes.get() || self.waits {
                break;
            }
            match Pin::new(&mut self.stream).poll_write(context, PROBE)? {
                Poll::Ready(bytes) if bytes == PROBE.len() => {}
                // The client has not read earlier data.
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

impl AsyncRead for Watched {
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

impl AsyncWrite for Watched {
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
