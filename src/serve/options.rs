//! Options of a server.

use std::path::PathBuf;
use std::time::Duration;

use super::adapter_folder::AdapterFolder;
use super::fetch_image::FetchImage;
use super::http::host::is_entry;
use super::local::LocalPage;
use super::slots::SlotLimits;

/// Files of a server's key and certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The private key, PEM.
    pub key: PathBuf,
    /// The certificate chain, PEM, starting with the server's own.
    pub certificates: PathBuf,
}

/// Options of a server that do not depend on its model.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Name of the model; `None` takes the one in its file.
    pub alias: Option<String>,
    /// Accepted API keys; without keys every client is allowed.
    pub keys: Vec<String>,
    /// Key and certificate for TLS, in builds with the feature `tls`; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Time limit of an engine step, after which the engine counts as hung and the server fails. `None`
    /// derives it from the size of the model.
    pub step_time: Option<Duration>,
    /// Called when the engine hangs, shortly after streams have been ended; for instance to end the process.
    pub on_hang: Option<fn()>,
    /// Origins of web pages that may send requests, besides the server's own; `*` allows all.
    pub origins: Vec<String>,
    /// Host names accepted in `Host`, besides addresses and local names, see [`is_host`](Self::is_host). If
    /// it is empty, a server that other machines reach accepts all private names, and with keys all names.
    pub hosts: Vec<String>,
    /// Name of an option in messages to clients, from its path such as `ServeOptions::hosts`.
    pub shown_option: fn(&str) -> String,
    /// Enables `/metrics`.
    pub metrics: bool,
    /// Enables `/slots`.
    pub slots: bool,
    /// Folder for saved slots; `None` disables saving.
    pub slot_folder: Option<PathBuf>,
    /// LoRA adapters that clients may load, if the server has a single model; `None` disables loading.
    pub lora_folder: Option<AdapterFolder>,
    /// Limits of the saved slots of each key.
    pub slot_limits: SlotLimits,
    /// The page that runs models in the browser, at `/local/`; `None` disables it.
    pub local_page: Option<LocalPage>,
    /// Chat template that overrides the file's: the name of a built-in one, or Jinja.
    pub template: Option<String>,
    /// Default maximum tokens of an answer; `None` is the rest of the context.
    pub max_tokens: Option<usize>,
    /// Default norm of embeddings, numbered as in [`normalise`](sterna_engine::normalise).
    pub embd_normalize: i32,
    /// Default of `cache_prompt`: whether prompts reuse pages of earlier ones.
    pub cache_prompt: bool,
    /// Reads images at http and https URLs in requests; `None` refuses such URLs.
    pub fetch_image: Option<FetchImage>,
    /// Bytes of host memory for KV pages of preempted sequences, to be copied back instead of recomputed.
    pub swap_bytes: usize,
    /// Maximum requests waiting for a slot.
    pub queue: usize,
    /// Maximum models loaded at a time, if there are several.
    pub models_max: usize,
    /// Maximum bytes of all loaded models, if there are several.
    pub models_bytes: u64,
    /// Maximum bytes of a request's body.
    pub max_body_bytes: usize,
    /// Maximum connections at a time.
    pub max_connections: usize,
    /// Time limit for the head of a request, and for idle connections.
    pub header_time: Duration,
    /// Time limit for the body of a request.
    pub body_time: Duration,
    /// Time limit for a client to read its answer.
    pub write_time: Duration,
    /// Idle time after which a stream sends a keep-alive.
    pub ping: Duration,
    /// Time for running requests to finish after the server has been told to stop.
    pub drain_time: Duration,
}

impl ServeOptions {
    /// Maximum length of a key, in bytes.
    pub const KEY_BYTES: usize = 256;

    /// True for a valid entry of [`hosts`](Self::hosts): a name, an address, `.NAME` for all names below a
    /// name, or `*` for all.
    pub fn is_host(entry: &str) -> bool {
        is_entry(entry)
    }

    /// The reason why no client could send a key, or every client could.
    pub fn key_fault(key: &str) -> Option<String> {
        match key.len() {
            0 => Some("is empty".into()),
            n if n > Self::KEY_BYTES => Some(format!("has {n} bytes: want at most {}", Self::KEY_BYTES)),
            _ if key.contains(char::is_whitespace) => Some("contains a space".into()),
            _ if key.bytes().all(|byte| byte.is_ascii_graphic()) => None,
            _ => Some("contains a character that HTTP headers cannot carry: want visible ASCII".into()),
        }
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            alias: None,
            keys: Vec::new(),
            tls: None,
            step_time: None,
            on_hang: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            shown_option: str::to_owned,
            metrics: false,
            slots: true,
            slot_folder: None,
            lora_folder: None,
            slot_limits: SlotLimits::default(),
            local_page: None,
            template: None,
            max_tokens: None,
            embd_normalize: 2,
            cache_prompt: true,
            fetch_image: None,
            swap_bytes: 1 << 30,
            queue: 64,
            models_max: 4,
            models_bytes: u64::MAX,
            max_body_bytes: 8 << 20,
            max_connections: 1024,
            header_time: Duration::from_secs(75),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            ping: Duration::from_secs(30),
            drain_time: Duration::from_secs(30),
        }
    }
}
