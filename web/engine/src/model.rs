//! A model: loading it, adding requests, and running steps.

use std::sync::Arc;

use js_sys::Function;
use serde_json::{Map, Value, json};
use sterna::engine::{
    Batch, BatchOptions, Engine, Event, GenerateOptions, Progress, Request, SeqId, SequenceStatus, Stats,
    StopReason,
};
use sterna::gguf::{Gguf, OpenOptions, Source};
use sterna::tokenizer::chat::{ChatTemplate, Extras, Message};
use sterna::tokenizer::{Special, Tokenizer};
use sterna::tools::Syntax;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::constraint::Constraints;
use crate::fault::error;
use crate::options::{self, Fields};
use crate::reader::Reader;

/// Maximum positions kept free for an answer when old turns are dropped.
const ANSWER_TOKENS: usize = 256;

/// A loaded model and its running sequences.
#[wasm_bindgen]
pub struct Model {
    batch: Batch,
    /// The file's or the caller's template, with its message syntax, or the reason why there is none.
    template: Result<(ChatTemplate, Syntax), String>,
    constraints: Constraints,
}

#[wasm_bindgen]
impl Model {
    /// Loads a model from its files, in order. `options` is a JSON object; `progress` is called with the
    /// loaded bytes and the total bytes of weights.
    ///
    /// # Errors
    /// `SternaError` for a file that is invalid or not supported, for an invalid option, and for device
    /// errors.
    #[wasm_bindgen(jspi)]
    pub fn open(files: Vec<Reader>, options: String, progress: Function) -> Result<Model, JsValue> {
        let mut fields = Fields::new(&options)?;
        let chosen = fields.text("chatTemplate")?;
        let options = options::engine(&mut fields)?;
        fields.end()?;
        let files = files.into_iter().map(|file| Arc::new(file) as Arc<dyn Source>);
        let gguf = Gguf::from_sources(files, OpenOptions::default()).map_err(error)?;
        let tell = |Progress { done_bytes, total_bytes }| {
            // Exceptions of the callback are the caller's responsibility.
            let _ = progress.call2(
                &JsValue::NULL,
                &JsValue::from_f64(done_bytes as f64),
                &JsValue::from_f64(total_bytes as f64),
            );
        };
        let engine = Engine::from_gguf(gguf, &options, tell).map_err(error)?;
        let tokenizer = engine.tokenizer().map_err(error)?;
        let template = ChatTemplate::choose(engine.gguf().metadata(), tokenizer, chosen.as_deref());
        // A model without a valid template can still continue text, but the caller's template must be valid.
        let template = match (template, chosen) {
            (Err(err), Some(_)) => return Err(error(err)),
            (Err(err), None) => Err(err.to_string()),
            (Ok(template), _) => {
                let has_token = |token: &str| tokenizer.token_id(token).is_some();
                let syntax = Syntax::of_template(&template, has_token);
                Ok((template, syntax))
            }
        };
        let batch = engine.batch(BatchOptions::default()).map_err(error)?;
        Ok(Self { batch, template, constraints: Constraints::default() })
    }

    /// The loaded model and its device, as JSON.
    ///
    /// # Errors
    /// `SternaError` if the file recommends invalid sampling options.
    pub fn about(&self) -> Result<String, JsValue> {
        let engine = self.batch.engine();
        let (hyper, plan, sampler) =
            (engine.hyper(), engine.plan(), engine.sampler_options().map_err(error)?);
        let notices =
            self.template.as_ref().map(|(template, _)| template.notices().to_vec()).unwrap_or_default();
        let notices = [engine.warnings(), &notices].concat();
        let about = json!({
            "name": hyper.name,
            "architecture": hyper.architecture,
            "backend": match engine.backend_name() { "wgpu" => "webgpu", other => other },
            "device": engine.device(),
            "nCtx": engine.n_ctx(),
            "nCtxTrain": hyper.n_ctx_train,
            "nVocab": hyper.n_vocab,
            "nLayers": hyper.n_layers,
            "headType": engine.head_type(),
            "chats": self.template.is_ok(),
            "plan": {
                "weightsBytes": plan.weights_bytes,
                "kvBytes": plan.kv_bytes,
                "buffersBytes": plan.bufs_bytes,
            },
            "sampling": {
                "temperature": short(sampler.temperature),
                "topK": sampler.top_k,
                "topP": short(sampler.top_p),
                "minP": short(sampler.min_p),
                "repeatPenalty": short(sampler.repeat_penalty),
                "repeatLastN": sampler.repeat_last_n,
            },
            "notices": notices,
        });
        Ok(about.to_string())
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// `SternaError` if the file has no usable vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, JsValue> {
        Ok(self.tokenizer()?.encode(text, Special::Parse, true))
    }

