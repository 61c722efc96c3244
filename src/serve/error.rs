//! Errors for clients, and failures of the server for its operator.

use std::io;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::http::json::json;

/// Codings of bodies that `http/decoding.rs` supports, as in `Accept-Encoding`.
const ACCEPTED: &str = "gzip, deflate, br, zstd, identity";

/// Failure that ends a server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server could not be set up.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its only model could not be loaded.
    #[error(transparent)]
    Load(Box<dyn std::error::Error + Send + Sync>),
    /// The engine hit a bug.
    #[error("the engine thread panicked: {0}")]
    Panicked(String),
    /// A step of the engine did not end in time.
    #[error("the engine hangs: a step has taken more than {} s", .0.as_secs_f64())]
    Hung(Duration),
}

/// An error with its status, in OpenAI's terms. Endpoint families with other error formats convert it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// Type in OpenAI's format, such as `invalid_request_error`.
    pub kind: &'static str,
    /// Code for programs.
    pub code: Option<&'static str>,
    /// The field that is wrong.
    pub param: Option<String>,
    /// Text that contains what was expected, what was found, and where.
    pub message: String,
    /// Tokens of a prompt that is too long, and the context length.
    pub lengths: Option<(usize, usize)>,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, kind, code: None, param: None, message, lengths: None, retry_after: None }
    }

    /// The request is invalid.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field is invalid; `message` says why, and names the field.
    pub fn in_field(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(name.into()), ..Self::bad(message) }
    }

    /// A field has a value that is not allowed.
    pub fn field(name: impl Into<String>, want: &str, got: &Value) -> Self {
        let name = name.into();
        let mut shown = got.to_string();
        if shown.len() > 80 {
            let end = (0..=77).rev().find(|&at| shown.is_char_boundary(at)).unwrap_or(0);
            shown.truncate(end);
            shown += "...";
        }
        let message = format!("`{name}`: want {want}, got {shown}");
        Self::in_field(name, message)
    }

    /// A required field is missing.
    pub fn missing(name: &str, want: &str) -> Self {
        Self::in_field(name, format!("`{name}` is missing: want {want}"))
    }

    /// A field asks for something that is not supported.
    pub fn unsupported(name: impl Into<String>) -> Self {
        let name = name.into();
        let message = format!("`{name}` is not supported yet");
        Self { code: Some("unsupported_parameter"), ..Self::in_field(name, message) }
    }

    /// The error with another message.
    #[must_use]
    pub fn with(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// The prompt leaves no room for an answer.
    pub fn too_long(n_prompt: usize, n_ctx: usize) -> Self {
        // Contains all phrases that clients look for: Anthropic's, OpenAI's and llama-server's.
        let message = format!(
            "prompt is too long: {n_prompt} tokens > {} maximum; context_length_exceeded: this model's \
             maximum context length is {n_ctx} tokens, and the request of {n_prompt} tokens exceeds the \
             available context size",
            n_ctx.saturating_sub(1)
        );
        Self { code: Some("context_length_exceeded"), lengths: Some((n_prompt, n_ctx)), ..Self::bad(message) }
    }

    /// A text to embed or score is longer than the context; `way_out` says how to truncate it.
    pub fn text_too_long(name: String, n_tokens: usize, n_ctx: usize, way_out: &str) -> Self {
        let message = format!(
            "`{name}` is too long: {n_tokens} tokens; context_length_exceeded: this model's maximum context \
             length is {n_ctx} tokens. {way_out}"
        );
        let (code, lengths) = (Some("context_length_exceeded"), Some((n_tokens, n_ctx)));
        Self { code, lengths, ..Self::in_field(name, message) }
    }

    /// The model does not generate text.
    pub fn no_text(architecture: &str) -> Self {
        let message = format!(
            "this model (`{architecture}`) only makes embeddings: use /v1/embeddings, or \
             /v1/rerank if it ranks"
        );
        Self { code: Some("unsupported_model"), ..Self::in_field("model", message) }
    }

    /// The key is missing or wrong.
    pub fn unauthorised() -> Self {
        let message = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`";
        let code = Some("invalid_api_key");
        Self { code, ..Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message) }
    }

    /// The request comes from a place that is not allowed.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// The resource does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// The request names an unknown model.
    pub fn unknown_model(name: &str) -> Self {
        let shown: String = name.escape_debug().take(80).collect();
        let message = format!("The model `{shown}` does not exist: /v1/models lists the models");
        Self { code: Some("model_not_found"), param: Some("model".into()), ..Self::not_found(message) }
    }

    /// The path exists, but not with this method.
    pub fn wrong_method() -> Self {
        let message = "this path does not support this method; the header Allow lists the supported ones";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// The request did not arrive in time.
    pub fn too_slow() -> Self {
        let message = "the body of the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// The body is too large.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body of the request is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// The body has too many JSON values.
    pub fn too_many_values(most: usize) -> Self {
        let message = format!(
            "the body of the request has too many JSON values for a server that keeps {most} (an object \
             counts as 6): send fewer texts or tokens in a request"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// The coding of the body is not supported.
    pub fn unsupported_coding(given: &str) -> Self {
        let shown: String = given.escape_debug().take(80).collect();
        let message =
            format!("the `Content-Encoding` {shown} is not supported: want at most four of {ACCEPTED}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// The bodies of all requests together are too large, and this client's are the largest.
    pub fn too_many_bytes() -> Self {
        let message = "the server holds too many large requests of this client; try again in 2 s";
        Self {
            code: Some("too_many_bytes"),
            retry_after: Some(2),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// A request of a client with fewer requests has got the place in the queue.
    pub fn displaced() -> Self {
        let message = "the queue is full, and its place is needed by a client with fewer requests; try again \
                       in 2 s";
        Self {
            code: Some("queue_full"),
            retry_after: Some(2),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// Too many requests are waiting.
    pub fn queue_full(waiting: usize, retry_after: u32) -> Self {
        let message = format!("{waiting} requests are waiting already; try again in {retry_after} s");
        Self {
            code: Some("queue_full"),
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// The endpoint is disabled, or not part of this build.
    pub fn not_here(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// The model is loading, or the server is shutting down.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(2),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
        }
    }

    /// An internal error.
    pub fn ours(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The error in OpenAI's format.
    pub fn body(&self) -> OpenAiError<'_> {
        OpenAiError {
            error: ErrorObject {
                message: &self.message,
                kind: self.kind,
                param: self.param.as_deref(),
                code: self.code,
                n_prompt_tokens: self.lengths.map(|(n_prompt, _)| n_prompt),
                n_ctx: self.lengths.map(|(_, n_ctx)| n_ctx),
            },
        }
    }
}

/// An error in OpenAI's format.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct OpenAiError<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field that is wrong.
    param: Option<&'a str>,
    code: Option<&'static str>,
    /// Tokens of a prompt that is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// The context length in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<usize>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json(&self.body());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert("retry-after", seconds.into());
        }
        if self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            headers.insert("accept-encoding", hyper::header::HeaderValue::from_static(ACCEPTED));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert("www-authenticate", hyper::header::HeaderValue::from_static("Bearer"));
        }
        // Families with other error formats read it from here.
        response.extensions_mut().insert(self);
        response
    }
}
