//! JSON responses.

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

/// A JSON response.
pub fn json(value: &impl Serialize) -> Response {
    response(text(value))
}

fn response(json: String) -> Response {
    let mut response = json.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A value as JSON.
pub fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("types of answers have texts as keys")
}
