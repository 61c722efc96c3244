//! The body of a request: read and decoded within limits, and parsed as JSON whatever its content type is
//! (`curl -d` sends a form's).

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::decoding::{self, Coding, DecodeError};
use super::surrogates;
use crate::app::App;
use crate::error::ApiError;
use crate::family::Family;
use crate::shares::Share;

/// Bytes of a body that are not counted for the limit of all bodies.
const UNCOUNTED: usize = 64 << 10;
/// Larger bodies are parsed outside the HTTP threads.
const LARGE: usize = 256 << 10;
/// Bytes of a body per JSON value that it may have. A value takes 72 bytes of memory.
const BYTES_PER_VALUE: usize = 8;

/// A body that has arrived.
pub struct Arrived {
    bytes: Bytes,
    form: Form,
    /// Its share of the bytes of all bodies; small ones have none.
    share: Option<Share>,
}

/// Form of a body.
#[derive(Clone)]
struct Form {
    codings: Vec<Coding>,
    /// Maximum bytes after decoding.
    limit: usize,
    /// Lone surrogates are read as U+FFFD, as by Go's parser, and so by ollama.
    replaces_surrogates: bool,
}

/// A parsed body.
#[derive(Default)]
pub struct Parsed {
    /// The object.
    pub object: Map<String, Value>,
    /// Permit of a large body, to be held as long as the object.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Reads the body of a request from `sender`.
///
/// # Errors
/// 408 if it does not arrive in time, 413 if it is too large, 415 if its coding is not supported, 429 if the
/// bodies of all requests are too large.
pub async fn receive(
    app: &App,
    sender: &Arc<str>,
    request: hyper::Request<Body>,
) -> Result<Arrived, ApiError> {
    let form = Form {
        codings: decoding::codings(request.headers())?,
        limit: app.options.max_body_bytes,
        replaces_surrogates: Family::of(request.uri().path()) == Family::Ollama,
    };
    match tokio::time::timeout(app.options.body_time, read(app, sender, request)).await {
        Ok(read) => read.map(|(bytes, share)| Arrived { bytes: bytes.into(), form, share }),
        Err(_) => Err(ApiError::too_slow()),
    }
}

/// Reads the JSON object in the body of a request from `sender`.
///
/// # Errors
/// As [`receive`] and [`Arrived::parse`].
pub async fn object(
    app: &App,
    sender: &Arc<str>,
    request: hyper::Request<Body>,
) -> Result<Map<String, Value>, ApiError> {
    Ok(receive(app, sender, request).await?.parse(app).await?.object)
}

/// Reads the JSON list in the body of a request from `sender`, which must be small.
///
/// # Errors
/// As [`receive`]; 400 if it is not a JSON list, 413 if it is too large.
pub async fn list(
    app: &App,
    sender: &Arc<str>,
    request: hyper::Request<Body>,
) -> Result<Vec<Value>, ApiError> {
    let Arrived { bytes, form, .. } = receive(app, sender, request).await?;
    let form = Form { limit: form.limit.min(LARGE), ..form };
    match value(&form.decode(&bytes)?, form.limit)? {
        Value::Array(list) => Ok(list),
        _ => Err(ApiError::bad("the request must be a JSON list")),
    }
}

impl Arrived {
    /// True if it is parsed outside the HTTP threads for its length alone.
    pub fn is_large(&self) -> bool {
        self.bytes.len() > LARGE
    }

