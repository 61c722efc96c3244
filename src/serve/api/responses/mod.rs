//! OpenAI's responses, without memory: clients send the whole conversation each time. `input.rs` reads it,
//! `tools.rs` the tools; `output.rs` is what they are answered.

mod input;
mod output;
mod tools;

use std::sync::Arc;

use axum::extract::{Request, State};

use super::openapi::{Endpoints, Operation};
use super::{Answer, Read};
use crate::answer::InputTokens;
use crate::app::{App, now};
use crate::blocks::Reader;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json::json;
use crate::http::stream::{Framing, answer, fold};
use crate::job::Job;
use crate::model::Served;
use crate::sampling;
use output::{Event, Events, Head, Repeated, ResponsesAnswer};
use sterna_tools::ParserOptions;
use tools::Names;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("A response, without memory of earlier ones").body("ResponsesRequest");
    let operation = operation.answer::<ResponsesAnswer>().events::<Event>();
    to.post(&["/v1/responses", "/responses"], responses, &operation);
    let operation = Operation::new("How many tokens an input has").body("ResponsesRequest");
    let operation = operation.answer::<InputTokens>();
    to.post(&["/v1/responses/input_tokens", "/responses/input_tokens"], input_tokens, &operation);
}

/// A parsed request.
struct ParsedRequest {
    job: Job,
    reading: ParserOptions,
    stream: bool,
    repeated: Repeated,
    names: Names,
}

impl ParsedRequest {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        refuse(fields)?;
        let (chat, constraints, names) = input::read(fields, served)?;
        let mut options = sampling::generation(fields, served)?;
        let max_tokens = sampling::max_tokens(fields, &["max_output_tokens"])?;
        let repeated = Repeated::new(fields, &options.sampler);
        let (prompt, reading) = read.turn(served, chat, &constraints, &mut options)?;
        Ok(Self {
            job: read.job(served, vec![prompt], options, 1, max_tokens)?,
            reading,
            stream: fields.bool("stream")?.unwrap_or(false),
            repeated,
            names,
        })
    }
}

/// Refuses what wants a server with a memory, or is not here.
fn refuse(fields: &Fields) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(name).is_some() {
            let message =
                format!("`{name}`: this server does not store responses: send the conversation as `input`");
            return Err(ApiError::unsupported(name).with(message));
        }
    }
    if fields.bool("background")?.unwrap_or(false) {
        return Err(ApiError::unsupported("background"));
    }
    if fields.text("truncation")?.is_some_and(|word| word != "disabled") {
        return Err(ApiError::unsupported("truncation"));
    }
    if fields.count("top_logprobs", 0, sampling::TOP_LOGPROBS)?.is_some_and(|top| top > 0) {
        return Err(ApiError::unsupported("top_logprobs"));
    }
    let include = fields.list("include", 64)?.unwrap_or_default();
    match include.iter().any(|what| what.as_str().is_some_and(|what| what.contains("logprobs"))) {
        true => Err(ApiError::unsupported("include")),
        false => Ok(()),
    }
}

async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Answer {
    let count = Read::of(&app, request).await?.work(|read, served| {
        refuse(&read.fields)?;
        let (chat, constraints, _) = input::read(&read.fields, served)?;
        Ok(chat.offering(&constraints, served).prompt(served)?.ids.len())
    });
    Ok(json(&InputTokens::new(count.await?)))
}

async fn responses(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let ParsedRequest { reading, stream, repeated, names, .. } = parsed;
    let head = Head { id: app.name(""), created: now(), model, repeated, names };
    let mut events = Events::new(head, Reader::new(reading));
    if stream {
        return answer(&app.options, handle, Framing::Events, app.options.ping, events).await;
    }
    // The items stand in the reader.
    fold(handle, &mut events, |_| ()).await?;
    Ok(json(&events.ended()))
}
