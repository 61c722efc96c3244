//! Requests to the hub and to the hosts that it redirects to: handling of redirects, of the token, and of
//! answers that are worth another try.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::http::HeaderMap;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::error::HubError;
use super::options::{HubOptions, Token};

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 10;
/// Longest pause before a retry that a server may request.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Error of a connection on which nothing arrived for [`HubOptions::silence`].
const SILENT: &str = "timed out waiting for data";
/// Maximum characters shown of a server's message.
const SHOWN_CHARS: usize = 300;

/// Stops a [`Hub`](super::Hub) from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stopped: Arc<AtomicBool>,
    agent: Agent,
}

impl Stopper {
    /// Stops running and later operations with [`HubError::Stopped`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.agent.clone().shutdown();
    }
}

/// Client of one hub.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: String,
    /// Origin that receives the token: scheme, host and port of the endpoint.
    origin: String,
    pub(super) token: Option<Token>,
    tries: u32,
    pause: Duration,
    stopped: Arc<AtomicBool>,
}

/// Failure of a request.
#[derive(Debug)]
pub(super) enum Fault {
    /// It may succeed later, after a pause if the server names one.
    Passing(HubError, Option<Duration>),
    /// It will not succeed.
    Final(HubError),
}

impl From<HubError> for Fault {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// An answer that is not a redirect, with any status.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// The host that answered, for messages.
    pub(super) host: String,
    /// True if that is the hub, not a host that it redirected to.
    pub(super) of_hub: bool,
    /// Hash of the file's content, if the hub sent it with the redirect.
    pub(super) linked_etag: Option<String>,
}

impl Answer {
    /// Text of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// `Content-Range: bytes START-END/TOTAL`; the total is `None` if it is `*`.
    pub(super) fn content_range(&self) -> Option<(Range<u64>, Option<u64>)> {
        let (range, total) = self.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        let (start, last) = range.split_once('-')?;
        let end = last.trim().parse::<u64>().ok()?.checked_add(1)?;
        Some((start.trim().parse().ok()?..end, total.trim().parse().ok()))
    }

    /// Bytes of the body.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// Error message of the server: its header for that, or the beginning of a text body.
    fn error_message(&mut self) -> String {
        let said = match self.header("x-error-message") {
            Some(said) => said.to_owned(),
            None => {
                let mut bytes = Vec::new();
                // A truncated body is good enough for a message.
                let _ = self.body.as_reader().take(4096).read_to_end(&mut bytes);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let json = serde_json::from_str::<serde_json::Value>(&text).ok();
                let error = json.and_then(|json| Some(json.get("error")?.as_str()?.to_owned()));
                // An HTML page is of no use in a message.
                error.unwrap_or_else(|| if text.contains('<') { String::new() } else { text })
            }
        };
        let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
        line.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect()
    }
}

/// Subject of a request, for messages.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) repo: &'a str,
    pub(super) revision: &'a str,
    pub(super) file: Option<&'a str>,
}

