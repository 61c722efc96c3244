//! Stubs for builds without TLS.

use std::io;

use tokio::net::TcpStream;

use crate::options::TlsFiles;

/// Stub without values: this build has no TLS.
#[derive(Clone)]
pub enum Acceptor {}

/// Stub; never constructed.
pub type TlsStream = TcpStream;

impl Acceptor {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: &TlsFiles, _: &[&[u8]]) -> io::Result<Self> {
        let message = "this build has no TLS: the cargo feature `tls` adds it";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub async fn accept(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}
