//! llama-server's own completion endpoint, with all of its fields.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::openapi::{Endpoints, Operation};
use super::{Answer, OfModel, Read, Running};
use crate::answer::{Choice, Progress, Timings, TokenLogprob};
use crate::app::App;
use crate::constraints::{Constraints, Grammars};
use crate::error::ApiError;
use crate::family::Family;
use crate::fields::{missing, request};
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer, fold};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::kinds::{Any, Bool, Int, MAX_INT, Texts};
use crate::model::Served;
use crate::prompts;
use crate::sampling::{self, Choices, Generation, TOP_LOGPROBS};
use sterna_engine::{GenerateOptions, PickedToken, Stats, StopReason};
use sterna_tokenizer::chat::Prompt;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Continues a prompt, with all of llama-server's fields");
    let operation = operation.body::<NativeRequest>().answer::<Answered>().events::<Shown>();
    to.post(&["/completion", "/completions"], completion, &operation);
}

request! {
    /// A prompt, to be continued, in llama-server's format.
    struct NativeRequest {
        ..OfModel,
        ..Grammars,
        ..Generation,
        ..Choices,
        ..Running,
        /// A text, tokens, a mixture of both, or a list of these.
        prompt: Any as {
            "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1 }],
        } or missing(prompts::WANT),
        /// 0 only evaluates the prompt; -1 and -2 fill the context.
        n_predict | max_tokens: Int(-2, MAX_INT),
        n_probs: Int(0, TOP_LOGPROBS as i64),
        post_sampling_probs: Bool,
        return_tokens: Bool,
        timings_per_token: Bool,
        /// Paths of the answer's fields to return.
        response_fields: Texts(64, 128) as {
            "anyOf": [
                { "type": "string", "maxLength": 64 },
                { "type": "array", "items": { "type": "string", "maxLength": 64 }, "maxItems": 64 },
            ],
        },
    }
}

#[derive(Clone)]
struct ParsedRequest {
    job: Job,
    stream: bool,
    /// The prompt is only evaluated.
    evaluate_only: bool,
    return_tokens: bool,
    probabilities: bool,
    timings_per_token: bool,
    /// Paths of the fields to return; empty returns all.
    response_fields: Vec<String>,
    /// The prompts as text, to be repeated in the answer.
    prompts: Vec<String>,
}

impl ParsedRequest {
    fn of(read: &Read<NativeRequest>, served: &Served) -> Result<Self, ApiError> {
        let fields = read.fields();
        let mut options = sampling::generation(&fields.part(), served)?;
        let no_prompt = Prompt { text: String::new(), ids: Vec::new(), images: Vec::new() };
        Constraints::of_text(&fields.part())?.apply(served, &no_prompt, &mut options)?;
        let n_probs = fields.n_probs()?.filter(|n_probs| *n_probs > 0);
        options.logprobs = n_probs.map(|n_probs| n_probs as usize);
        let prompts = prompts::prompts("prompt", fields.prompt()?, served)?;
        let max_tokens = fields.n_predict()?;
        let evaluate_only = max_tokens == Some(0);
        let text = |prompt: &Vec<u32>| {
            String::from_utf8_lossy(&served.tokenizer().decode(prompt, true)).into_owned()
        };
        let texts = prompts.iter().map(text).collect();
        let n = sampling::n(&fields.part(), served)?;
        // To evaluate a prompt, one token is picked and not shown.
        let max_tokens = max_tokens.map(|max| if max == 0 { 1 } else { max });
        let job = read.job(&fields.part(), prompts, options, n, max_tokens)?;
        Ok(Self {
            job,
            stream: fields.part::<Running>().stream()?.unwrap_or(false),
            evaluate_only,
            return_tokens: fields.return_tokens()?.unwrap_or(false),
            probabilities: fields.post_sampling_probs()?.unwrap_or(false),
            timings_per_token: fields.timings_per_token()?.unwrap_or(false),
            response_fields: fields.response_fields()?.unwrap_or_default(),
            prompts: texts,
        })
    }
}

async fn completion(app: Arc<App>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let choices = vec![Choice::default(); parsed.job.n_choices()];
    let mut pieces = Pieces { model, parsed, choices };
    if pieces.parsed.stream {
        return answer(&app.options, handle, Framing::Events, app.options.ping, pieces).await;
    }
    let mut whole = pieces.choices.iter().map(|_| pieces.parsed.whole()).collect::<Vec<_>>();
    fold(handle, &mut pieces, |piece| whole[piece.index()].add(piece)).await?;
    let mut all: Vec<Chosen> =
        whole.into_iter().filter_map(|whole| Some(pieces.parsed.chosen(whole.ended?))).collect();
    Ok(json(&if all.len() == 1 { Answered::One(all.swap_remove(0)) } else { Answered::All(all) }))
}