impl Client {
    pub(super) fn new(options: &HubOptions) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let origin = origin(&endpoint).ok_or_else(|| {
            HubError::Options("HF_ENDPOINT: want a URL that begins with https:// or http://".to_owned())
        })?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .accept_encoding("identity")
            .user_agent(concat!("sterna/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(options.silence))
            .timeout_connect(Some(options.silence))
            .timeout_per_read(Some(options.silence))
            .timeout_per_write(Some(options.silence));
        if let Some(path) = &options.certificates {
            let wrong = |why: String| HubError::Options(format!("{}: {why}", path.display()));
            let pem = std::fs::read(path).map_err(|err| wrong(err.to_string()))?;
            let items = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
                Ok(_) => None,
                Err(err) => Some(Err(err)),
            });
            let roots = items.collect::<Result<Vec<_>, _>>().map_err(|err| wrong(err.to_string()))?;
            if roots.is_empty() {
                return Err(wrong("contains no PEM certificate".to_owned()));
            }
            config =
                config.tls_config(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&roots)).build());
        }
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint,
            origin,
            token: options.token.clone(),
            tries: options.tries.max(1),
            pause: options.pause,
            stopped: Arc::new(AtomicBool::new(false)),
        })
    }

    pub(super) fn stopper(&self) -> Stopper {
        Stopper { stopped: Arc::clone(&self.stopped), agent: self.agent.clone() }
    }

    /// Returns [`HubError::Stopped`] after a stop.
    pub(super) fn check_stopped(&self) -> Result<(), HubError> {
        if self.stopped.load(Ordering::Relaxed) { Err(HubError::Stopped) } else { Ok(()) }
    }

    /// Host of the hub, for messages.
    pub(super) fn host(&self) -> String {
        host(&self.endpoint)
    }

    /// Sends a request and follows redirects. The token is sent only to the hub; redirects from https to http
    /// are rejected.
    pub(super) fn get(&self, url: &str, range: Option<&str>) -> Result<Answer, Fault> {
        let mut url = url.to_owned();
        let mut linked_etag = None;
        for _ in 0..=MAX_REDIRECTS {
            self.check_stopped()?;
            let of_hub = origin(&url).as_deref() == Some(&self.origin);
            let mut request = self.agent.get(&url);
            if let Some(range) = range {
                request = request.header("range", range);
            }
            if let Some(token) = self.token.as_ref().filter(|_| of_hub) {
                request = request.header("authorization", token.header());
            }
            let response = request.call().map_err(|err| self.fault(&url, err))?;
            let (parts, body) = response.into_parts();
            let (status, host) = (parts.status.as_u16(), host(&url));
            let answer = Answer { status, headers: parts.headers, body, host, of_hub, linked_etag: None };
            let bare = |etag: &str| etag.trim().trim_start_matches("W/").trim_matches('"').to_owned();
            if of_hub && linked_etag.is_none() {
                linked_etag = answer.header("x-linked-etag").map(bare);
            }
            if ![301, 302, 303, 307, 308].contains(&status) {
                return Ok(Answer { linked_etag, ..answer });
            }
            let wrong = |why: &str| HubError::Answer { host: answer.host.clone(), why: why.to_owned() };
            let to = answer.header("location").ok_or_else(|| wrong("a redirect without a Location"))?;
            let to = join(&url, to).ok_or_else(|| wrong("a redirect to a URL that is not http or https"))?;
            if url.starts_with("https://") && !to.starts_with("https://") {
                return Err(wrong("a redirect from https to http, which is not followed").into());
            }
            url = to;
        }
        let why = format!("more than {MAX_REDIRECTS} redirects");
        Err(HubError::Answer { host: host(&url), why }.into())
    }

    /// Error of a request to `url`.
    fn fault(&self, url: &str, err: ureq::Error) -> Fault {
        if let Err(stopped) = self.check_stopped() {
            return stopped.into();
        }
        let why = match &err {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => "invalid URL".to_owned(),
            ureq::Error::Timeout(_) => SILENT.to_owned(),
            ureq::Error::HostNotFound => "host not found; is the network up?".to_owned(),
            ureq::Error::Io(err) if err.kind() == std::io::ErrorKind::InvalidData => {
                format!("{err}; SSL_CERT_FILE sets the trusted certificates instead of Mozilla's")
            }
            err => err.to_string(),
        };
        let is_final = match &err {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => true,
            ureq::Error::Rustls(_) | ureq::Error::InvalidProxyUrl => true,
            // The certificate was rejected.
            ureq::Error::Io(err) => err.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        let error = HubError::Network { host: host(url), why };
        if is_final { Fault::Final(error) } else { Fault::Passing(error, None) }
    }

    /// Error of a truncated body from `host`.
    pub(super) fn broken(&self, host: &str, err: &std::io::Error) -> Fault {
        if let Err(stopped) = self.check_stopped() {
            return stopped.into();
        }
        let why = if is_silence(err) { SILENT.to_owned() } else { err.to_string() };
        Fault::Passing(HubError::Network { host: host.to_owned(), why }, None)
    }

    /// Accepts an answer of 200 or 206, and converts others to errors.
    pub(super) fn check(&self, mut answer: Answer, about: About<'_>) -> Result<Answer, Fault> {
        match answer.header("content-encoding") {
            Some(coding) if coding != "identity" && (200..300).contains(&answer.status) => {
                let coding = coding.escape_debug();
                let why = format!("unexpected Content-Encoding {coding}");
                return Err(HubError::Answer { host: answer.host, why }.into());
            }
            _ => {}
        }
        if [200, 206].contains(&answer.status) {
            return Ok(answer);
        }
        // A message of another host may contain parts of the signed URL.
        let said = if answer.of_hub { answer.error_message() } else { String::new() };
        let said = self.token.as_ref().map_or_else(|| said.clone(), |token| token.hide(&said));
        let (repo, has_token) = (about.repo.to_owned(), self.token.is_some());
        let (status, host) = (answer.status, answer.host.clone());
        if !answer.of_hub {
            let after = retry_after(&answer);
            let error = HubError::Status { host, status, said };
            // A signed URL may have expired: the hub then gives a new one.
            let passes = status == 401 || status == 403 || is_passing(status);
            return Err(if passes { Fault::Passing(error, after) } else { Fault::Final(error) });
        }
        let code = answer.header("x-error-code").unwrap_or_default();
        let page = || format!("{}/{repo}", self.endpoint);
        let error = match (code, status) {
            ("GatedRepo", _) => HubError::Gated { page: page(), repo, has_token },
            ("RepoNotFound", _) => HubError::NoRepo { repo, host, has_token },
            ("RevisionNotFound", _) => HubError::NoRevision { repo, revision: about.revision.to_owned() },
            ("EntryNotFound", _) => {
                HubError::NoFile { repo, file: about.file.unwrap_or_default().to_owned(), known: Vec::new() }
            }
            (_, 401) if has_token => HubError::Token { host, said },
            (_, 401) => HubError::NoRepo { repo, host, has_token },
            (_, 404) => match about.file {
                Some(file) => HubError::NoFile { repo, file: file.to_owned(), known: Vec::new() },
                None => HubError::NoRepo { repo, host, has_token },
            },
            _ => {
                let error = HubError::Status { host, status, said };
                let after = retry_after(&answer);
                return Err(if is_passing(status) {
                    Fault::Passing(error, after)
                } else {
                    Fault::Final(error)
                });
            }
        };
        Err(error.into())
    }

    /// Starts counting the tries of one operation.
    pub(super) fn tries(&self) -> Tries<'_> {
        Tries { client: self, left: self.tries, pause: self.pause }
    }
}

