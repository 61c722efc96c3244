//! `sterna serve` behind TLS.
#![cfg(feature = "tls")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna::serve::TlsFiles;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::TestServer;

/// A key and a certificate for localhost, for tests alone.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

#[test]
fn requests_and_streams_pass_encrypted_and_nothing_else_does() {
    let files = TlsFiles { key: file("key.pem"), certificates: file("cert.pem") };
    let server = TestServer::start_unasked(|options| options.tls = Some(files));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let ask = |request: &str| {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(client, server.connect());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // A server that closes the connection need not say goodbye.
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
fn files_that_are_no_key_are_refused() {
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
