//! A server in this process on a free port, and a minimal HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use sterna::engine::{Drafter, Engine, EngineOptions, Error, NgramLookup, SamplerOptions, Speculation};
use sterna::serve::{Companion, Loaded, ModelSource, Opened, ServeError, ServeOptions, Server, Stopper};

use super::openapi::Description;

/// The OpenAPI document of the server.
pub static DESCRIPTION: LazyLock<Description> =
    LazyLock::new(|| Description::new(TestServer::start(|_| ()).send(&get("/openapi.json")).ok()));

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

/// Slots of the test server.
pub const SLOTS: usize = 3;
/// Context length of each sequence.
pub const N_CTX: usize = 320;

/// N-gram drafts with a fixed low cost instead of a measured one.
#[derive(Debug)]
struct FreeDrafts;

impl Speculation for FreeDrafts {
    fn start(&self) -> Result<Box<dyn Drafter>, Error> {
        NgramLookup { size: 1, max: 8 }.start()
    }

    fn row_cost(&self) -> Option<f64> {
        Some(0.05)
    }
}

pub struct TestServer {
    pub address: SocketAddr,
    /// Address of gRPC.
    #[cfg_attr(not(feature = "grpc"), expect(dead_code))]
    pub grpc: Option<SocketAddr>,
    /// Address of `--kv-transfer`.
    pub pages: Option<SocketAddr>,
    /// Address of the KV cache events.
    #[cfg_attr(not(feature = "grpc"), expect(dead_code))]
    pub kv_events: Option<String>,
    /// Engine of a server with one model.
    engine: Option<Engine>,
    stopper: Stopper,
    ended: Option<std::thread::JoinHandle<Result<(), ServeError>>>,
}

/// An engine with `n_ctx` positions for each of [`SLOTS`] sequences.
pub fn engine(n_ctx: usize) -> Engine {
    engine_with(|options| EngineOptions { n_ctx: Some(n_ctx), ..options })
}

/// An engine with changed options.
pub fn engine_with(change: impl FnOnce(EngineOptions) -> EngineOptions) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        n_ctx: Some(N_CTX),
        threads: Some(1),
        n_seqs: SLOTS,
        batch: 64,
        ..EngineOptions::default()
    };
    Engine::open(path, &change(options)).unwrap()
}

impl TestServer {
    pub fn start(change: impl FnOnce(&mut ServeOptions)) -> Self {
        Self::with_engine(engine(N_CTX), change)
    }

    /// Starts a server without waiting until it is ready.
    #[cfg(any(feature = "grpc", feature = "tls"))]
    pub fn start_without_waiting(
        companions: Vec<Box<dyn Companion>>,
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        let mut options = ServeOptions::default();
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let loaded = Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None };
        let model = ModelSource::once("tiny", move || Ok(loaded));
        let server = Server::start(listener, options, companions, model);
        Self::without_waiting(server.unwrap(), None)
    }

    pub fn with_engine(engine: Engine, change: impl FnOnce(&mut ServeOptions)) -> Self {
        Self::with_companions(engine, Vec::new(), change)
    }

    /// Starts a server with services besides HTTP.
    pub fn with_companions(
        engine: Engine,
        companions: Vec<Box<dyn Companion>>,
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        let mut options = ServeOptions { metrics: true, ..ServeOptions::default() };
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Drafts are used if the engine has room for them.
        let speculation: Option<Arc<dyn Speculation>> = Some(Arc::new(FreeDrafts));
        let loaded = Loaded { engine: engine.clone(), sampler: SamplerOptions::default(), speculation };
        let model = ModelSource::once("tiny", move || Ok(loaded));
        let server = Server::start(listener, options, companions, model).unwrap();
        Self::of(server, Some(engine))
    }

    /// Starts a server whose model is loaded by `load`, and again when its adapters change.
    pub fn reloading(
        load: impl Fn() -> Engine + Send + Sync + 'static,
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        let mut options = ServeOptions::default();
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let model = ModelSource::new("tiny", move || {
            let engine = load();
            let loaded = Loaded { engine, sampler: SamplerOptions::default(), speculation: None };
            Ok(Opened { bytes: 0, load: Box::new(move || Ok(loaded)) })
        });
        Self::of(Server::start(listener, options, Vec::new(), model).unwrap(), None)
    }

    /// Starts a server with several models, from which requests choose by name.
    pub fn several(models: Vec<ModelSource>, change: impl FnOnce(&mut ServeOptions)) -> Self {
        let mut options = ServeOptions { metrics: true, ..ServeOptions::default() };
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self::of(Server::start_many(listener, options, Vec::new(), models).unwrap(), None)
    }

    /// The engine of a server with one model.
    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the server has one model")
    }

    fn without_waiting(server: Server, engine: Option<Engine>) -> Self {
        let (address, stopper) = (server.address(), server.stopper());
        let endpoint = |name: &str| server.endpoints().find(|endpoint| endpoint.service == name);
        let grpc = endpoint("gRPC").map(|grpc| grpc.address.parse().unwrap());
        let pages = endpoint("computed prompts").map(|pages| pages.address.parse().unwrap());
        let kv_events = endpoint("KV cache events").map(|events| events.address.clone());
        let ended = Some(std::thread::spawn(move || server.wait()));
        Self { address, grpc, pages, kv_events, engine, stopper, ended }
    }

    fn of(server: Server, engine: Option<Engine>) -> Self {
        let this = Self::without_waiting(server, engine);
        let begun = Instant::now();
        while this.send(&get("/health")).status != 200 {
            // Other programs may have the machine's cores.
            assert!(begun.elapsed() < Duration::from_secs(300), "the server does not become ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        this
    }

    /// Stops the server and returns its result.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.stopper.stop();
        self.ended.take().unwrap().join().unwrap()
    }

    /// Waits until the server ends by itself and returns its result.
    pub fn wait(mut self) -> Result<(), ServeError> {
        self.ended.take().unwrap().join().unwrap()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(&get(path)).checked("get", path)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, "", body.to_string().as_bytes())
    }

    /// Posts with more header lines, each with its line end.
    pub fn post_with(&self, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        send(&mut stream, path, headers, body);
        Answer::read(stream).checked("post", path)
    }

    /// Sends a request and returns the stream of its answer, unread.
    pub fn begin(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        send(&mut stream, path, "", body.to_string().as_bytes());
        BufReader::new(stream)
    }

    pub fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        Answer::read(stream)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// The value of a line of `/metrics`, for any model name.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let plain = |line: &str| match line.split_once("model_name=\"") {
            Some((before, rest)) => {
                let rest = rest.split_once('"').expect("a closing quote").1;
                format!("{before}{}", rest.trim_start_matches(',')).replace("{}", "")
            }
            None => line.to_owned(),
        };
        let mut lines = text.lines().map(plain);
        let line = lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()));
        line.unwrap_or_else(|| panic!("{name} is not in:\n{text}")).parse().unwrap()
    }

    /// Waits until `done` returns true.
    pub fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            // Other programs may have the machine's cores.
            assert!(begun.elapsed() < Duration::from_secs(300), "not within five minutes: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks that a plain request is still answered.
    pub fn still_answers(&self) {
        let answer = self.post("/completion", &serde_json::json!({ "prompt": "You", "n_predict": 2 }));
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(ended) = self.ended.take() {
            let ended = ended.join();
            assert!(std::thread::panicking() || ended.is_ok_and(|ended| ended.is_ok()));
        }
    }
}