/// Remaining tries of one operation.
pub(super) struct Tries<'a> {
    client: &'a Client,
    left: u32,
    pause: Duration,
}

impl Tries<'_> {
    /// Resets the count after progress.
    pub(super) fn progress(&mut self) {
        (self.left, self.pause) = (self.client.tries, self.client.pause);
    }

    /// Waits before another try, and reports it to `tell`.
    ///
    /// # Errors
    /// A final error, the last error after all tries, [`HubError::Stopped`].
    pub(super) fn again(
        &mut self,
        fault: Fault,
        tell: impl FnOnce(&HubError, Duration),
    ) -> Result<(), HubError> {
        self.client.check_stopped()?;
        let (error, after) = match fault {
            Fault::Final(error) => return Err(error),
            Fault::Passing(error, after) => (error, after),
        };
        self.left -= 1;
        if self.left == 0 {
            return Err(error);
        }
        let pause = after.unwrap_or(self.pause).min(LONGEST_PAUSE);
        self.pause = (self.pause * 2).min(self.client.pause * 16);
        tell(&error, pause);
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.client.check_stopped()?;
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        self.client.check_stopped()
    }

    /// Limits the tries, for example while a user waits for the first answer.
    pub(super) fn at_most(mut self, n: u32) -> Self {
        self.left = self.left.min(n);
        self
    }
}

