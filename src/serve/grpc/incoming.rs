//! gRPC connections, with TLS if the server uses it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use sterna_serve::companion::{Acceptor, Doing, Peer, Place, Places, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Maximum completed handshakes that wait to be served.
const WAITING: usize = 16;

/// Stream of incoming connections.
pub struct Incoming(mpsc::Receiver<io::Result<Connection>>);

impl Incoming {
    /// Connections of `listener`, which have `places`; TLS handshakes and the first bytes may take up to
    /// `patience`.
    pub fn new(
        listener: TcpListener,
        tls: Option<Acceptor>,
        patience: Duration,
        places: Arc<Places>,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = sender.closed() => return,
                    accepted = listener.accept() => accepted,
                };
                let (stream, address) = match accepted {
                    Ok(accepted) => accepted,
                    // Too many open files, for instance: other connections will close.
                    Err(err) => {
                        tracing::warn!("a connection could not be accepted: {err}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                let _ = stream.set_nodelay(true);
                let peer = Peer::new(address.ip());
                let place = tokio::select! {
                    () = sender.closed() => return,
                    place = places.enter(&peer) => place,
                };
                let (tls, sender, first) = (tls.clone(), sender.clone(), Instant::now() + patience);
                tokio::spawn(async move {
                    let encrypted = match tls {
                        None => Ok(Ok(Transport::Plain(stream))),
                        Some(tls) => tokio::select! {
                            () = place.given_up() => return,
                            accepted = timeout_at(first, tls.accept(stream)) => {
                                accepted.map(|stream| stream.map(Box::new).map(Transport::Tls))
                            }
                        },
                    };
                    let stream = match encrypted {
                        Ok(Ok(stream)) => stream,
                        Ok(Err(err)) => return tracing::debug!("TLS handshake failed: {err}"),
                        Err(_) => return tracing::debug!("TLS handshake failed: the client timed out"),
                    };
                    let caller = Arc::new(Caller { peer, place, n_calls: Mutex::new(0) });
                    // A server that is shutting down takes no more connections.
                    let _ = sender.send(Ok(Connection::new(stream, caller, first))).await;
                });
            }
        });
        Self(receiver)
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// The client of a connection, in the extensions of its requests.
pub struct Caller {
    /// Its address.
    pub peer: Peer,
    place: Place,
    /// Number of running requests.
    n_calls: Mutex<usize>,
}

impl Caller {
    /// Keeps the connection's place for a request.
    pub fn call(self: Arc<Self>) -> Call {
        self.count(|n| n + 1);
        Call(self)
    }

    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut n_calls = self.n_calls.lock().unwrap_or_else(PoisonError::into_inner);
        *n_calls = change(*n_calls);
        self.place.now(if *n_calls > 0 { Doing::Answer } else { Doing::Head });
    }
}

/// A running request of a connection.
pub struct Call(Arc<Caller>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.count(|n| n - 1);
    }
}

/// A connection.
pub struct Connection {
    stream: Transport,
    caller: Arc<Caller>,
    /// Ends when the connection has to: another one has its place, or it has not begun in time.
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
    has_ended: bool,
    /// Bytes of HTTP/2's preface that have not arrived.
    preface_left: Arc<AtomicUsize>,
}

/// Bytes that every client of HTTP/2 sends first.
const PREFACE_BYTES: usize = 24;

impl Connection {
    fn new(stream: Transport, caller: Arc<Caller>, first: Instant) -> Self {
        let preface_left = Arc::new(AtomicUsize::new(PREFACE_BYTES));
        let (of, left) = (Arc::clone(&caller), Arc::clone(&preface_left));
        let ends = Box::pin(async move {
            tokio::select! {
                () = of.place.given_up() => return,
                () = sleep_until(first) => {}
            }
            if left.load(Ordering::Relaxed) == 0 {
                of.place.given_up().await;
            }
        });
        Self { stream, caller, ends, has_ended: false, preface_left }
    }
}

enum Transport {
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream>),
}

impl Connected for Connection {
    type ConnectInfo = Arc<Caller>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.caller)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.has_ended = this.has_ended || this.ends.as_mut().poll(context).is_ready();
        if this.has_ended {
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let read = match &mut this.stream {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, into),
        };
        let left = this.preface_left.load(Ordering::Relaxed);
        this.preface_left.store(left.saturating_sub(into.filled().len() - before), Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