/// Reads the log of a program that was started with `--port 0` until it is ready, and returns its address.
/// The line with `ready` and the line with the address come in either order.
pub fn started(lines: &mut impl Iterator<Item = String>, ready: &str) -> String {
    let (mut address, mut is_ready) = (None, false);
    while address.is_none() || !is_ready {
        let line = lines.next().expect("the program is ready before it ends");
        is_ready |= line.contains(ready);
        if let Some((_, rest)) = line.split_once("listening on http://") {
            address = rest.split(['"', ' ']).next().map(str::to_owned);
        }
    }
    address.expect("the loop has found it")
}

pub fn send(stream: &mut TcpStream, path: &str, headers: &str, body: &[u8]) {
    let request = request(path, headers, body);
    // A server that refuses a body does not have to read it.
    let _ = stream.write_all(&request);
}

/// The bytes of a request.
pub fn request(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let host = if headers.to_lowercase().contains("host:") { "" } else { "Host: localhost\r\n" };
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// An answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Header lines in lower case.
    pub head: Vec<String>,
    pub text: String,
}

impl Answer {
    pub fn read(stream: TcpStream) -> Self {
        let mut stream = BufReader::new(stream);
        let (status, head) = read_head(&mut stream);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let is_chunked = head.iter().any(|line| line == "transfer-encoding: chunked");
        let bytes = if is_chunked { unchunked(&rest) } else { rest };
        Self { status, head, text: String::from_utf8(bytes).unwrap() }
    }

    /// Checks the answer against the OpenAPI document.
    fn checked(self, method: &str, path: &str) -> Self {
        DESCRIPTION.check_response(method, path, self.status, self.header("content-type"), &self.text);
        self
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|err| panic!("{err}: {}", self.text))
    }

    /// JSON of an answer that must have status 200.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The error object of an answer that must have `status`.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.text);
        error
    }

    /// Data of server-sent events. Checks their framing.
    pub fn data(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.text);
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let events = self.text.strip_suffix("\n\n").unwrap_or_else(|| panic!("cut off: {:?}", self.text));
        let data = events.split("\n\n").filter(|event| *event != ":");
        data.map(|event| {
            let line = event.lines().find_map(|line| line.strip_prefix("data: "));
            line.unwrap_or_else(|| panic!("no data: {event:?}")).to_owned()
        })
        .collect()
    }

    /// Data as JSON, without the `[DONE]`, which must come last.
    pub fn chunks(&self) -> Vec<Value> {
        let mut data = self.data();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// Status and header lines in lower case. Skips `100 Continue`.
pub fn read_head(stream: &mut impl BufRead) -> (u16, Vec<String>) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_lowercase());
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    if status == Some(100) { read_head(stream) } else { (status.unwrap_or(0), lines) }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        bytes.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
    bytes
}
