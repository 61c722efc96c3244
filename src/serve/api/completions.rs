//! OpenAI's completions: the text that continues a prompt.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read, Running, StreamOptions};
use crate::answer::{Choice, ChoiceForm, Chunk, FinishReason, Head, Progress, Timings, Usage, Whole, finite};
use crate::app::{App, now};
use crate::constraints::{Constraints, Grammars};
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::{missing, request};
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer, fold};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::kinds::{Any, Bool, Int, MAX_INT, Object};
use crate::model::Served;
use crate::prompts;
use crate::sampling::{self, Choices, Generation, TOP_LOGPROBS};
use sterna_engine::{LogProbs, PickedToken, Stats};
use sterna_tokenizer::chat::Prompt;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Continues a prompt").body::<CompletionRequest>();
    to.post(
        &["/v1/completions"],
        completions,
        &operation.answer::<Whole<CompletionChoice>>().events::<Chunk<CompletionChoice>>(),
    );
}

request! {
    /// A prompt, to be continued.
    struct CompletionRequest {
        ..OfModel,
        ..Grammars,
        ..Generation,
        ..Choices,
        ..Running,
        /// A text, tokens, a mixture of both, or a list of these.
        prompt: Any as {
            "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1 }],
        } or missing(prompts::WANT),
        /// -1 and -2 fill the context.
        max_tokens | max_completion_tokens | n_predict: Int(-2, MAX_INT),
        stream_options: Object<StreamOptions>,
        logprobs | n_probs: Int(0, TOP_LOGPROBS as i64),
        echo: Bool,
        /// Must equal `n`.
        best_of: Int(1, i64::MAX),
        timings_per_token: Bool,
        return_tokens | return_token_ids: Bool,
    }
}

struct ParsedRequest {
    job: Job,
    stream: bool,
    include_usage: bool,
    /// Prompt tokens echoed before each prompt's choices.
    echo: Option<Vec<Vec<u32>>>,
    /// Only the prompt is scored. One token is generated for that, and not shown.
    scores_only: bool,
    timings_per_token: bool,
    return_tokens: bool,
}

impl ParsedRequest {
    fn of(read: &Read<CompletionRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        let mut options = sampling::generation(&fields.part(), served)?;
        let no_prompt = Prompt { text: String::new(), ids: Vec::new(), images: Vec::new() };
        Constraints::of_text(&fields.part())?.apply(served, &no_prompt, &mut options)?;
        options.logprobs = fields.logprobs()?.map(|top| top as usize);
        let n = sampling::n(&fields.part(), served)?;
        if fields.best_of()?.is_some_and(|best| best != n as i64) {
            return Err(ApiError::unsupported("best_of"));
        }
        let prompts = prompts::prompts("prompt", fields.prompt()?, served)?;
        let echo = fields.echo()?.unwrap_or(false);
        let max_tokens = fields.max_tokens()?;
        let stream_options = fields.stream_options()?.unwrap_or_default();
        let score_prompt = options.logprobs.filter(|_| echo);
        let scores_only = score_prompt.is_some() && max_tokens == Some(0);
        let echo = echo.then(|| prompts.clone());
        let max_tokens = if scores_only { Some(1) } else { max_tokens };
        Ok(Self {
            job: Job { score_prompt, ..read.job(&fields.part(), prompts, options, n, max_tokens)? },
            scores_only,
            stream: fields.part::<Running>().stream()?.unwrap_or(false),
            include_usage: stream_options.include_usage()?.unwrap_or(false),
            echo,
            timings_per_token: fields.timings_per_token()?.unwrap_or(false),
            return_tokens: fields.return_tokens()?.unwrap_or(false),
        })
    }

    /// Prompt tokens echoed before the text of a choice.
    fn echo_of(&self, index: usize) -> &[u32] {
        self.echo.as_ref().map_or(&[], |echo| &echo[index / self.job.n])
    }

    /// Token counts, without a token that is not shown.
    fn shown_stats(&self, stats: Stats) -> Stats {
        let generated_tokens = if self.scores_only { 0 } else { stats.generated_tokens };
        Stats { generated_tokens, ..stats }
    }

