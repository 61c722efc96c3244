//! What stands in place of TLS in builds without it.

use std::io;

use tokio::net::TcpStream;

use crate::options::TlsFiles;

/// This build has no TLS, and so none of these.
#[derive(Clone)]
pub enum Acceptor {}

/// Nothing either.
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

    /// Is never called.
    ///
    /// # Errors
    /// Never.
    pub async fn accept(&self, _: TcpStream) -> io::Result<TlsStream> {
        match *self {}
    }
}