/// True if a read error is a timeout, which ureq wraps.
fn is_silence(err: &std::io::Error) -> bool {
    let inner = err.get_ref().and_then(|err| err.downcast_ref::<ureq::Error>());
    err.kind() == std::io::ErrorKind::TimedOut || matches!(inner, Some(ureq::Error::Timeout(_)))
}

fn is_passing(status: u16) -> bool {
    [408, 429, 500, 502, 503, 504].contains(&status)
}

/// The pause that an answer requests: seconds in `Retry-After`, or the `t=` of `ratelimit: "api";r=0;t=55`.
fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
    let limit = || answer.header("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="));
    seconds.or_else(|| limit()?.parse().ok()).map(Duration::from_secs)
}

/// Scheme, host and port of an http or https URL.
pub(super) fn origin(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let authority = rest.split(['/', '?', '#']).next()?.to_ascii_lowercase();
    let port = match scheme.as_str() {
        "https" => ":443",
        "http" => ":80",
        _ => return None,
    };
    let is_plain = !authority.is_empty() && !authority.contains(['@', '\\']);
    is_plain.then(|| format!("{scheme}://{}", authority.strip_suffix(port).unwrap_or(&authority)))
}

/// Host and port of a URL: the rest may be secret.
fn host(url: &str) -> String {
    let origin = origin(url).unwrap_or_default();
    origin.split_once("://").map_or_else(|| "an unnamed host".to_owned(), |(_, host)| host.to_owned())
}

/// The target of a redirect from `base`.
pub(super) fn join(base: &str, to: &str) -> Option<String> {
    let own = origin(base)?;
    if to.starts_with("//") {
        let (scheme, _) = own.split_once("://")?;
        let to = format!("{scheme}:{to}");
        return origin(&to).map(|_| to);
    }
    if let Some(at) = to.find("://").filter(|at| to[..*at].chars().all(|c| c.is_ascii_alphanumeric())) {
        return origin(to).filter(|_| at > 0).map(|_| to.to_owned());
    }
    if to.starts_with('/') {
        return Some(own + to);
    }
    let path = base.split(['?', '#']).next().unwrap_or(base);
    let folder = path.rfind('/').filter(|at| *at >= own.len()).map_or(own.as_str(), |at| &path[..at]);
    Some(format!("{folder}/{to}"))
}

/// Percent-encodes text for a URL; slashes are kept if `slashes`.
pub(super) fn encoded(text: &str, slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b'/' if slashes => out.push('/'),
            byte => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_browsers_go() {
        for (base, to, there) in [
            ("https://a.co/x/y?z", "https://b.co/q?s=1", Some("https://b.co/q?s=1")),
            ("https://a.co/x/y", "/q/r", Some("https://a.co/q/r")),
            ("https://a.co/x/y?z=/1", "q", Some("https://a.co/x/q")),
            ("https://a.co", "q", Some("https://a.co/q")),
            ("https://a.co/x", "//b.co/q", Some("https://b.co/q")),
            ("https://a.co/x", "ftp://b.co/q", None),
            ("https://a.co/x", "https://u:p@b.co/q", None),
            ("https://a.co/x", "file:///etc/passwd", None),
        ] {
            assert_eq!(join(base, to).as_deref(), there, "{base} {to}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("HTTPS://A.co:443/x").as_deref(), Some("https://a.co"));
        assert_eq!(origin("http://a.co:8080").as_deref(), Some("http://a.co:8080"));
        assert_ne!(origin("https://a.co.evil/x"), origin("https://a.co/x"));
        assert_ne!(origin("http://a.co/x"), origin("https://a.co/x"));
        for wrong in ["a.co", "https://", "https://a.co@evil/x", "https://a.co\\@evil/"] {
            assert_eq!(origin(wrong), None, "{wrong}");
        }
        assert_eq!(host("https://cdn.co/x?Signature=secret"), "cdn.co");
    }

    #[test]
    fn text_in_addresses() {
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b/ü?#%.gguf", true), "a%20b/%C3%BC%3F%23%25.gguf");
    }
}
