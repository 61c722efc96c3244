//! OpenAI's chat completions, with the fields that llama-server and vLLM add.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;

use super::openapi::{Endpoints, Operation};
use super::{Answer, ChatInput, OfModel, Read, Running, StreamOptions, Talk};
use crate::answer::{
    Choice, ChoiceForm, Chunk, FinishReason, Head, InputTokens, Progress, Timings, TokenLogprob, Usage, Whole,
};
use crate::app::{App, now};
use crate::constraints::Constraints;
use crate::deltas::{AssistantMessage, Delta, MessageDelta, Splitter};
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::request;
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer, fold};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::kinds::{Bool, Int, MAX_INT, Object};
use crate::messages::{self, ChatFields};
use crate::model::Served;
use crate::sampling::{self, Choices, Generation, TOP_LOGPROBS};
use sterna_engine::{PickedToken, Stats};
use sterna_tools::ParserOptions;

pub fn add(to: &mut Endpoints) {
    to.post(
        &["/v1/chat/completions", "/chat/completions"],
        completions,
        &Operation::new("Creates a chat completion")
            .body::<ChatRequest>()
            .answer::<Whole<ChatChoice>>()
            .events::<Chunk<ChunkChoice>>(),
    );
    to.post(
        &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        input_tokens,
        &Operation::new("Counts the tokens of a conversation").body::<Talk>().answer::<InputTokens>(),
    );
}

request! {
    /// A conversation, to be continued.
    struct ChatRequest {
        ..OfModel,
        ..ChatInput,
        ..Generation,
        ..Choices,
        ..Running,
        /// -1 and -2 fill the context.
        max_completion_tokens | max_tokens | n_predict: Int(-2, MAX_INT),
        stream_options: Object<StreamOptions>,
        logprobs: Bool,
        /// Needs `logprobs`.
        top_logprobs: Int(0, TOP_LOGPROBS as i64),
        /// Replaces `logprobs` and `top_logprobs`.
        n_probs: Int(0, TOP_LOGPROBS as i64),
        timings_per_token: Bool,
        return_tokens | return_token_ids: Bool,
        /// Keeps only the last tokens of the prompt.
        truncate_prompt_tokens: Int(1, i64::MAX),
        /// Not supported.
        echo: Bool as { "const": false },
    }
}

struct ParsedRequest {
    job: Job,
    reading: ParserOptions,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    timings_per_token: bool,
    return_tokens: bool,
}

