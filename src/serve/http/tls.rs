//! TLS with a key and a certificate from files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::options::TlsFiles;

/// Acceptor of TLS connections with the server's key and certificate.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

/// A TLS connection.
pub type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

impl Acceptor {
    /// An acceptor with a key and a certificate, for one of these protocols (ALPN).
    ///
    /// # Errors
    /// A file cannot be read or is not PEM, or the key does not match the certificate.
    pub fn new(files: &TlsFiles, protocols: &[&[u8]]) -> io::Result<Self> {
        let fail = |path: &Path, err: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {err}", path.display()))
        };
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|err| fail(&files.key, &err))?;
        let path = &files.certificates;
        let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let certificates: Vec<CertificateDer<'static>> = certificates.map_err(|err| fail(path, &err))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key));
        let mut config = config.map_err(|err| fail(path, &err))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// An error of the client.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream> {
        self.0.accept(stream).await
    }
}