    /// Adds a sequence. `options` is a JSON object with `prompt`, a text or tokens, or `messages`, and
    /// generation options. Returns `{id, seed, forgotten}` as JSON: `id` identifies it in the results of
    /// [`step`](Self::step), and `forgotten` is the number of oldest messages that were dropped.
    ///
    /// # Errors
    /// `SternaError` for invalid options, and for a prompt that does not fit.
    pub fn add(&mut self, options: &str) -> Result<String, JsValue> {
        let mut fields = Fields::new(options)?;
        let engine = self.batch.engine();
        let (sampling, n_ctx) = (engine.sampler_options().map_err(error)?, engine.n_ctx());
        let (prompt, messages) = (fields.take("prompt"), fields.take("messages"));
        let extras = self.extras(&mut fields)?;
        let tokenizer = self.tokenizer()?;
        let constraint = |fields: &mut Fields| self.constraints.take(fields, tokenizer);
        let options = options::generate(&mut fields, sampling, n_ctx, constraint)?;
        fields.end()?;
        let (ids, forgotten) = match (prompt, messages) {
            (Some(prompt), None) => (self.prompt(&prompt)?, 0),
            (None, Some(messages)) => self.chat(options::messages(&messages)?, &extras, &options)?,
            _ => return Err(error("want either a prompt or messages")),
        };
        let added = self.batch.add(&Request::new(ids, options)).map_err(error)?;
        let id = added[0];
        let seed = self.batch.seed_of(id).unwrap_or_default();
        Ok(json!({ "id": id.0, "seed": seed, "forgotten": forgotten }).to_string())
    }

    /// Ends a sequence with the next step. Does nothing if it has ended.
    pub fn cancel(&mut self, id: f64) {
        self.batch.cancel(SeqId(id as u64));
    }

    /// True if every sequence has ended.
    #[wasm_bindgen(js_name = isIdle)]
    pub fn is_idle(&self) -> bool {
        self.batch.is_idle()
    }

    /// Runs one step. Returns a JSON list of `{id, text, tokens, end?}`, one per sequence with output; `end`
    /// is `{reason, stats, fault?}`.
    ///
    /// # Errors
    /// `SternaError` for device errors.
    #[wasm_bindgen(jspi)]
    pub fn step(&mut self) -> Result<String, JsValue> {
        let events = self.batch.step().map_err(error)?;
        let events: Vec<Value> = events.into_iter().map(|(id, event)| self.event_json(id, event)).collect();
        Ok(Value::Array(events).to_string())
    }

    /// Prompt progress of each sequence, as a JSON list of `{id, prompt, cached}`.
    pub fn standings(&self) -> String {
        let standing = |of: SequenceStatus| {
            let (prompt, cached) = (of.n_prompt, of.n_cached.min(of.n_prompt));
            json!({ "id": of.id.0, "prompt": prompt, "cached": cached })
        };
        Value::Array(self.batch.statuses().map(standing).collect()).to_string()
    }
}

impl Model {
    fn tokenizer(&self) -> Result<&Tokenizer, JsValue> {
        self.batch.engine().tokenizer().map_err(error)
    }