    /// The echoed tokens, with their scores if requested: `scores` has one entry per token except for the
    /// first, which has no context.
    fn scored(&self, served: &Served, index: usize, scores: &[LogProbs]) -> Vec<PickedToken> {
        if self.job.score_prompt.is_none() {
            return Vec::new();
        }
        let tokens = self.echo_of(index).iter().zip(std::iter::once(None).chain(scores.iter().map(Some)));
        let token = |(&id, scores): (&u32, Option<&LogProbs>)| {
            let bytes = served.tokenizer().shown_bytes(id, false).to_vec();
            PickedToken { id, bytes, logprobs: scores.cloned() }
        };
        tokens.map(token).collect()
    }
}

async fn completions(app: Arc<App>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let head = Head { id: app.name("cmpl-"), created: now(), model: model.served.name.clone() };
    let choices = vec![(Choice::default(), 0); parsed.job.n_choices()];
    let mut chunks = Chunks { head, model, parsed, choices };
    if chunks.parsed.stream {
        return answer(&app.options, handle, Framing::Events, app.options.ping, chunks).await;
    }
    chunks.parsed.include_usage = true;
    let mut whole = chunks.head.whole((0..chunks.choices.len()).map(|at| chunks.choice(at)).collect());
    fold(handle, &mut chunks, |chunk| whole.add(chunk, |choice, piece| choice.add(piece))).await?;
    Ok(json(&whole))
}

/// A choice, or a piece of one.
#[derive(Serialize, JsonSchema)]
#[schemars(inline, rename = "Completion")]
struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    /// Null until the end.
    finish_reason: Option<FinishReason>,
    /// With `return_token_ids`: tokens of the text, without those of an echoed prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// Log-probabilities in the legacy format: parallel lists. A prompt's first token has none.
#[derive(Default, Serialize, JsonSchema)]
struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    #[schemars(with = "Vec<Option<BTreeMap<String, f64>>>")]
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Start of each token in the text, in characters.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Log-probabilities of tokens that start at character `offset` of the text.
    fn new(served: &Served, tokens: &[PickedToken], mut offset: usize) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut lists = Self::default();
        for token in tokens {
            let shown = text(&token.bytes);
            lists.text_offset.push(offset);
            offset += shown.chars().count();
            lists.tokens.push(shown);
            lists.token_logprobs.push(token.logprobs.as_ref().map(|logprobs| finite(logprobs.picked)));
            lists.top_logprobs.push(token.logprobs.as_ref().map(|logprobs| {
                let top = logprobs.top.iter();
                top.map(|(id, x)| (text(served.tokenizer().token_bytes(*id)), finite(*x).into())).collect()
            }));
        }
        lists
    }

    fn add(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}

impl ChoiceForm for CompletionChoice {
    const OBJECT: &'static str = "text_completion";

    fn index(&self) -> usize {
        self.index
    }
}

impl CompletionChoice {
    fn add(&mut self, piece: Self) {
        self.text += &piece.text;
        if let (Some(logprobs), Some(more)) = (&mut self.logprobs, piece.logprobs) {
            logprobs.add(more);
        }
        if let (Some(ids), Some(more)) = (&mut self.token_ids, piece.token_ids) {
            ids.extend(more);
        }
        self.finish_reason = piece.finish_reason;
    }
}

/// Encoder of the answer as chunks.
struct Chunks {
    head: Head,
    model: Arc<Instance>,
    parsed: ParsedRequest,
    /// Choices, each with the number of characters of its tokens so far.
    choices: Vec<(Choice, usize)>,
}

impl Chunks {
    /// A choice before its first chunk.
    fn choice(&self, index: usize) -> CompletionChoice {
        let logprobs = self.parsed.job.options.logprobs.map(|_| TextLogprobs::default());
        let token_ids = self.parsed.return_tokens.then(Vec::new);
        CompletionChoice { index, text: String::new(), logprobs, finish_reason: None, token_ids }
    }

    fn chunk(&self, choice: Option<CompletionChoice>) -> Chunk<CompletionChoice> {
        self.head.chunk(choice, self.parsed.include_usage)
    }

