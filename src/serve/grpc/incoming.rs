//! gRPC connections, with TLS if the server uses it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sterna_serve::companion::{Acceptor, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Maximum completed handshakes that wait to be served.
const WAITING: usize = 16;

/// Stream of incoming connections.
pub struct Incoming(mpsc::Receiver<io::Result<Connection>>);

impl Incoming {
    /// Connections of `listener`; TLS handshakes may take up to `patience`.
    pub fn new(listener: TcpListener, tls: Option<Acceptor>, patience: Duration) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
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
                    let connection = match tls {
                        None => Connection::Plain(stream),
                        Some(tls) => match tokio::time::timeout(patience, tls.accept(stream)).await {
                            Ok(Ok(stream)) => Connection::Tls(Box::new(stream)),
                            Ok(Err(err)) => return tracing::debug!("TLS handshake failed: {err}"),
                            Err(_) => return tracing::debug!("TLS handshake failed: the client timed out"),
                        },
                    };
                    // A server that is shutting down takes no more connections.
                    let _ = sender.send(Ok(connection)).await;
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
pub enum Connection {
    /// Not encrypted.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream>),
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
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
