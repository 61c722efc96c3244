//! A fake Hugging Face hub for tests: serves what huggingface.co does, on two local ports, with network
//! faults.
//!
//! One port is the hub: revisions, lists of files in pages of two, and redirects. The other is the host of
//! large files, which must never receive a token. Faults are queued; each applies to the next request whose
//! address contains a given text.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hub. It runs until the process ends.
pub struct HubServer {
    state: Arc<Mutex<State>>,
    hub: SocketAddr,
}

#[derive(Default)]
struct State {
    cdn: Option<SocketAddr>,
    hub: Option<SocketAddr>,
    repos: Vec<HubRepo>,
    faults: VecDeque<(String, HubFault)>,
    requests: Vec<HubRequest>,
}

/// A repository at one commit.
#[derive(Clone, Debug)]
pub struct HubRepo {
    /// `USER/NAME`.
    pub name: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// Branch or tag of the commit.
    pub revision: String,
    /// Path, content, and whether it is a large file.
    pub files: Vec<(String, Vec<u8>, bool)>,
    /// Token that it requires.
    pub token: Option<String>,
    /// True if its files require more than a token.
    pub gated: bool,
    /// New name, if the repository has moved.
    pub moved: Option<String>,
}

impl HubRepo {
    /// Creates a public repository on `main`.
    pub fn new(name: &str, commit: &str, files: &[(&str, &[u8])]) -> Self {
        let is_large = |path: &str| path.ends_with(".gguf") || path.ends_with(".safetensors");
        let file = |(path, bytes): &(&str, &[u8])| ((*path).to_owned(), bytes.to_vec(), is_large(path));
        Self {
            name: name.to_owned(),
            commit: commit.to_owned(),
            revision: "main".to_owned(),
            files: files.iter().map(file).collect(),
            token: None,
            gated: false,
            moved: None,
        }
    }
}

/// Fault in one request.
#[derive(Clone, Debug)]
pub enum HubFault {
    /// This status with these headers, each with its `\r\n`.
    Status(u16, &'static str),
    /// The connection ends after this number of bytes of the body.
    Cut(usize),
    /// The whole file, whatever range was requested.
    NoRange,
    /// The whole file, whatever range was requested, cut off after this number of bytes.
    NoRangeCut(usize),
    /// A different range than requested, with matching headers.
    WrongRange,
    /// One bit of the byte at this offset is flipped.
    Flip(usize),
    /// The file ends at this offset, with matching lengths.
    Short(usize),
    /// One byte more than the file's length, without a length header.
    Long,
    /// Headers, this number of bytes, and then nothing.
    Stall(usize),
    /// No response at all.
    Silent,
    /// A body declared as gzip.
    Gzip,
    /// This number of bytes every 20 ms, to the end.
    Slow(usize),
    /// Half of the body, and the rest once the flag is true.
    Until(Arc<AtomicBool>),
    /// A different etag than in the list.
    OtherEtag,
}

#[derive(Clone, Debug)]
pub struct HubRequest {
    /// True if it went to the host of large files.
    pub of_cdn: bool,
    pub target: String,
    /// Header `Range`.
    pub range: Option<String>,
    /// Header `Authorization`.
    pub authorization: Option<String>,
}

/// Etag of a file: SHA-256 for large files, git's SHA-1 for others.
pub fn etag(bytes: &[u8], is_large: bool) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match is_large {
        true => hex(&Sha256::digest(bytes)),
        false => {
            hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
        }
    }
}

impl Default for HubServer {
    fn default() -> Self {
        Self::start()
    }
}

impl HubServer {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let listen = |of_cdn: bool| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
            let address = listener.local_addr().expect("it listens");
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    // A client may hang up at any time.
                    std::thread::spawn(move || answer(&state, stream, of_cdn).ok());
                }
            });
            address
        };
        let (hub, cdn) = (listen(false), listen(true));
        {
            let mut state = lock(&state);
            (state.hub, state.cdn) = (Some(hub), Some(cdn));
        }
        Self { state, hub }
    }

    /// Value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Adds a repository. It overrides an earlier commit of the same one.
    pub fn add(&self, repo: HubRepo) {
        lock(&self.state).repos.insert(0, repo);
    }

    /// Applies a fault to the next request whose address contains `at`.
    pub fn fault(&self, at: &str, fault: HubFault) {
        lock(&self.state).faults.push_back((at.to_owned(), fault));
    }

    /// Number of faults not yet applied.
    pub fn n_faults(&self) -> usize {
        lock(&self.state).faults.len()
    }

    pub fn requests(&self) -> Vec<HubRequest> {
        lock(&self.state).requests.clone()
    }

    /// Asserts that no request to the host of large files contained a token.
    ///
    /// # Panics
    /// If one did.
    pub fn no_token_leaked(&self) {
        let leaks = |request: &HubRequest| request.of_cdn && request.authorization.is_some();
        let leaked: Vec<_> = self.requests().into_iter().filter(leaks).collect();
        assert!(leaked.is_empty(), "{leaked:?}");
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one request per connection.
fn answer(state: &Mutex<State>, stream: TcpStream, of_cdn: bool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = HubRequest { of_cdn, target, range: None, authorization: None };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            None => break,
            Some((name, value)) => match name.to_ascii_lowercase().as_str() {
                "range" => request.range = Some(value.trim().to_owned()),
                "authorization" => request.authorization = Some(value.trim().to_owned()),
                _ => {}
            },
        }
    }
    let (reply, fault) = {
        let mut state = lock(state);
        state.requests.push(request.clone());
        let at = state.faults.iter().position(|(at, _)| request.target.contains(at.as_str()));
        let fault = at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault);
        (state.reply(&request), fault)
    };
    send(stream, reply, &request, fault)
}