    fn text(
        &self,
        index: usize,
        text: String,
        logprobs: Option<TextLogprobs>,
        finish_reason: Option<FinishReason>,
    ) -> Chunk<CompletionChoice> {
        self.chunk(Some(CompletionChoice { index, text, logprobs, finish_reason, token_ids: None }))
    }

    /// The chunk with a choice's prompt.
    fn echo(&mut self, index: usize, scores: &[LogProbs], chunks: &mut Vec<Chunk<CompletionChoice>>) {
        let served = &self.model.served;
        let text = served.tokenizer().decode(self.parsed.echo_of(index), false);
        let text = String::from_utf8_lossy(&text).into_owned();
        let tokens = self.parsed.scored(served, index, scores);
        let logprobs = (!tokens.is_empty()).then(|| TextLogprobs::new(served, &tokens, 0));
        self.choices[index].1 = match &logprobs {
            Some(logprobs) => logprobs.tokens.iter().map(|token| token.chars().count()).sum(),
            None => text.chars().count(),
        };
        if !text.is_empty() || logprobs.is_some() {
            chunks.push(self.text(index, text, logprobs, None));
        }
    }
}

impl Encoder for Chunks {
    type Piece = Chunk<CompletionChoice>;

    fn begin(&mut self, chunks: &mut Vec<Chunk<CompletionChoice>>) {
        for index in 0..self.choices.len() {
            if self.parsed.job.score_prompt.is_none() {
                self.echo(index, &[], chunks);
            }
        }
    }

    fn update(&mut self, update: Update, chunks: &mut Vec<Chunk<CompletionChoice>>) {
        let (index, event, stats) = match update {
            Update::Progress { choice, total, cached, processed, time } => {
                let prompt_progress = Some(Progress::new(total, cached, processed, time));
                let chunk = self.text(choice, String::new(), None, None);
                return chunks.push(Chunk { prompt_progress, ..chunk });
            }
            Update::Scores { choice, scores } => {
                let choices = choice..choice + self.parsed.job.n;
                return choices.for_each(|index| self.echo(index, &scores, chunks));
            }
            Update::Vector { .. } => return,
            Update::Event { choice, event, stats, .. } => (choice, event, stats),
        };
        let (choice, offset) = &mut self.choices[index];
        let token = choice.take(&event, stats);
        let logprobs = self.parsed.job.options.logprobs.is_some();
        let logprobs = logprobs.then(|| TextLogprobs::new(&self.model.served, token.as_slice(), *offset));
        *offset += token.as_ref().map_or(0, |token| String::from_utf8_lossy(&token.bytes).chars().count());
        let token_ids: Option<Vec<u32>> =
            self.parsed.return_tokens.then(|| token.iter().map(|token| token.id).collect());
        let has_token = token.is_some() && (logprobs.is_some() || token_ids.is_some());
        let timings = || Timings::from(&self.parsed.shown_stats(stats));
        if (!event.text.is_empty() || has_token) && !self.parsed.scores_only {
            let (text, timings) = (event.text, self.parsed.timings_per_token.then(timings));
            let piece = CompletionChoice { index, text, logprobs, finish_reason: None, token_ids };
            chunks.push(Chunk { timings, ..self.chunk(Some(piece)) });
        }
        if event.end.is_some() {
            let reason = self.choices[index].0.finish_reason();
            let chunk = self.text(index, String::new(), None, Some(reason));
            chunks.push(Chunk { timings: Some(timings()), ..chunk });
        }
    }

    fn end(&mut self, chunks: &mut Vec<Chunk<CompletionChoice>>) {
        if self.parsed.include_usage {
            let stats = self.choices.iter().map(|(choice, _)| self.parsed.shown_stats(choice.stats));
            let stats: Vec<Stats> = stats.collect();
            let usage = Some(Some(Usage::new(&stats, self.parsed.job.n, 0)));
            chunks.push(Chunk { usage, ..self.chunk(None) });
        }
    }

    fn write(&mut self, chunk: Chunk<CompletionChoice>, out: &mut Out) {
        out.data(&chunk);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&Family::OpenAi.error_body(error));
    }

    fn close(&self, out: &mut Out) {
        out.done();
    }
}
