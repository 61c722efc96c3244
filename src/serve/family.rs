//! Families of endpoints, each with its own error format.

use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::error::{ApiError, OpenAiError};
use super::http::json::json;

/// The API that an endpoint belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// OpenAI and llama-server, which share their error format.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Ollama.
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

    /// An error as a response.
    pub fn error(self, err: &ApiError) -> Response {
        let mut response = err.clone().into_response();
        *response.body_mut() = json(&self.error_body(err)).into_body();
        response.headers_mut().remove("content-length");
        response.extensions_mut().remove::<ApiError>();
        response
    }

    /// An error as an object.
    pub fn error_body(self, err: &ApiError) -> ErrorBody<'_> {
        match self {
            Self::OpenAi => ErrorBody::OpenAi(err.body()),
            Self::Anthropic => {
                let kind = match err.status.as_u16() {
                    429 => "rate_limit_error",
                    500 => "api_error",
                    503 => "overloaded_error",
                    _ => err.kind,
                };
                let error = AnthropicErrorObject { kind, message: &err.message };
                ErrorBody::Anthropic(AnthropicError { kind: "error", error })
            }
            Self::Ollama => ErrorBody::Ollama(OllamaError { error: &err.message }),
        }
    }

    /// Schema of the family's errors.
    pub fn error_schema(self, schemas: &mut SchemaGenerator) -> Schema {
        match self {
            Self::OpenAi => schemas.subschema_for::<OpenAiError<'_>>(),
            Self::Anthropic => schemas.subschema_for::<AnthropicError<'_>>(),
            Self::Ollama => schemas.subschema_for::<OllamaError<'_>>(),
        }
    }
}

/// An error in the format of a family.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ErrorBody<'a> {
    /// OpenAI's format.
    OpenAi(OpenAiError<'a>),
    /// Anthropic's format.
    Anthropic(AnthropicError<'a>),
    /// Ollama's format.
    Ollama(OllamaError<'a>),
}

/// An error in Anthropic's format.
#[derive(Serialize, JsonSchema)]
pub struct AnthropicError<'a> {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    kind: &'static str,
    error: AnthropicErrorObject<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct AnthropicErrorObject<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

/// An error in ollama's format.
#[derive(Serialize, JsonSchema)]
pub struct OllamaError<'a> {
    error: &'a str,
}