/// The answer of a choice that has ended.
#[derive(Serialize, JsonSchema)]
struct NativeAnswer {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    id_slot: Option<u32>,
    #[schemars(extend("const" = true))]
    stop: bool,
    model: String,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    generation_settings: Settings,
    prompt: String,
    has_new_line: bool,
    /// True if the context was full before `n_predict` was reached.
    truncated: bool,
    stop_type: StopType,
    stopping_word: String,
    tokens_cached: usize,
    timings: Timings,
    /// With `n_probs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<TokenLogprob>>,
}

/// Finish reason in llama-server's format.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StopType {
    None,
    Eos,
    Limit,
    Word,
}

/// The requested fields of an answer.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Chosen {
    All(Box<NativeAnswer>),
    /// With `response_fields`.
    Some(Map<String, Value>),
}

/// An object, or a list of them for several prompts or choices.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "NativeAnswers")]
enum Answered {
    One(Chosen),
    All(Vec<Chosen>),
}

/// A piece of a streamed answer.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct NativePiece {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    #[schemars(extend("const" = false))]
    stop: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_predicted: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_evaluated: Option<usize>,
    /// With `return_progress`.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
    /// With `n_probs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<TokenLogprob>>,
    /// With `timings_per_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

/// A piece of a streamed answer; the last one has no text.
enum Piece {
    More(Box<NativePiece>),
    Last(Box<NativeAnswer>),
}

impl Piece {
    fn index(&self) -> usize {
        match self {
            Self::More(piece) => piece.index,
            Self::Last(answer) => answer.index,
        }
    }
}

/// A piece as sent to the client.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "NativePiece")]
enum Shown {
    More(Box<NativePiece>),
    Last(Chosen),
}

/// Accumulated pieces of a choice.
struct Whole {
    content: String,
    /// `None` if tokens were not requested.
    tokens: Option<Vec<u32>>,
    probabilities: Option<Vec<TokenLogprob>>,
    ended: Option<Box<NativeAnswer>>,
}

impl Whole {
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::More(piece) => {
                self.content += &piece.content;
                if let Some(tokens) = &mut self.tokens {
                    tokens.extend(piece.tokens);
                }
                if let (Some(all), Some(more)) = (&mut self.probabilities, piece.completion_probabilities) {
                    all.extend(more);
                }
            }
            Piece::Last(mut answer) => {
                answer.content = std::mem::take(&mut self.content);
                answer.has_new_line = answer.content.contains('\n');
                answer.tokens = self.tokens.take().unwrap_or_default();
                answer.completion_probabilities = self.probabilities.take();
                self.ended = Some(answer);
            }
        }
    }
}

impl ParsedRequest {
    /// A choice without any pieces yet.
    fn whole(&self) -> Whole {
        let shows_probabilities = !self.evaluate_only && self.job.options.logprobs.is_some();
        Whole {
            content: String::new(),
            tokens: self.return_tokens.then(Vec::new),
            probabilities: shows_probabilities.then(Vec::new),
            ended: None,
        }
    }

    /// The last piece of a choice: the answer without the contents of earlier pieces.
    fn last(&self, served: &Served, index: usize, choice: &Choice) -> NativeAnswer {
        let stats = &choice.stats;
        let (stop_type, stopping_word) = match choice.end {
            Some(StopReason::EndOfText) => (StopType::Eos, ""),
            Some(StopReason::StopString) => {
                (StopType::Word, choice.stopping_word(&self.job.options.stop).unwrap_or_default())
            }
            Some(StopReason::Limit | StopReason::ContextFull) => (StopType::Limit, ""),
            _ => (StopType::None, ""),
        };
        NativeAnswer {
            index,
            content: String::new(),
            tokens: Vec::new(),
            id_slot: choice.slot,
            stop: true,
            model: served.name.clone(),
            tokens_predicted: if self.evaluate_only { 0 } else { stats.generated_tokens },
            tokens_evaluated: stats.prompt_tokens,
            generation_settings: Settings::new(&self.job.options, served),
            prompt: self.prompts[index / self.job.n].clone(),
            has_new_line: false,
            truncated: choice.end == Some(StopReason::ContextFull),
            stop_type,
            stopping_word: stopping_word.to_owned(),
            tokens_cached: stats.prompt_tokens + stats.generated_tokens,
            timings: Timings::from(stats),
            completion_probabilities: None,
        }
    }

    fn probabilities(&self, served: &Served, tokens: &[PickedToken]) -> Vec<TokenLogprob> {
        let entries = tokens.iter().filter_map(|token| TokenLogprob::picked(served.tokenizer(), token));
        entries.map(|entry| if self.probabilities { entry.into_probability() } else { entry }).collect()
    }

    /// The requested fields: `a/b` is field `b` of field `a`, under the name `a/b`.
    fn chosen(&self, answer: Box<NativeAnswer>) -> Chosen {
        if self.response_fields.is_empty() {
            return Chosen::All(answer);
        }
        let answer = serde_json::to_value(answer).expect("types of answers have texts as keys");
        let field = |path: &String| Some((path.clone(), answer.pointer(&format!("/{path}"))?.clone()));
        Chosen::Some(self.response_fields.iter().filter_map(field).collect())
    }
}

