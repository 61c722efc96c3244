//! llama-server's own completion: text behind a prompt, with all that it tells.

use std::sync::Arc;

use axum::extract::{Request, State};
use serde_json::{Map, Value, json};

use super::openapi::{Endpoints, Operation};
use super::{Answer, Read};
use crate::answer::{Choice, as_probabilities, collect, logprob_entry, timings};
use crate::app::App;
use crate::constraints::Constraints;
use crate::error::ApiError;
use crate::family::Family;
use crate::http::json::json;
use crate::http::stream::{Encoder, Framing, Out, answer};
use crate::instance::Instance;
use crate::job::{Job, Update};
use crate::model::Served;
use crate::prompts::prompts;
use crate::sampling::{self, TOP_LOGPROBS};
use sterna_engine::{GenerateOptions, Stats, StopReason};
use sterna_tokenizer::chat::Prompt;

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Text behind a prompt, with all that llama-server tells");
    let operation = operation.body("NativeRequest").answer_named("NativeAnswer").events();
    to.post(&["/completion", "/completions"], completion, &operation);
}

/// A parsed request.
#[derive(Clone)]
struct ParsedRequest {
    job: Job,
    stream: bool,
    /// The prompt is only evaluated.
    evaluate_only: bool,
    return_tokens: bool,
    probabilities: bool,
    timings_per_token: bool,
    /// Paths of fields that are wanted; empty is all.
    response_fields: Vec<String>,
    /// The prompts as text, for the answer.
    prompts: Vec<String>,
}

impl ParsedRequest {
    fn of(read: &Read, served: &Served) -> Result<Self, ApiError> {
        let fields = &read.fields;
        let mut options = sampling::generation(fields, served)?;
        let no_prompt = Prompt { text: String::new(), ids: Vec::new() };
        Constraints::of_text(fields)?.apply(served, &no_prompt, &mut options)?;
        let n_probs = fields.count("n_probs", 0, TOP_LOGPROBS)?.unwrap_or(0);
        options.logprobs = (n_probs > 0).then_some(n_probs);
        let prompts = prompts("prompt", fields.get("prompt"), served)?;
        let max_tokens = sampling::max_tokens(fields, &["n_predict", "max_tokens"])?;
        let evaluate_only = max_tokens == Some(0);
        let text = |prompt: &Vec<u32>| {
            String::from_utf8_lossy(&served.tokenizer().decode(prompt, true)).into_owned()
        };
        let texts = prompts.iter().map(text).collect();
        let n = read.n(served)?;
        // To evaluate a prompt is to pick the token behind it, and not to tell.
        let job =
            read.job(served, prompts, options, n, max_tokens.map(|max| if max == 0 { 1 } else { max }))?;
        Ok(Self {
            job,
            stream: fields.bool("stream")?.unwrap_or(false),
            evaluate_only,
            return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
            probabilities: fields.bool("post_sampling_probs")?.unwrap_or(false),
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            response_fields: fields.texts("response_fields", 64, 128)?,
            prompts: texts,
        })
    }
}

async fn completion(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (model, parsed, handle) =
        Read::of(&app, request).await?.begin(ParsedRequest::of, |parsed| &parsed.job).await?;
    let n_choices = parsed.job.n_choices();
    if parsed.stream {
        let choices = vec![Choice::default(); n_choices];
        let pieces = Pieces { model, parsed, choices };
        return answer(&app.options, handle, Framing::Events, app.options.ping, pieces).await;
    }
    let choices = collect(handle, n_choices).await?;
    let served = &model.served;
    let all = choices.iter().enumerate().map(|(index, choice)| parsed.last(served, index, choice, true));
    let mut all: Vec<Value> = all.collect();
    Ok(json(&if n_choices == 1 { all.swap_remove(0) } else { all.into() }))
}

impl ParsedRequest {
    /// The answer of a choice that has ended; with `whole` its text and all tokens.
    fn last(&self, served: &Served, index: usize, choice: &Choice, whole: bool) -> Value {
        let stats = &choice.stats;
        let shown = whole && !self.evaluate_only;
        let (stop_type, stopping_word) = match choice.end {
            Some(StopReason::EndOfText) => ("eos", ""),
            Some(StopReason::StopString) => {
                ("word", choice.stopping_word(&self.job.options.stop).unwrap_or_default())
            }
            Some(StopReason::Limit | StopReason::ContextFull) => ("limit", ""),
            _ => ("none", ""),
        };
        let text = if shown { choice.text.as_str() } else { "" };
        let ids: Vec<u32> = match shown && self.return_tokens {
            true => choice.tokens.iter().map(|token| token.id).collect(),
            false => Vec::new(),
        };
        let mut answer = json!({
            "index": index,
            "content": text,
            "tokens": ids,
            "id_slot": choice.slot,
            "stop": true,
            "model": served.name,
            "tokens_predicted": if self.evaluate_only { 0 } else { stats.generated_tokens },
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": settings(&self.job.options, served),
            "prompt": self.prompts[index / self.job.n],
            "has_new_line": text.contains('\n'),
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "tokens_cached": stats.prompt_tokens + stats.generated_tokens,
            "timings": timings(stats),
        });
        if shown && self.job.options.logprobs.is_some() {
            answer["completion_probabilities"] = self.probabilities(served, &choice.tokens);
        }
        self.chosen(answer)
    }

