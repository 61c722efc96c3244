//! gRPC connections, with TLS if the server uses it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sterna_serve::companion::{Acceptor, TlsStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Maximum completed handshakes that wait to be served.
const WAITING: usize = 16;
/// First bytes that an HTTP/2 client sends.
const PREFACE: usize = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Stream of incoming connections.
pub struct Incoming(mpsc::Receiver<io::Result<Connection>>);

impl Incoming {
    /// Connections of `listener`, at most `most` at a time. A client has `patience` for its TLS handshake and
    /// HTTP/2's preface.
    pub fn new(listener: TcpListener, tls: Option<Acceptor>, most: usize, patience: Duration) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let places = Arc::new(Semaphore::new(most));
        tokio::spawn(async move {
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                let accepted = tokio::select! {
                    () = sender.closed() => return,
                    accepted = listener.accept() => accepted,
                };
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    // Too many open files, for instance: other connections will close.
                    Err(err) => {
                        tracing::warn!("a connection could not be accepted: {err}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                let _ = stream.set_nodelay(true);
                let (tls, sender) = (tls.clone(), sender.clone());
                tokio::spawn(async move {
                    let begun = tokio::time::timeout(patience, Connection::begin(stream, tls, place)).await;
                    match begun {
                        // A server that is shutting down takes no more connections.
                        Ok(Ok(connection)) => drop(sender.send(Ok(connection)).await),
                        Ok(Err(err)) => tracing::debug!("a gRPC connection did not begin: {err}"),
                        Err(_) => tracing::debug!("a gRPC connection did not begin: the client timed out"),
                    }
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

/// A connection.
pub struct Connection {
    stream: Either,
    /// The bytes of HTTP/2's preface that have not been read again.
    preface: io::Cursor<[u8; PREFACE]>,
    _place: OwnedSemaphorePermit,
}

enum Either {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Connection {
    /// Waits for the TLS handshake and the client's first bytes: HTTP/2 has no time limit for them.
    async fn begin(
        stream: TcpStream,
        tls: Option<Acceptor>,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        let mut stream = match tls {
            None => Either::Plain(stream),
            Some(tls) => Either::Tls(Box::new(tls.accept(stream).await?)),
        };
        let mut preface = [0; PREFACE];
        match &mut stream {
            Either::Plain(stream) => stream.read_exact(&mut preface).await?,
            Either::Tls(stream) => stream.read_exact(&mut preface).await?,
        };
        Ok(Self { stream, preface: io::Cursor::new(preface), _place: place })
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let preface = this.preface.get_ref().get(this.preface.position() as usize..).unwrap_or_default();
        if !preface.is_empty() {
            let n = preface.len().min(into.remaining());
            into.put_slice(&preface[..n]);
            this.preface.set_position(this.preface.position() + n as u64);
            return Poll::Ready(Ok(()));
        }
        match &mut this.stream {
            Either::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Either::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Either::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Either::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Either::Plain(stream) => Pin::new(stream).poll_flush(context),
            Either::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Either::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Either::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