    /// Parses the JSON object in it.
    ///
    /// # Errors
    /// 400 if it is not a JSON object, 413 if it is too large, 429 if it waits and other bodies displace it.
    pub async fn parse(&self, app: &App) -> Result<Parsed, ApiError> {
        if !self.is_large() {
            let small = Form { limit: self.form.limit.min(LARGE), ..self.form.clone() };
            match small.parse(&self.bytes) {
                // It is larger than it was on the way, or has many values.
                Err(err) if err.status == 413 && self.form.limit > LARGE => {}
                parsed => return Ok(Parsed { object: parsed?, permit: None }),
            }
        }
        let permit = match &self.share {
            None => app.lanes.large().await,
            Some(share) => tokio::select! {
                permit = app.lanes.large() => permit,
                () = share.displaced() => return Err(ApiError::too_many_bytes()),
            },
        };
        if self.share.as_ref().is_some_and(|share| !share.start()) {
            return Err(ApiError::too_many_bytes());
        }
        let (bytes, form) = (self.bytes.clone(), self.form.clone());
        app.lanes.run_large(move || Ok(Parsed { object: form.parse(&bytes)?, permit: Some(permit) })).await
    }
}

impl Form {
    /// The bytes of the JSON text in a body.
    fn decode<'b>(&self, bytes: &'b [u8]) -> Result<Cow<'b, [u8]>, ApiError> {
        let mut json = match &self.codings[..] {
            [] => Cow::Borrowed(bytes),
            codings => Cow::Owned(decoding::decode(bytes, codings, self.limit).map_err(|err| match err {
                DecodeError::TooLarge => ApiError::too_large(self.limit),
                DecodeError::Broken(name, why) => {
                    ApiError::bad(format!("the body of the request is not {name}: {why}"))
                }
            })?),
        };
        if self.replaces_surrogates && surrogates::has_one(&json) {
            surrogates::replace(json.to_mut());
        }
        Ok(json)
    }

    /// Decodes and parses a body.
    fn parse(&self, bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
        parsed(&self.decode(bytes)?, self.limit)
    }
}

/// Parses a JSON object.
fn parsed(bytes: &[u8], limit: usize) -> Result<Map<String, Value>, ApiError> {
    let kind = match value(bytes, limit)? {
        Value::Object(map) => return Ok(map),
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
    };
    Err(ApiError::bad(format!("the request must be a JSON object, not {kind}")))
}

/// Parses a JSON value.
fn value(bytes: &[u8], limit: usize) -> Result<Value, ApiError> {
    // Some programs put a byte order mark at the start of all texts.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.is_empty() {
        return Err(ApiError::bad("the request has no body: want a JSON object"));
    }
    let most = limit / BYTES_PER_VALUE;
    // An object of two bytes counts as 6.
    if bytes.len() > most / 6 && n_values(bytes) > most {
        return Err(ApiError::too_many_values(most));
    }
    serde_json::from_slice(bytes).map_err(|err| {
        let why = surrogates::explained(bytes, &err);
        ApiError::bad(format!("the body of the request is not JSON: {why}"))
    })
}

/// Number of values in JSON. An object counts as 6, for the memory of its table.
fn n_values(json: &[u8]) -> usize {
    let (mut n, mut in_text, mut is_escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b',' | b':' | b'[' => n += 1,
            b'{' => n += 6,
            _ => {}
        }
    }
    n
}

async fn read(
    app: &App,
    sender: &Arc<str>,
    request: hyper::Request<Body>,
) -> Result<(Vec<u8>, Option<Share>), ApiError> {
    let limit = app.options.max_body_bytes;
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    if length > limit {
        return Err(ApiError::too_large(limit));
    }
    // A client may announce any length.
    let mut bytes = Vec::with_capacity(length.min(UNCOUNTED));
    let mut share: Option<Share> = None;
    let mut body = request.into_body();
    loop {
        let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let frame = match &share {
            None => next.await,
            Some(share) => tokio::select! {
                frame = next => frame,
                () = share.displaced() => return Err(ApiError::too_many_bytes()),
            },
        };
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|err| ApiError::bad(format!("the body of the request is incomplete: {err}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        bytes.extend_from_slice(&data);
        let has_room = match &share {
            None if bytes.len() <= UNCOUNTED => true,
            None => {
                share = app.bodies.take(sender, bytes.len());
                share.is_some()
            }
            Some(share) => share.grow(data.len()),
        };
        if !has_room {
            return Err(ApiError::too_many_bytes());
        }
    }
    Ok((bytes, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_body_are_counted() {
        assert_eq!(n_values(br#"{"a": [1, 2, "x,[{\"", null], "b\\": {}}"#), 1 + 6 + 2 + 1 + 4 + 6);
        let numbers = |n: usize| format!("{{\"a\":[1{}]}}", ",1".repeat(n - 1));
        let of = |text: String| parsed(text.as_bytes(), 8000);
        assert_eq!(of(numbers(900)).unwrap()["a"].as_array().unwrap().len(), 900);
        assert_eq!(of(numbers(1000)).unwrap_err().status, 413);
        assert_eq!(of(format!("{{\"a\":[0{}]}}", ",{}".repeat(200))).unwrap_err().status, 413);
        assert!(of(format!("{{\"a\":\"{}\"}}", ",".repeat(5000))).is_ok());
    }
}