    fn probabilities(&self, served: &Served, tokens: &[sterna_engine::PickedToken]) -> Value {
        let entries = tokens.iter().filter_map(|token| logprob_entry(served.tokenizer(), token));
        entries.map(|entry| if self.probabilities { as_probabilities(entry) } else { entry }).collect()
    }

    /// The fields that are wanted: `a/b` is field `b` of field `a`, under the name `b`.
    fn chosen(&self, answer: Value) -> Value {
        if self.response_fields.is_empty() {
            return answer;
        }
        let mut chosen = Map::new();
        for path in &self.response_fields {
            if let Some(value) = answer.pointer(&format!("/{path}")) {
                chosen.insert(path.clone(), value.clone());
            }
        }
        chosen.into()
    }
}

/// Settings of generation, in llama-server's words.
pub fn settings(options: &GenerateOptions, served: &Served) -> Value {
    let o = &options.sampler;
    let biases: Vec<Value> = o
        .logit_bias
        .iter()
        .map(|(token, bias)| match bias.is_finite() {
            true => json!({ "token": token, "bias": bias }),
            false => json!({ "token": token, "bias": false }),
        })
        .collect();
    let n_predict = options.max_tokens.map_or(-1, |max| max as i64);
    json!({
        "n_ctx": served.n_ctx(),
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "seed": o.seed,
        "temperature": o.temperature,
        "top_k": o.top_k,
        "top_p": o.top_p,
        "min_p": o.min_p,
        "typical_p": o.typical_p,
        "repeat_last_n": o.repeat_last_n,
        "repeat_penalty": o.repeat_penalty,
        "presence_penalty": o.presence_penalty,
        "frequency_penalty": o.frequency_penalty,
        "stop": options.stop,
        "ignore_eos": options.ignore_eos,
        "logit_bias": biases,
        "n_probs": options.logprobs.unwrap_or(0),
        "samplers": ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"],
        "grammar": "",
    })
}

/// The answer in pieces.
struct Pieces {
    model: Arc<Instance>,
    parsed: ParsedRequest,
    choices: Vec<Choice>,
}

impl Encoder for Pieces {
    fn begin(&mut self, _: &mut Out) {}

    fn update(&mut self, update: Update, out: &mut Out) {
        let (index, event, stats) = match update {
            Update::Progress { choice, total, cached, processed, time } => {
                let mut piece = json!({
                    "index": choice, "content": "", "tokens": [], "stop": false,
                    "prompt_progress": {
                        "total": total, "cache": cached, "processed": processed,
                        "time_ms": time.as_millis() as u64,
                    },
                });
                if self.parsed.timings_per_token {
                    let (prompt_tokens, cached_tokens, prompt_time) = (processed, cached, time);
                    let stats = Stats { prompt_tokens, cached_tokens, prompt_time, ..Stats::default() };
                    piece["timings"] = timings(&stats);
                }
                return out.data(&piece);
            }
            Update::Scores { .. } => return,
            Update::Event { choice, event, stats, slot, .. } => {
                self.choices[choice].slot = slot;
                (choice, event, stats)
            }
        };
        let token = self.choices[index].take(&event, stats, false);
        let served = &self.model.served;
        if !self.parsed.evaluate_only && (token.is_some() || !event.text.is_empty()) {
            let ids: Vec<u32> = token.iter().map(|token| token.id).collect();
            let mut piece = json!({
                "index": index, "content": event.text, "tokens": ids, "stop": false,
                "tokens_predicted": stats.generated_tokens, "tokens_evaluated": stats.prompt_tokens,
            });
            if self.parsed.job.options.logprobs.is_some() {
                piece["completion_probabilities"] = self.parsed.probabilities(served, token.as_slice());
            }
            if self.parsed.timings_per_token {
                piece["timings"] = timings(&stats);
            }
            out.data(&piece);
        }
        if event.end.is_some() {
            out.data(&self.parsed.last(served, index, &self.choices[index], false));
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&Family::OpenAi.error_body(error));
    }

    fn end(&mut self, _: &mut Out) {}
}