struct Reply {
    status: u16,
    headers: String,
    body: Vec<u8>,
    /// True if ranges of it can be requested.
    is_file: bool,
}

impl Reply {
    fn error(status: u16, code: &str) -> Self {
        let headers = format!("X-Error-Code: {code}\r\nX-Error-Message: about {code}\r\n");
        Self { status, headers, body: b"{}".to_vec(), is_file: false }
    }

    fn json(body: String, headers: String) -> Self {
        Self { status: 200, headers, body: body.into_bytes(), is_file: false }
    }

    fn redirect(status: u16, to: &str, headers: &str) -> Self {
        let headers = format!("Location: {to}\r\n{headers}");
        Self { status, headers, body: b"moved".to_vec(), is_file: false }
    }

    fn file(body: &[u8]) -> Self {
        Self { status: 200, headers: String::new(), body: body.to_vec(), is_file: true }
    }
}

impl State {
    fn reply(&self, request: &HubRequest) -> Reply {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        if request.of_cdn {
            let wanted = path.trim_start_matches("/cdn/");
            let mut files = self.repos.iter().flat_map(|repo| &repo.files);
            let found = files.find(|(_, bytes, is_large)| *is_large && etag(bytes, true) == wanted);
            let is_signed = query == "Signature=secret";
            return match found.filter(|_| is_signed) {
                Some((_, bytes, _)) => Reply::file(bytes),
                None => {
                    Reply { status: 403, headers: String::new(), body: b"<Error/>".to_vec(), is_file: false }
                }
            };
        }
        let (is_api, rest) = match path.strip_prefix("/api/models/") {
            Some(rest) => (true, rest),
            None => (false, path.trim_start_matches('/').trim_start_matches("small/")),
        };
        let parts: Vec<&str> = rest.splitn(5, '/').collect();
        let [user, name, what, revision, ..] = parts[..] else { return Reply::error(404, "") };
        let repo = format!("{user}/{name}");
        let revision = revision.replace("%2F", "/");
        let of_name = |known: &&HubRepo| known.name == repo;
        let Some(known) = self.repos.iter().find(of_name) else { return Reply::error(401, "RepoNotFound") };
        if let Some(to) = &known.moved {
            return Reply::redirect(307, &request.target.replacen(&repo, to, 1), "");
        }
        let bearer = known.token.as_ref().map(|token| format!("Bearer {token}"));
        let is_let_in = bearer.is_none() || request.authorization == bearer;
        if !is_let_in && !known.gated {
            return Reply::error(if request.authorization.is_some() { 404 } else { 401 }, "RepoNotFound");
        }
        let at =
            |known: &&HubRepo| known.name == repo && [&known.revision, &known.commit].contains(&&revision);
        let Some(known) = self.repos.iter().find(at) else { return Reply::error(404, "RevisionNotFound") };
        match (is_api, what) {
            (true, "revision") => Reply::json(format!("{{\"sha\": \"{}\"}}", known.commit), String::new()),
            (true, "tree") => self.tree(known, query),
            (false, "resolve") => {
                let path = decoded(parts.get(4).unwrap_or(&""));
                let Some((_, bytes, is_large)) = known.files.iter().find(|(known, ..)| *known == path) else {
                    return Reply::error(404, "EntryNotFound");
                };
                if !is_let_in {
                    let status = if request.authorization.is_some() { 403 } else { 401 };
                    return Reply::error(status, "GatedRepo");
                }
                let tag = etag(bytes, *is_large);
                let of_commit = format!("X-Repo-Commit: {}\r\n", known.commit);
                if *is_large {
                    let size = bytes.len();
                    let headers = format!("{of_commit}X-Linked-ETag: \"{tag}\"\r\nX-Linked-Size: {size}\r\n");
                    let cdn = self.cdn.expect("it listens");
                    return Reply::redirect(
                        302,
                        &format!("http://{cdn}/cdn/{tag}?Signature=secret"),
                        &headers,
                    );
                }
                match request.target.starts_with("/small/") {
                    true => {
                        Reply { headers: format!("{of_commit}ETag: \"{tag}\"\r\n"), ..Reply::file(bytes) }
                    }
                    false => Reply::redirect(307, &format!("/small{}", request.target), &of_commit),
                }
            }
            _ => Reply::error(404, ""),
        }
    }

