//! OpenAI's responses API, stateless: clients send the whole conversation each time. `input.rs` reads it,
//! `tools.rs` reads the tools, and `output.rs` writes the answers.

mod input;
mod output;
mod tools;

use std::sync::Arc;

use axum::extract::Request;

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read, Running};
use crate::answer::InputTokens;
use crate::app::{App, now};
use crate::blocks::Reader;
use crate::error::ApiError;
use crate::fields::{Fields, request};
use crate::http::json::json;
use crate::http::stream::{Framing, answer, fold};
use crate::job::Job;
use crate::kinds::{Any, Array, Bool, Int, MAX_INT, Text};
use crate::model::Served;
use crate::sampling::{self, Generation, TOP_LOGPROBS};
use input::ResponsesInput;
use output::{Event, Events, Head, Repeatable, Repeated, ResponsesAnswer};
use sterna_tools::ParserOptions;
use tools::Names;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Creates a response (stateless)").body::<ResponsesRequest>();
    let operation = operation.answer::<ResponsesAnswer>().events::<Event>();
    to.post(&["/v1/responses", "/responses"], responses, &operation);
    let operation = Operation::new("Counts the tokens of an input").body::<ResponsesRequest>();
    let operation = operation.answer::<InputTokens>();
    to.post(&["/v1/responses/input_tokens", "/responses/input_tokens"], input_tokens, &operation);
}

request! {
    /// An input, to be answered.
    struct ResponsesRequest {
        ..OfModel,
        ..ResponsesInput,
        ..Repeatable,
        ..Generation,
        ..Running,
        max_output_tokens: Int(-2, MAX_INT),
        truncation: Text as { "enum": ["disabled"] },
        /// Not supported.
        background: Bool as { "const": false },
        /// Not supported: this server does not store responses.
        previous_response_id: Any as { "enum": [] },
        /// Not supported: this server does not store responses.
        conversation: Any as { "enum": [] },
        /// Not supported: this server does not store responses.
        prompt: Any as { "enum": [] },
        /// Not supported.
        top_logprobs: Int(0, TOP_LOGPROBS as i64) as { "maximum": 0 },
        /// Log-probabilities are not supported; other values are ignored.
        include: Array(64),
    }
}

struct ParsedRequest {
    job: Job,
    reading: ParserOptions,
    stream: bool,
    repeated: Repeated,
    names: Names,
}

impl ParsedRequest {
    fn of(read: &Read<ResponsesRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        refuse(&fields)?;
        let (chat, constraints, names) = input::read(&fields.part(), served)?;
        let mut options = sampling::generation(&fields.part(), served)?;
        let max_tokens = fields.max_output_tokens()?;
        let repeated = Repeated::new(&fields, &options.sampler);
        let (prompt, images, reading) = read.prompt_ids(chat, &constraints, &mut options)?;
        Ok(Self {
            job: Job { images, ..read.job(&fields.part(), vec![prompt], options, 1, max_tokens)? },
            reading,
            stream: fields.part::<Running>().stream()?.unwrap_or(false),
            repeated,
            names,
        })
    }
}

/// Refuses options that need a stateful server or are not supported.
fn refuse(fields: &Fields<'_, ResponsesRequest>) -> Result<(), ApiError> {
    for (name, given) in [
        ("previous_response_id", fields.previous_response_id()?),
        ("conversation", fields.conversation()?),
        ("prompt", fields.prompt()?),
    ] {
        if given.is_some() {
            let message =
                format!("`{name}`: this server does not store responses: send the conversation as `input`");
            return Err(ApiError::unsupported(name).with(message));
        }
    }
    if fields.background()?.unwrap_or(false) {
        return Err(ApiError::unsupported("background"));
    }
    if fields.truncation()?.is_some_and(|word| word != "disabled") {
        return Err(ApiError::unsupported("truncation"));
    }
    if fields.top_logprobs()?.is_some_and(|top| top > 0) {
        return Err(ApiError::unsupported("top_logprobs"));
    }
    let include = fields.include()?.unwrap_or_default();
    match include.iter().any(|what| what.as_str().is_some_and(|what| what.contains("logprobs"))) {
        true => Err(ApiError::unsupported("include")),
        false => Ok(()),
    }
}

async fn input_tokens(app: Arc<App>, request: Request) -> Answer {
    let count = Read::<ResponsesRequest>::of(&app, request).await?.work(|read, served| {
        let fields = read.fields();
        refuse(&fields)?;
        let (chat, constraints, _) = input::read(&fields.part(), served)?;
        chat.offering(&constraints, served).count(served)
    });
    Ok(json(&InputTokens::new(count.await?)))
}

async fn responses(app: Arc<App>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let ParsedRequest { reading, stream, repeated, names, .. } = parsed;
    let head = Head { id: app.name(""), created: now(), model, repeated, names };
    let mut events = Events::new(head, Reader::new(reading));
    if stream {
        return answer(&app.options, handle, Framing::Events, app.options.ping, events).await;
    }
    // The reader holds the items.
    fold(handle, &mut events, |_| ()).await?;
    Ok(json(&events.ended()))
}