/// Generation settings in llama-server's format.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GenerationSettings")]
pub struct Settings {
    n_ctx: usize,
    n_predict: i64,
    max_tokens: i64,
    seed: Option<u64>,
    temperature: f64,
    top_k: u32,
    top_p: f64,
    min_p: f64,
    typical_p: f64,
    repeat_last_n: usize,
    repeat_penalty: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    stop: Vec<String>,
    ignore_eos: bool,
    logit_bias: Vec<TokenBias>,
    n_probs: usize,
    samplers: [&'static str; 6],
    grammar: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct TokenBias {
    token: u32,
    bias: Bias,
}

/// A bias, or false for a token that is never picked.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Bias {
    Finite(f64),
    Never(bool),
}

impl Settings {
    /// Settings as the server understood them.
    pub fn new(options: &GenerateOptions, served: &Served) -> Self {
        let o = &options.sampler;
        let bias = |&(token, bias): &(u32, f32)| {
            let bias = if bias.is_finite() { Bias::Finite(bias.into()) } else { Bias::Never(false) };
            TokenBias { token, bias }
        };
        let n_predict = options.max_tokens.map_or(-1, |max| max as i64);
        Self {
            n_ctx: served.n_ctx(),
            n_predict,
            max_tokens: n_predict,
            seed: o.seed,
            temperature: o.temperature.into(),
            top_k: o.top_k,
            top_p: o.top_p.into(),
            min_p: o.min_p.into(),
            typical_p: o.typical_p.into(),
            repeat_last_n: o.repeat_last_n,
            repeat_penalty: o.repeat_penalty.into(),
            presence_penalty: o.presence_penalty.into(),
            frequency_penalty: o.frequency_penalty.into(),
            stop: options.stop.clone(),
            ignore_eos: options.ignore_eos,
            logit_bias: o.logit_bias.iter().map(bias).collect(),
            n_probs: options.logprobs.unwrap_or(0),
            samplers: ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"],
            grammar: "",
        }
    }
}

/// Encoder of the answer as pieces.
struct Pieces {
    model: Arc<Instance>,
    parsed: ParsedRequest,
    choices: Vec<Choice>,
}

impl Encoder for Pieces {
    type Piece = Piece;

    fn begin(&mut self, _: &mut Vec<Piece>) {}

    fn update(&mut self, update: Update, pieces: &mut Vec<Piece>) {
        let piece = |index, content, tokens| NativePiece {
            index,
            content,
            tokens,
            stop: false,
            tokens_predicted: None,
            tokens_evaluated: None,
            prompt_progress: None,
            completion_probabilities: None,
            timings: None,
        };
        let timings = |stats: &Stats| self.parsed.timings_per_token.then(|| Timings::from(stats));
        let (index, event, stats) = match update {
            Update::Progress { choice, total, cached, processed, time } => {
                let (prompt_tokens, cached_tokens, prompt_time) = (processed, cached, time);
                let stats = Stats { prompt_tokens, cached_tokens, prompt_time, ..Stats::default() };
                return pieces.push(Piece::More(Box::new(NativePiece {
                    prompt_progress: Some(Progress::new(total, cached, processed, time)),
                    timings: timings(&stats),
                    ..piece(choice, String::new(), Vec::new())
                })));
            }
            Update::Scores { .. } | Update::Vector { .. } => return,
            Update::Event { choice, event, stats, slot, .. } => {
                self.choices[choice].slot = slot;
                (choice, event, stats)
            }
        };
        let token = self.choices[index].take(&event, stats);
        let served = &self.model.served;
        if !self.parsed.evaluate_only && (token.is_some() || !event.text.is_empty()) {
            let has_probabilities = self.parsed.job.options.logprobs.is_some();
            let probabilities = || self.parsed.probabilities(served, token.as_slice());
            pieces.push(Piece::More(Box::new(NativePiece {
                tokens_predicted: Some(stats.generated_tokens),
                tokens_evaluated: Some(stats.prompt_tokens),
                completion_probabilities: has_probabilities.then(probabilities),
                timings: timings(&stats),
                ..piece(index, event.text, token.iter().map(|token| token.id).collect())
            })));
        }
        if event.end.is_some() {
            pieces.push(Piece::Last(Box::new(self.parsed.last(served, index, &self.choices[index]))));
        }
    }

    fn end(&mut self, _: &mut Vec<Piece>) {}

    fn write(&mut self, piece: Piece, out: &mut Out) {
        out.data(&match piece {
            Piece::More(piece) => Shown::More(piece),
            Piece::Last(answer) => Shown::Last(self.parsed.chosen(answer)),
        });
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&Family::OpenAi.error_body(error));
    }
}