    /// The tokens of a text, or the given tokens.
    fn prompt(&self, prompt: &Value) -> Result<Vec<u32>, JsValue> {
        let ids = |list: &Vec<Value>| {
            list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect::<Option<_>>()
        };
        match (prompt.as_str(), prompt.as_array().and_then(ids)) {
            (Some(text), _) => self.encode(text),
            (None, Some(ids)) => Ok(ids),
            (None, None) => Err(error(format!("prompt: want a text, or tokens, got {prompt}"))),
        }
    }

    /// Tools and other variables of the template.
    fn extras(&self, fields: &mut Fields) -> Result<Extras, JsValue> {
        let tools = match fields.take("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) => tools,
            Some(other) => return Err(error(format!("tools: want a list, got {other}"))),
        };
        let variables = match fields.take("templateVariables") {
            None => Map::new(),
            Some(Value::Object(variables)) => variables,
            Some(other) => return Err(error(format!("templateVariables: want an object, got {other}"))),
        };
        Ok(Extras { tools, variables, ..Extras::default() })
    }

    /// The tokens of a conversation; a final assistant message is continued. Drops the oldest turns if the
    /// context has no room for them and an answer. Returns the number of dropped messages.
    fn chat(
        &self,
        mut messages: Vec<Message>,
        extras: &Extras,
        options: &GenerateOptions,
    ) -> Result<(Vec<u32>, usize), JsValue> {
        let (template, syntax) = self.template.as_ref().map_err(error)?;
        let (tokenizer, n_ctx) = (self.tokenizer()?, self.batch.engine().n_ctx());
        let answer = options.max_tokens.unwrap_or(usize::MAX).min(ANSWER_TOKENS).min(n_ctx / 4);
        let begun = messages.pop_if(|message| message.role == "assistant").map(|message| message.content);
        let first = usize::from(messages.first().is_some_and(|message| message.role == "system"));
        let mut forgotten = 0;
        loop {
            let prompt = syntax.prompt(template, tokenizer, &messages, extras, true, begun.as_deref());
            let ids = prompt.map_err(error)?.ids;
            if ids.len() + answer <= n_ctx {
                return Ok((ids, forgotten));
            }
            let later = messages.iter().skip(first + 1);
            let n = 1 + later.take_while(|message| message.role != "user").count();
            if first + n >= messages.len() {
                let have = ids.len();
                return Err(error(format!(
                    "the last message takes {have} tokens, and {answer} are kept for an answer: the context \
                     has {n_ctx}; load the model with a larger nCtx"
                )));
            }
            messages.drain(first..first + n);
            forgotten += n;
        }
    }

    /// An event as JSON for JavaScript.
    fn event_json(&self, id: SeqId, event: Event) -> Value {
        let tokens: Vec<u32> = event.token.iter().map(|token| token.id).collect();
        let mut told = json!({ "id": id.0, "text": event.text, "tokens": tokens });
        if let Some(reason) = event.end {
            let stats = self.batch.stats_of(id).unwrap_or_default();
            told["end"] = json!({ "reason": word(reason), "stats": stats_json(&stats) });
            if let Some(fault) = event.fault {
                told["end"]["fault"] = json!(fault.to_string());
            }
        }
        told
    }
}

/// The shortest decimal of an f32: 0.6 instead of 0.6000000238418579.
fn short(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}

fn word(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndOfText => "end",
        StopReason::StopString => "stop",
        StopReason::Limit => "limit",
        StopReason::ContextFull => "context",
        StopReason::Cancelled => "cancelled",
        StopReason::Constraint => "grammar",
        StopReason::BrokenLogits => "logits",
    }
}

fn stats_json(stats: &Stats) -> Value {
    json!({
        "promptTokens": stats.prompt_tokens,
        "cachedTokens": stats.cached_tokens,
        "promptSeconds": stats.prompt_time.as_secs_f64(),
        "tokens": stats.generated_tokens,
        "seconds": stats.generate_time.as_secs_f64(),
        "promptTokensPerSecond": stats.prompt_rate(),
        "tokensPerSecond": stats.generate_rate(),
    })
}
