//! Checks of every request: its host, its origin and its key. Also logs requests.
//!
//! A server on loopback is reachable from every web page that its user visits, unless it checks `Host` (a
//! page can point its own domain at 127.0.0.1), `Origin` (a page can post text to other servers) and
//! `Sec-Fetch-Site` (a page can load images from other servers, without `Origin`).

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use subtle::ConstantTimeEq;

use crate::app::App;
use crate::error::ApiError;
use crate::family::Family;
use crate::options::ServeOptions;
use crate::page::ASSETS;

/// Name of a client's key. It does not depend on the other keys, and is usable as a folder name; empty on a
/// server without keys.
#[derive(Clone, Debug)]
pub struct Client(pub Arc<str>);

/// Maximum length of a key.
const KEY_BYTES: usize = ServeOptions::KEY_BYTES;

/// Passes a request on or refuses it, and logs it.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request<Body>, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let id = request_id(request.headers()).unwrap_or_else(|| app.name("req-"));
    let origin = request.headers().get("origin").cloned();
    let mut response = match check(&app, &request) {
        Ok(_) if method == Method::OPTIONS && origin.is_some() => preflight(request.headers()),
        Ok(client) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(err) => err.into_response(),
    };
    if let Some(err) = response.extensions().get::<ApiError>() {
        response = Family::of(&path).error(err);
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin.filter(|_| response.status() != StatusCode::FORBIDDEN) {
        let headers = response.headers_mut();
        headers.insert("access-control-allow-origin", origin);
        headers.insert("vary", HeaderValue::from_static("origin"));
        headers.insert("access-control-expose-headers", HeaderValue::from_static("x-request-id"));
    }
    let status = response.status().as_u16();
    app.metrics.on_response(status);
    let ms = begun.elapsed().as_millis() as u64;
    // The path may contain anything, including terminal escapes; the query may contain secrets.
    let shown: String = path.escape_debug().take(200).collect();
    tracing::info!(target: "sterna::access", id, %method, path = shown, status, ms);
    response
}

fn check(app: &App, request: &Request<Body>) -> Result<Client, ApiError> {
    let headers = request.headers();
    let mut hosts = headers.get_all("host").iter();
    let host = hosts.next().map(|host| host.to_str().unwrap_or("?"));
    if hosts.next().is_some() {
        return Err(ApiError::bad("the request has more than one `Host`"));
    }
    // A target that is a whole URL overrides `Host`.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let way_out = app.options.shown_option;
    if let Some(host) = host.into_iter().chain(target).find(|host| !app.hosts.accept(host)) {
        return Err(ApiError::forbidden(format!(
            "`{}` is not a name of this server; {} adds names",
            host.escape_debug().take(200).collect::<String>(),
            way_out("ServeOptions::hosts")
        )));
    }
    let (origins, path) = (&app.options.origins, request.uri().path());
    let all_listed = origins.iter().any(|known| known == "*");
    let mut is_listed = all_listed;
    for origin in headers.get_all("origin") {
        let origin = origin.to_str().unwrap_or("?");
        is_listed = all_listed || origins.iter().any(|known| known == origin);
        let is_own = host
            .is_some_and(|host| origin == format!("http://{host}") || origin == format!("https://{host}"));
        if !is_own && !is_listed {
            return Err(ApiError::forbidden(format!(
                "web pages from `{}` may not use this server; {} adds origins",
                origin.escape_debug().take(200).collect::<String>(),
                way_out("ServeOptions::origins")
            )));
        }
    }
    let is_open = matches!(path, "/health" | "/v1/health")
        || ASSETS.iter().any(|asset| asset.path == path)
        || path.starts_with("/local/");
    let is_cross_site = headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site");
    if is_cross_site && !is_listed && !is_open {
        return Err(ApiError::forbidden(format!(
            "web pages of other sites may only link to this server's own page; {} adds origins",
            way_out("ServeOptions::origins")
        )));
    }
    match client(&app.options.keys, headers) {
        Some(client) => Ok(client),
        None if is_open || request.method() == Method::OPTIONS => Ok(Client(Arc::from(""))),
        None => Err(ApiError::unauthorised()),
    }
}

/// The client whose key is in a request. Without keys all requests have the same client.
pub fn client(keys: &[String], headers: &HeaderMap) -> Option<Client> {
    if keys.is_empty() {
        return Some(Client(Arc::from("")));
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let given = bearer.or_else(|| text("x-api-key"))?;
    // Compares all bytes of all keys, in constant time.
    let given = padded(given)?;
    let mut found = None;
    for (at, key) in keys.iter().enumerate() {
        let is_same = padded(key).map(|key| bool::from(key[..].ct_eq(&given[..])));
        if is_same == Some(true) {
            found = Some(at);
        }
    }
    found.map(|at| Client(name(keys, at)))
}

/// Name of a key's client. It reveals 32 bits of the key to users who can see the saved files.
fn name(keys: &[String], at: usize) -> Arc<str> {
    let sum = |key: &String| crc32fast::hash(key.as_bytes());
    let own = sum(&keys[at]);
    match keys[..at].iter().filter(|key| sum(key) == own).count() {
        0 => Arc::from(format!("key-{own:08x}")),
        same => Arc::from(format!("key-{own:08x}-{same}")),
    }
}

/// A key after its length, in an array of fixed size.
fn padded(key: &str) -> Option<[u8; KEY_BYTES + 2]> {
    let mut bytes = [0; KEY_BYTES + 2];
    bytes.get_mut(2..2 + key.len())?.copy_from_slice(key.as_bytes());
    bytes[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
    Some(bytes)
}

/// The client's name for its request, if it is safe to write anywhere.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    ((1..=128).contains(&id.len()) && id.chars().all(is_plain)).then(|| id.to_owned())
}

/// Response to a preflight request: allows all requested headers. The origin has been checked, and clients
/// add their own headers (`x-stainless-os`, ...).
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert("access-control-allow-methods", HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert("access-control-max-age", HeaderValue::from_static("600"));
    if let Some(names) = asked.get("access-control-request-headers") {
        headers.insert("access-control-allow-headers", names.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_key_does_not_depend_on_the_others() {
        // Two keys with the same checksum.
        let keys = ["plumless", "key", "buckeroo"].map(str::to_owned);
        let names: Vec<Arc<str>> = (0..3).map(|at| name(&keys, at)).collect();
        assert_eq!(crc32fast::hash(b"plumless"), crc32fast::hash(b"buckeroo"));
        assert_eq!(*names[2], format!("{}-1", names[0]));
        assert_eq!(name(&keys[1..2], 0), names[1]);
    }

    #[test]
    fn keys_are_compared_whole() {
        let keys = ["secret".to_owned(), "other".to_owned()];
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            client(&keys, &headers).map(|client| client.0.to_string())
        };
        let (first, second) = (name(&keys, 0), name(&keys, 1));
        assert_ne!(first, second);
        assert_eq!(with("authorization", "Bearer secret").as_deref(), Some(&*first));
        assert_eq!(with("authorization", "bearer other").as_deref(), Some(&*second));
        assert_eq!(with("x-api-key", "other").as_deref(), Some(&*second));
        let long = "s".repeat(KEY_BYTES + 1);
        for wrong in
            ["Bearer secre", "Bearer secret1", "Bearer ", "secret", "Basic secret", &format!("Bearer {long}")]
        {
            assert_eq!(with("authorization", wrong), None, "{wrong}");
        }
        assert!(client(&keys, &HeaderMap::new()).is_none());
        assert!(client(&[], &HeaderMap::new()).is_some());
    }
}