impl ParsedRequest {
    fn of(read: &Read<ChatRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        if fields.echo()?.unwrap_or(false) {
            return Err(ApiError::unsupported("echo"));
        }
        let input = fields.part::<ChatInput>();
        let chat = input.part::<ChatFields>();
        let constraints = Constraints::of_chat(&chat.part(), &chat.part(), served)?;
        let chat = messages::chat_prompt(&input.messages()?, &chat, served)?;
        let mut options = sampling::generation(&fields.part(), served)?;
        let logprobs = fields.logprobs()?.unwrap_or(false);
        let top = fields.top_logprobs()?;
        if top.is_some_and(|top| top > 0) && !logprobs {
            return Err(ApiError::in_field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        let top = if top.is_some() { top } else { fields.n_probs()? };
        let logprobs = logprobs || top.is_some_and(|top| top > 0);
        options.logprobs = logprobs.then(|| top.unwrap_or(0) as usize);
        let max_tokens = fields.max_completion_tokens()?;
        let (mut prompt, images, reading) = read.prompt_ids(chat, &constraints, &mut options)?;
        if let Some(last) = fields.truncate_prompt_tokens()? {
            if !images.is_empty() {
                return Err(ApiError::unsupported("truncate_prompt_tokens with images"));
            }
            prompt.drain(..prompt.len().saturating_sub(last as usize));
        }
        let n = sampling::n(&fields.part(), served)?;
        let stream_options = fields.stream_options()?.unwrap_or_default();
        Ok(Self {
            job: Job { images, ..read.job(&fields.part(), vec![prompt], options, n, max_tokens)? },
            reading,
            stream: fields.part::<Running>().stream()?.unwrap_or(false),
            include_usage: stream_options.include_usage()?.unwrap_or(false),
            logprobs,
            timings_per_token: fields.timings_per_token()?.unwrap_or(false),
            return_tokens: fields.return_tokens()?.unwrap_or(false),
        })
    }
}

impl ParsedRequest {
    /// Parser of a choice's text. Call ids differ between choices.
    fn splitter(&self, choice: usize) -> Splitter {
        Splitter::new(ParserOptions {
            seed: self.reading.seed.wrapping_add(choice as u64),
            ..self.reading.clone()
        })
    }
}

async fn input_tokens(app: Arc<App>, request: Request) -> Answer {
    let read = Read::<Talk>::of(&app, request).await?;
    let count = read.work(|read, served| {
        let fields = read.fields().part::<ChatInput>();
        messages::chat_prompt_with_tools(&fields.messages()?, &fields.part(), served)?.count(served)
    });
    Ok(json(&InputTokens::new(count.await?)))
}

async fn completions(app: Arc<App>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let head = Head { id: app.name("chatcmpl-"), created: now(), model: model.served.name.clone() };
    let choices = (0..parsed.job.n).map(|at| (parsed.splitter(at), Choice::default())).collect();
    let mut chunks = Chunks { head, model, parsed, choices };
    if chunks.parsed.stream {
        return answer(&app.options, handle, Framing::Events, app.options.ping, chunks).await;
    }
    chunks.parsed.include_usage = true;
    let mut whole = chunks.head.whole((0..chunks.parsed.job.n).map(|at| chunks.choice(at)).collect());
    fold(handle, &mut chunks, |chunk| whole.add(chunk, |choice, piece| choice.add(piece))).await?;
    Ok(json(&whole))
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline, rename = "Chat")]
struct ChatChoice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: FinishReason,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// Log-probabilities of tokens.
#[derive(Default, Serialize, JsonSchema)]
struct ChatLogprobs {
    content: Vec<TokenLogprob>,
    refusal: (),
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline, rename = "Chat")]
struct ChunkChoice {
    index: usize,
    delta: MessageDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<FinishReason>,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl ChoiceForm for ChatChoice {
    const OBJECT: &'static str = "chat.completion";

    fn index(&self) -> usize {
        self.index
    }
}

impl ChoiceForm for ChunkChoice {
    const OBJECT: &'static str = "chat.completion.chunk";

    fn index(&self) -> usize {
        self.index
    }
}

impl ChatChoice {
    fn add(&mut self, piece: ChunkChoice) {
        self.message.add(piece.delta);
        if let (Some(logprobs), Some(more)) = (&mut self.logprobs, piece.logprobs) {
            logprobs.content.extend(more.content);
        }
        if let (Some(ids), Some(more)) = (&mut self.token_ids, piece.token_ids) {
            ids.extend(more);
        }
        self.finish_reason = piece.finish_reason.unwrap_or(self.finish_reason);
    }
}

/// Encoder of the answer as chunks.
struct Chunks {
    head: Head,
    model: Arc<Instance>,
    parsed: ParsedRequest,
    choices: Vec<(Splitter, Choice)>,
}

impl Chunks {
    /// A choice before its first chunk.
    fn choice(&self, index: usize) -> ChatChoice {
        ChatChoice {
            index,
            message: AssistantMessage::default(),
            logprobs: self.parsed.logprobs.then(ChatLogprobs::default),
            finish_reason: FinishReason::Length,
            token_ids: self.parsed.return_tokens.then(Vec::new),
        }
    }

    fn chunk(&self, choice: Option<ChunkChoice>) -> Chunk<ChunkChoice> {
        self.head.chunk(choice, self.parsed.include_usage)
    }

