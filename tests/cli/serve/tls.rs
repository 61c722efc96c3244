//! `sterna serve` with TLS.
#![cfg(feature = "tls")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna::serve::TlsFiles;
use support::tokio_rustls::rustls::crypto::ring::default_provider;
use support::tokio_rustls::rustls::pki_types::pem::PemObject;
use support::tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use support::tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::TestServer;

/// A key or a certificate for localhost, only for tests.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

fn files() -> TlsFiles {
    TlsFiles { key: file("key.pem"), certificates: file("cert.pem") }
}

/// Configuration of a client that trusts these certificates.
fn trusting(certificates: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for name in certificates {
        roots.add(CertificateDer::from_pem_file(file(name)).unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

#[test]
fn tls_server_answers_only_encrypted_requests() {
    let server = TestServer::start_without_waiting(Vec::new(), |options| {
        options.tls = Some(files());
        options.max_connections = 2;
    });
    // Clients that do not begin the handshake give up their places.
    let _silent: Vec<_> = (0..4).map(|_| server.connect()).collect();
    let config = trusting(&["cert.pem"]);
    let ask = |request: &str| {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(client, server.connect());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // A server that closes the connection does not have to send a TLS close notification.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let get = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    while !ask(get).starts_with("HTTP/1.1 200") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let body = r#"{"prompt": "You", "n_predict": 3, "stream": true}"#;
    let head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let answer = ask(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
    assert!(answer.contains("text/event-stream") && answer.contains("\"stop\":true"), "{answer}");
    // Without TLS there is no answer at all.
    let mut plain = server.connect();
    plain.write_all(get.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn invalid_tls_files_are_refused() {
    for (key, certificates) in [("key.pem", "none.pem"), ("cert.pem", "cert.pem"), ("key.pem", "key.pem")] {
        let mut sterna = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sterna"));
        let output = sterna
            .timeout(std::time::Duration::from_secs(60))
            .args(["serve", "--port", "0", "--ssl-key-file"])
            .arg(file(key))
            .arg("--ssl-cert-file")
            .arg(file(certificates))
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(".pem: "), "{key}, {certificates}: {stderr}");
    }
}

#[cfg(feature = "grpc")]
mod grpc {
    use std::future::Future;
    use std::io;
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use support::hyper_util::rt::TokioIo;
    use support::tokio::net::TcpStream;
    use support::tokio_rustls::TlsConnector;
    use support::tokio_rustls::client::TlsStream;
    use support::tonic::Code;
    use support::tonic::codegen::Service;
    use support::tonic::codegen::http::Uri;
    use support::tonic::transport::{Channel, Endpoint};
    use support::{tokio, tonic};

    use super::super::grpc::{channel, generate, grpc, prompt, request, runtime, started};
    use super::*;

    /// Connector for HTTP/2 over TLS.
    struct Encrypted {
        address: SocketAddr,
        config: Arc<ClientConfig>,
    }

    impl Service<Uri> for Encrypted {
        type Response = TokioIo<TlsStream<TcpStream>>;
        type Error = io::Error;
        type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Uri) -> Self::Future {
            let (address, mut config) = (self.address, ClientConfig::clone(&self.config));
            config.alpn_protocols = vec![b"h2".to_vec()];
            Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").unwrap();
                let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                Ok(TokioIo::new(stream))
            })
        }
    }

    async fn encrypted(server: &TestServer, trusted: &[&str]) -> Result<Channel, tonic::transport::Error> {
        let address = server.grpc.expect("the server has gRPC");
        let connector = Encrypted { address, config: trusting(trusted) };
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await
    }

    #[test]
    fn tls_grpc_answers_only_encrypted_requests() {
        let plain = started();
        let server = TestServer::start_without_waiting(vec![grpc()], |with| {
            with.tls = Some(files());
            with.header_time = Duration::from_secs(2);
        });
        runtime().block_on(async {
            // A silent client does not keep others waiting.
            let address = server.grpc.unwrap();
            let silent = TcpStream::connect(address).await.unwrap();
            let asked = request(&prompt(3, 40), 12);
            let expected = generate(&channel(&plain).await, asked.clone()).await.unwrap();
            let channel = encrypted(&server, &["cert.pem"]).await.unwrap();
            let answer = loop {
                match generate(&channel, asked.clone()).await {
                    // The model is still being loaded.
                    Err(status) if status.code() == Code::Unavailable => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    answer => break answer.unwrap(),
                }
            };
            assert_eq!((answer.tokens.len(), answer.tokens, answer.text), {
                (12, expected.tokens, expected.text)
            });
            // A client that does not trust the certificate disconnects, and one without TLS gets an error.
            assert!(encrypted(&server, &[]).await.is_err());
            let plain = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
            assert!(generate(&plain, asked.clone()).await.is_err());
            // A connection without a handshake is closed.
            let ended = tokio::time::timeout(Duration::from_secs(60), async {
                silent.readable().await.unwrap();
                silent.try_read(&mut [0; 1])
            });
            assert_eq!(ended.await.expect("the connection is closed").unwrap_or(0), 0);
            // The server still answers.
            assert_eq!(generate(&channel, asked).await.unwrap().finish, answer.finish);
        });
        server.stop().unwrap();
    }
}
