//! Flags of the HTTP listener: address, clients, endpoints and log.

use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::grpc_args::list;
use super::{CliError, input};
use crate::serve::{LocalPage, ServeOptions, TlsFiles};

/// Flags of the listener.
#[derive(Args, Debug)]
pub struct ListenerArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    #[arg(alias = "LLAMA_ARG_HOST")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    #[arg(alias = "LLAMA_ARG_PORT")]
    port: u16,
    /// API key that requests must send, or several, comma-separated; --api-key-file hides it from `ps`
    #[arg(long, value_name = "KEY")]
    #[arg(alias = "LLAMA_API_KEY")]
    api_key: Option<String>,
    /// File with API keys, one per line
    #[arg(long, value_name = "FILE")]
    #[arg(alias = "LLAMA_ARG_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Private key (PEM); with --ssl-cert-file the server speaks HTTPS (builds with the feature `tls`)
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    #[arg(alias = "LLAMA_ARG_SSL_KEY_FILE")]
    ssl_key_file: Option<PathBuf>,
    /// Certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    #[arg(alias = "LLAMA_ARG_SSL_CERT_FILE")]
    ssl_cert_file: Option<PathBuf>,
    /// Serve Prometheus metrics at /metrics
    #[arg(long)]
    #[arg(alias = "LLAMA_ARG_ENDPOINT_METRICS")]
    metrics: bool,
    /// Serve /slots (the default)
    #[arg(long, overrides_with = "no_slots")]
    #[arg(alias = "LLAMA_ARG_ENDPOINT_SLOTS")]
    slots: bool,
    /// Do not serve /slots
    #[arg(long)]
    no_slots: bool,
    /// Serve this folder, written by web/build, at /local/: the page that runs models in the browser
    #[arg(long, value_name = "DIR")]
    local_page: Option<PathBuf>,
    /// Maximum number of waiting requests; further ones are rejected
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Maximum number of connections; idle ones give up their places to further ones
    #[arg(long, value_name = "N", default_value_t = 1024)]
    connections: usize,
    /// Origins that browsers may send requests from, comma-separated, or *
    #[arg(long, value_name = "LIST")]
    #[arg(alias = "LLAMA_ARG_CORS_ORIGINS")]
    cors_origins: Option<String>,
    /// Host names that a server on loopback accepts besides localhost, comma-separated
    #[arg(long, value_name = "LIST")]
    allowed_hosts: Option<String>,
    /// Seconds after which a client that does not read its answer is disconnected
    #[arg(long, value_name = "S", default_value_t = 60)]
    #[arg(aliases = ["-to", "LLAMA_ARG_TIMEOUT"])]
    timeout: u64,
    /// Seconds of silence after which a stream sends a ping
    #[arg(long, value_name = "S", default_value_t = 30)]
    #[arg(alias = "LLAMA_ARG_SSE_PING_INTERVAL")]
    sse_ping_interval: u64,
    /// Log format
    #[arg(long, value_name = "HOW", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Also log debug messages
    #[arg(short, long)]
    verbose: bool,
}

/// Log formats.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

impl ListenerArgs {
    /// Binds the listening socket.
    ///
    /// # Errors
    /// An invalid address, or one that cannot be listened on.
    pub fn bind(&self) -> Result<TcpListener, CliError> {
        let address = (self.host.as_str(), self.port).to_socket_addrs();
        let address = address.map_err(|err| format!("--host {}: {err}", self.host))?.next();
        let address = address.ok_or_else(|| format!("--host {}: no such address", self.host))?;
        Ok(TcpListener::bind(address).map_err(|err| format!("cannot listen on {address}: {err}"))?)
    }

    /// Starts logging to stderr.
    pub fn log(&self) {
        let level = if self.verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level);
        match self.log_format {
            LogFormat::Text => log.with_target(false).with_ansi(false).init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }

    /// Server options from these flags.
    ///
    /// # Errors
    /// A key file or page that cannot be read; a key that is too long.
    pub fn options(&self) -> Result<ServeOptions, CliError> {
        let tls = self.ssl_key_file.clone().zip(self.ssl_cert_file.clone());
        Ok(ServeOptions {
            keys: self.keys()?,
            tls: tls.map(|(key, certificates)| TlsFiles { key, certificates }),
            origins: list(&self.cors_origins),
            hosts: list(&self.allowed_hosts),
            metrics: self.metrics,
            slots: !self.no_slots,
            local_page: self.local_page.as_deref().map(local_page).transpose()?,
            queue: self.queue,
            max_connections: self.connections.max(1),
            write_time: Duration::from_secs(self.timeout.max(1)),
            ping: Duration::from_secs(self.sse_ping_interval.max(1)),
            ..ServeOptions::default()
        })
    }

    fn keys(&self) -> Result<Vec<String>, CliError> {
        let mut keys = list(&self.api_key);
        if let Some(path) = &self.api_key_file {
            let text = input::of_file(path)?;
            let of_file = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
            keys.extend(of_file);
            if keys.is_empty() {
                return Err(format!("{}: no keys found: want one per line", path.display()).into());
            }
        }
        let most = ServeOptions::KEY_BYTES;
        match keys.iter().find(|key| key.len() > most) {
            Some(key) => Err(format!("want keys of at most {most} bytes, found {}", key.len()).into()),
            None => Ok(keys),
        }
    }
}

/// Reads the page from a folder.
fn local_page(folder: &Path) -> Result<LocalPage, CliError> {
    LocalPage::read(folder).map_err(|err| format!("--local-page: {err}").into())
}