    fn tree(&self, repo: &HubRepo, query: &str) -> Reply {
        let cursor = query.split('&').find_map(|param| param.strip_prefix("cursor="));
        let from = cursor.and_then(|cursor| cursor.parse::<usize>().ok()).unwrap_or(0);
        let entry = |(path, bytes, is_large): &(String, Vec<u8>, bool)| {
            let (size, sha1) = (bytes.len(), etag(bytes, false));
            let path = path.replace('\\', "\\\\");
            let lfs = match is_large {
                true => format!(", \"lfs\": {{\"oid\": \"{}\", \"size\": {size}}}", etag(bytes, true)),
                false => String::new(),
            };
            format!(
                "{{\"type\": \"file\", \"path\": \"{path}\", \"size\": {size}, \"oid\": \"{sha1}\"{lfs}}}"
            )
        };
        let entries: Vec<String> = repo.files.iter().skip(from).take(2).map(entry).collect();
        let hub = self.hub.expect("it listens");
        let (name, commit, next) = (&repo.name, &repo.commit, from + 2);
        let link = match next < repo.files.len() {
            true => {
                let url =
                    format!("http://{hub}/api/models/{name}/tree/{commit}?recursive=true&cursor={next}");
                format!("Link: <{url}>; rel=\"next\"\r\n")
            }
            false => String::new(),
        };
        Reply::json(format!("[{}]", entries.join(", ")), link)
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = (*first == b'%').then(|| std::str::from_utf8(tail.get(..2)?).ok()).flatten();
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Start and end of `bytes=START-[LAST]`.
fn range(text: &str, size: usize) -> Option<(usize, usize)> {
    let (start, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let end = if last.is_empty() { size } else { last.parse::<usize>().ok()? + 1 };
    Some((start.parse().ok()?, end.min(size)))
}

fn send(
    mut stream: TcpStream,
    reply: Reply,
    request: &HubRequest,
    fault: Option<HubFault>,
) -> std::io::Result<()> {
    let Reply { mut status, mut headers, mut body, is_file } = reply;
    let asked = request.range.as_deref().filter(|_| is_file);
    match &fault {
        Some(HubFault::Status(code, more)) => {
            (status, headers, body) = (*code, (*more).to_owned(), b"a fault".to_vec());
        }
        Some(HubFault::Flip(at)) if is_file => body[*at] ^= 4,
        Some(HubFault::Short(n)) if is_file => body.truncate(*n),
        Some(HubFault::Long) if is_file => body.push(7),
        Some(HubFault::Gzip) => headers += "Content-Encoding: gzip\r\n",
        Some(HubFault::OtherEtag) => {
            headers = headers.replace("X-Linked-ETag: \"", "X-Linked-ETag: \"0");
        }
        _ => {}
    }
    let ignores = matches!(fault, Some(HubFault::NoRange | HubFault::NoRangeCut(_) | HubFault::Status(..)));
    if let Some((start, end)) = asked.filter(|_| !ignores).and_then(|asked| range(asked, body.len())) {
        let total = body.len();
        if start >= end {
            (status, body) = (416, Vec::new());
            headers += &format!("Content-Range: bytes */{total}\r\n");
        } else {
            let moved = usize::from(matches!(fault, Some(HubFault::WrongRange)));
            (status, body) = (206, body[start..end].to_vec());
            let (first, last) = (start - moved.min(start), end - 1 - moved);
            headers += &format!("Content-Range: bytes {first}-{last}/{total}\r\n");
        }
    }
    // Wait until the client has disconnected.
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    if matches!(fault, Some(HubFault::Silent)) {
        let _gone = stream.read(&mut [0]);
        return Ok(());
    }
    let mut head = format!("HTTP/1.1 {status} Said\r\nConnection: close\r\n{headers}");
    if !matches!(fault, Some(HubFault::Long)) {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    match fault {
        Some(HubFault::Cut(n) | HubFault::NoRangeCut(n)) => stream.write_all(&body[..n.min(body.len())])?,
        Some(HubFault::Stall(n)) => {
            stream.write_all(&body[..n.min(body.len())])?;
            let _gone = stream.read(&mut [0]);
        }
        Some(HubFault::Until(flag)) => {
            let (half, rest) = body.split_at(body.len() / 2);
            stream.write_all(half)?;
            while !flag.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stream.write_all(rest)?;
        }
        Some(HubFault::Slow(n)) => {
            for piece in body.chunks(n) {
                stream.write_all(piece)?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        _ => stream.write_all(&body)?,
    }
    stream.flush()
}
