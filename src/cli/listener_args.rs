//! Flags of the HTTP listener: address, clients, endpoints and log.

use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::grpc_args::list;
use super::input::BYTE_ORDER_MARK;
use super::{CliError, names};
use crate::serve::{FetchImage, LocalPage, ServeOptions, TlsFiles};

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
    /// File with API keys, one per line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    #[arg(alias = "LLAMA_ARG_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Private key (PEM); with --ssl-cert-file the server speaks HTTPS (builds with the feature `tls`)
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    #[arg(aliases = ["LLAMA_ARG_SSL_KEY_FILE", "ssl-keyfile"])]
    ssl_key_file: Option<PathBuf>,
    /// Certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    #[arg(aliases = ["LLAMA_ARG_SSL_CERT_FILE", "ssl-certfile"])]
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
    /// Host names that requests may use, besides IP addresses and local names: comma-separated, .NAME for all
    /// names below NAME, * for all [default: private names if the server has no keys and does not listen on
    /// loopback, all if it has keys]
    #[arg(long, value_name = "LIST")]
    allowed_hosts: Option<String>,
    /// Read images in requests from http and https URLs of these hosts, never from private addresses:
    /// comma-separated, .NAME for all names below NAME, * for all [default: only data: URLs]
    #[arg(long, value_name = "LIST")]
    image_hosts: Option<String>,
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

/// The host names of a flag.
fn host_names(flag: &str, names: &Option<String>) -> Result<Vec<String>, CliError> {
    let hosts = list(names);
    match hosts.iter().find(|host| !ServeOptions::is_host(host)) {
        Some(host) => {
            let want = "want a name such as box.lan, .box.lan for all names below it, or *";
            Err(format!("{flag}: {want}; got {host}").into())
        }
        None => Ok(hosts),
    }
}

/// Reads images from these hosts.
#[cfg(feature = "hub")]
fn fetch_image(hosts: Vec<String>) -> Result<FetchImage, CliError> {
    /// Time for an image.
    const TIME: Duration = Duration::from_secs(10);
    let files = crate::hub::PublicFiles::new(hosts, crate::image::MAX_BYTES as u64, TIME);
    Ok(FetchImage::new(move |url| files.get(url)))
}

/// Reads images from these hosts.
#[cfg(not(feature = "hub"))]
fn fetch_image(_: Vec<String>) -> Result<FetchImage, CliError> {
    Err("--image-hosts: this build reads no URLs: it was built without the feature `hub`".into())
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
        let log = super::log::log(std::io::stderr, level, matches!(self.log_format, LogFormat::Json));
        // An embedding program may have set another log before.
        let _ = tracing::dispatcher::set_global_default(log);
    }

    /// Server options from these flags.
    ///
    /// # Errors
    /// A key file or page that cannot be read; an invalid key or host name.
    pub fn options(&self) -> Result<ServeOptions, CliError> {
        let tls = self.ssl_key_file.clone().zip(self.ssl_cert_file.clone());
        Ok(ServeOptions {
            keys: self.keys()?,
            tls: tls.map(|(key, certificates)| TlsFiles { key, certificates }),
            origins: list(&self.cors_origins),
            hosts: self.hosts()?,
            fetch_image: self.fetch_image()?,
            shown_option: names::flag,
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

    fn hosts(&self) -> Result<Vec<String>, CliError> {
        host_names("--allowed-hosts", &self.allowed_hosts)
    }

    fn fetch_image(&self) -> Result<Option<FetchImage>, CliError> {
        match host_names("--image-hosts", &self.image_hosts)? {
            hosts if hosts.is_empty() => Ok(None),
            hosts => fetch_image(hosts).map(Some),
        }
    }

    fn keys(&self) -> Result<Vec<String>, CliError> {
        let mut keys = Vec::new();
        // Messages do not contain keys.
        for (at, key) in self.api_key.iter().flat_map(|keys| keys.split(',')).map(str::trim).enumerate() {
            if let Some(fault) = ServeOptions::key_fault(key) {
                let out = match key.is_empty() {
                    true => "; leave out --api-key and LLAMA_API_KEY for a server without keys",
                    false => "",
                };
                return Err(format!("--api-key: key {} {fault}{out}", at + 1).into());
            }
            keys.push(key.to_owned());
        }
        if let Some(path) = &self.api_key_file {
            let name = path.display().to_string();
            let bytes = std::fs::read(path).map_err(|err| format!("{name}: {err}"))?;
            keys.extend(keys_of(&bytes, &name)?);
        }
        Ok(keys)
    }
}

/// The keys in a file called `name`. Invalid UTF-8 is an error only in a key.
fn keys_of(bytes: &[u8], name: &str) -> Result<Vec<String>, CliError> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.trim_start_matches(BYTE_ORDER_MARK).lines().map(str::trim).enumerate();
    let mut keys = Vec::new();
    for (at, key) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        match ServeOptions::key_fault(key) {
            Some(fault) => return Err(format!("{name}: line {}: the key {fault}", at + 1).into()),
            None => keys.push(key.to_owned()),
        }
    }
    match keys.is_empty() {
        true => Err(format!("{name}: no keys found: want one per line").into()),
        false => Ok(keys),
    }
}

