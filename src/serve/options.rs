//! What an operator says of a server.

use std::path::PathBuf;
use std::time::Duration;

use super::local::LocalPage;

/// Files of a server's key and certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The private key, PEM.
    pub key: PathBuf,
    /// The certificate and those that vouch for it, PEM, the server's own first.
    pub certificates: PathBuf,
}

/// Options of a server, whatever model it serves.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Name of the model; `None` takes the one in its file.
    pub alias: Option<String>,
    /// Keys of which a request must bring one; without keys every client may ask.
    pub keys: Vec<String>,
    /// Key and certificate for TLS, in builds with the feature `tls`; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Longest step of the engine before it counts as hung, and the server fails; `None` goes by
    /// the size of the model.
    pub step_time: Option<Duration>,
    /// Called when the engine hangs, a moment after streams were told: to end the process, say.
    pub on_hang: Option<fn()>,
    /// Origins of web pages that may ask, beside the server's own; `*` is all.
    pub origins: Vec<String>,
    /// Names by which the server may be called in `Host` if it listens on loopback, beside loopback's own.
    pub hosts: Vec<String>,
    /// `/metrics` answers.
    pub metrics: bool,
    /// `/slots` answers.
    pub slots: bool,
    /// Folder in which slots are saved; `None` saves none.
    pub slot_folder: Option<PathBuf>,
    /// The page that runs models in the browser, at `/local/`; `None` has none.
    pub local_page: Option<LocalPage>,
    /// Chat template in place of the file's: a built-in one's name or Jinja.
    pub template: Option<String>,
    /// Most tokens of an answer if the request does not say; `None` is as many as the context holds.
    pub max_tokens: Option<usize>,
    /// How embeddings are scaled if the request does not say, as [`normalise`](sterna_engine::normalise)
    /// counts.
    pub embd_normalize: i32,
    /// Prompts find pages of earlier ones if the request does not say.
    pub cache_prompt: bool,
    /// Bytes of memory for KV pages of sequences that have given them to others, so that they are copied back
    /// and not computed again.
    pub swap_bytes: usize,
    /// Most requests that wait for a slot.
    pub queue: usize,
    /// Most models that are loaded at a time, if there are several.
    pub models_max: usize,
    /// Most bytes that loaded models may take together, if there are several.
    pub models_bytes: u64,
    /// Most bytes of a request's body.
    pub max_body_bytes: usize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Longest time for the head of a request, and for silence between two.
    pub header_time: Duration,
    /// Longest time for the body of a request.
    pub body_time: Duration,
    /// Longest time that a client may leave an answer unread.
    pub write_time: Duration,
    /// Silence after which a stream says that it is still there.
    pub ping: Duration,
    /// Longest time that requests go on once the server has been told to end.
    pub drain_time: Duration,
}

impl ServeOptions {
    /// Longest key, in bytes.
    pub const KEY_BYTES: usize = 256;
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
            metrics: false,
            slots: true,
            slot_folder: None,
            local_page: None,
            template: None,
            max_tokens: None,
            embd_normalize: 2,
            cache_prompt: true,
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
