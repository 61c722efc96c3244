//! The body of a request: read within limits, and parsed as JSON whatever its content type is (`curl -d`
//! sends a form's).

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use serde_json::{Map, Value};

use super::surrogates;
use crate::error::ApiError;
use crate::family::Family;
use crate::options::ServeOptions;

/// Reads the JSON object in the body of a request.
///
/// # Errors
/// 400 if it is not a JSON object, 408 if the body does not arrive in time, 413 if it is too large.
pub async fn object(
    options: &ServeOptions,
    request: hyper::Request<Body>,
) -> Result<Map<String, Value>, ApiError> {
    let is_ollama = Family::of(request.uri().path()) == Family::Ollama;
    let mut bytes = match tokio::time::timeout(options.body_time, read(options.max_body_bytes, request)).await
    {
        Ok(bytes) => bytes?,
        Err(_) => return Err(ApiError::too_slow()),
    };
    // Go's parser, and so ollama's, reads them as U+FFFD.
    if is_ollama {
        surrogates::replace(&mut bytes);
    }
    // Some programs put a byte order mark at the start of all texts.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    if bytes.is_empty() {
        return Err(ApiError::bad("the request has no body: want a JSON object"));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|err| {
        let why = surrogates::explained(bytes, &err);
        ApiError::bad(format!("the body of the request is not JSON: {why}"))
    })?;
    let kind = match value {
        Value::Object(map) => return Ok(map),
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
    };
    Err(ApiError::bad(format!("the request must be a JSON object, not {kind}")))
}

async fn read(limit: usize, request: hyper::Request<Body>) -> Result<Vec<u8>, ApiError> {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    if length > limit {
        return Err(ApiError::too_large(limit));
    }
    // A client may announce any length.
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    let mut body = request.into_body();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame =
            frame.map_err(|err| ApiError::bad(format!("the body of the request is incomplete: {err}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}