    fn delta(
        &self,
        index: usize,
        delta: MessageDelta,
        finish_reason: Option<FinishReason>,
    ) -> Chunk<ChunkChoice> {
        self.chunk(Some(ChunkChoice { index, delta, logprobs: None, finish_reason, token_ids: None }))
    }

    fn logprobs(&self, tokens: &[PickedToken]) -> Option<ChatLogprobs> {
        let tokenizer = self.model.served.tokenizer();
        let entries = tokens.iter().filter_map(|token| TokenLogprob::picked(tokenizer, token));
        self.parsed.logprobs.then(|| ChatLogprobs { content: entries.collect(), refusal: () })
    }
}

impl Encoder for Chunks {
    type Piece = Chunk<ChunkChoice>;

    fn begin(&mut self, chunks: &mut Vec<Chunk<ChunkChoice>>) {
        let begin = |index| self.delta(index, MessageDelta::begin(), None);
        chunks.extend((0..self.choices.len()).map(begin));
    }

    fn update(&mut self, update: Update, chunks: &mut Vec<Chunk<ChunkChoice>>) {
        let (index, event, stats) = match update {
            Update::Progress { choice, total, cached, processed, time } => {
                let prompt_progress = Some(Progress::new(total, cached, processed, time));
                let chunk = self.delta(choice, MessageDelta::default(), None);
                return chunks.push(Chunk { prompt_progress, ..chunk });
            }
            Update::Scores { .. } | Update::Vector { .. } => return,
            Update::Event { choice, event, stats, .. } => (choice, event, stats),
        };
        let (splitter, choice) = &mut self.choices[index];
        let token = choice.take(&event, stats);
        let mut parts = splitter.push(&event.text);
        if event.end.is_some() {
            parts.extend(splitter.finish());
        }
        let mut deltas: Vec<MessageDelta> = parts.into_iter().filter_map(MessageDelta::of).collect();
        let tokens = token.as_slice();
        if deltas.is_empty() && !tokens.is_empty() && (self.parsed.logprobs || self.parsed.return_tokens) {
            // A token without text still has log-probabilities.
            deltas.extend(MessageDelta::of(Delta::Content(String::new())));
        }
        let mut logprobs = self.logprobs(tokens);
        let ids = self.parsed.return_tokens.then(|| tokens.iter().map(|token| token.id).collect());
        let mut token_ids: Option<Vec<u32>> = ids;
        for delta in deltas {
            let (logprobs, token_ids) = (logprobs.take(), token_ids.take());
            let choice = ChunkChoice { index, delta, logprobs, finish_reason: None, token_ids };
            let timings = self.parsed.timings_per_token.then(|| Timings::from(&stats));
            chunks.push(Chunk { timings, ..self.chunk(Some(choice)) });
        }
        if event.end.is_some() {
            let (splitter, choice) = &self.choices[index];
            let reason = splitter.finish_reason(choice.finish_reason());
            let chunk = self.delta(index, MessageDelta::default(), Some(reason));
            chunks.push(Chunk { timings: Some(Timings::from(&stats)), ..chunk });
        }
    }

    fn end(&mut self, chunks: &mut Vec<Chunk<ChunkChoice>>) {
        if self.parsed.include_usage {
            let stats: Vec<Stats> = self.choices.iter().map(|(_, choice)| choice.stats).collect();
            let tokenizer = self.model.served.tokenizer();
            let n_thoughts = self.choices.iter().map(|(splitter, _)| splitter.n_thoughts(tokenizer)).sum();
            let usage = Some(Some(Usage::new(&stats, self.parsed.job.n, n_thoughts)));
            chunks.push(Chunk { usage, timings: Some(Timings::from(&stats[0])), ..self.chunk(None) });
        }
    }

    fn write(&mut self, chunk: Chunk<ChunkChoice>, out: &mut Out) {
        out.data(&chunk);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&Family::OpenAi.error_body(error));
    }

    fn close(&self, out: &mut Out) {
        out.done();
    }
}
