//! Families of endpoints, which say errors each in its own way.

use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::error::{ApiError, OpenAiError};
use super::http::json::json;

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

    /// Schema of its errors.
    pub fn error_schema(self, schemas: &mut SchemaGenerator) -> Schema {
        match self {
            Self::OpenAi => schemas.subschema_for::<OpenAiError<'_>>(),
            Self::Anthropic => schemas.subschema_for::<AnthropicError<'_>>(),
            Self::Ollama => schemas.subschema_for::<OllamaError<'_>>(),
        }
    }
}

/// An error in the form of a family.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ErrorBody<'a> {
    /// OpenAI's form.
    OpenAi(OpenAiError<'a>),
    /// Anthropic's form.
    Anthropic(AnthropicError<'a>),
    /// Ollama's form.
    Ollama(OllamaError<'a>),
}

/// Anthropic's form of an error.
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

/// Ollama's form of an error.
#[derive(Serialize, JsonSchema)]
pub struct OllamaError<'a> {
    error: &'a str,
}