/// Reads the page from a folder.
fn local_page(folder: &Path) -> Result<LocalPage, CliError> {
    LocalPage::read(folder).map_err(|err| format!("--local-page: {err}").into())
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn options(flags: &[&str]) -> Result<ServeOptions, String> {
        let command = ListenerArgs::augment_args(Command::new("serve")).mut_args(names::as_typed);
        let matches = command.get_matches_from([&["serve"][..], flags].concat());
        let flags = ListenerArgs::from_arg_matches(&matches).unwrap();
        flags.options().map_err(|err| err.to_string())
    }

    #[test]
    fn keys_that_no_client_can_send_are_refused() {
        assert_eq!(options(&["--api-key", "a, b"]).unwrap().keys, ["a", "b"]);
        assert!(options(&[]).unwrap().keys.is_empty());
        for (keys, number) in [("", 1), (",", 1), (" ", 1), ("secret,", 2), ("a,sec ret", 2), ("a,b,clé", 3)]
        {
            let said = options(&["--api-key", keys]).unwrap_err();
            assert!(said.contains(&format!("--api-key: key {number} ")) && !said.contains("sec"), "{said}");
        }
    }

    #[test]
    fn key_files_have_comments_and_no_invalid_keys() {
        let keys = |text: &str| keys_of(text.as_bytes(), "keys").map_err(|err| err.to_string());
        assert_eq!(keys("# of the team\nfirst\n\n  # more\n second# \n").unwrap(), ["first", "second#"]);
        for (text, what) in [
            ("", "no keys"),
            ("\n \n# comment\n", "no keys"),
            ("first\n\nsecret of ours\n", "line 3: the key contains a space"),
            ("secret # of Anna\n", "line 1: the key contains a space"),
            ("# x\nsecré\n", "line 2: the key contains a character"),
            ("secret\u{7f}\n", "line 1: the key contains a character"),
            (&"s".repeat(257), "line 1: the key has 257 bytes"),
        ] {
            let said = keys(text).unwrap_err();
            assert!(said.contains(what) && !said.contains("sec"), "{text:?}: {said}");
        }
        assert_eq!(keys_of(b"\xef\xbb\xbf# cl\xe9\r\nkey\r\n", "keys").unwrap(), ["key"]);
        let said = keys_of(b"key\nsecr\xe9\n", "keys").unwrap_err().to_string();
        assert!(said.contains("line 2: the key contains a character"), "{said}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let said = options(&["--api-key", "a", "--api-key-file", path]).unwrap_err();
        assert!(said.contains("no keys"), "{said}");
    }

    #[test]
    fn malformed_host_names_are_refused() {
        let hosts = options(&["--allowed-hosts", "box.lan, .lab.example,*"]).unwrap().hosts;
        assert_eq!(hosts, ["box.lan", ".lab.example", "*"]);
        let said = options(&["--allowed-hosts", "box.lan,http://llm.lan"]).unwrap_err();
        assert!(said.contains("--allowed-hosts") && said.contains("http://llm.lan"), "{said}");
        let said = options(&["--image-hosts", "https://x.y"]).unwrap_err();
        assert!(said.contains("--image-hosts") && said.contains("https://x.y"), "{said}");
        assert!(options(&[]).unwrap().fetch_image.is_none());
        if cfg!(feature = "hub") {
            assert!(options(&["--image-hosts", "x.y"]).unwrap().fetch_image.is_some());
        }
    }
}
