//! Families of endpoints, which say errors each in its own way.

use axum::response::{IntoResponse, Response};
use hyper::header::HeaderValue;
use serde_json::{Value, json};

use super::error::ApiError;

/// Whose API an endpoint is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's, and llama-server's, which has the same errors.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Family {
    /// Family of a path.
    pub fn of(path: &str) -> Self {
        match path {
            path if path.starts_with("/v1/messages") => Self::Anthropic,
            path if path.starts_with("/api/") => Self::Ollama,
            _ => Self::OpenAi,
        }
    }

    /// An error as an answer.
    pub fn error(self, err: &ApiError) -> Response {
        let mut response = err.clone().into_response();
        let body = self.error_body(err).to_string();
        *response.body_mut() = axum::body::Body::from(body);
        response.headers_mut().remove("content-length");
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        response.extensions_mut().remove::<ApiError>();
        response
    }

    /// An error as an object.
    pub fn error_body(self, err: &ApiError) -> Value {
        match self {
            Self::OpenAi => err.to_json(),
            Self::Anthropic => {
                let kind = match err.status.as_u16() {
                    429 => "rate_limit_error",
                    500 => "api_error",
                    503 => "overloaded_error",
                    _ => err.kind,
                };
                json!({ "type": "error", "error": { "type": kind, "message": err.message } })
            }
            Self::Ollama => json!({ "error": err.message }),
        }
    }
}
