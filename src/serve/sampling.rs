//! How a request wants its text: sampling, length, stops. The names are those of OpenAI, llama-server and
//! vLLM.

use std::time::Duration;

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, int};
use super::model::Served;
use sterna_engine::{GenerateOptions, SamplerOptions, recommended};
use sterna_tokenizer::Special;

/// Most stop texts of a request, and most bytes of each.
pub const STOPS: (usize, usize) = (128, 1024);
/// Most tokens that end an answer.
const STOP_TOKENS: usize = 256;
/// Most tokens whose log-probabilities are told beside each token.
pub const TOP_LOGPROBS: usize = 20;
/// Most entries of `logit_bias`.
const BIASES: usize = 1024;

/// True for a value that asks for nothing.
type IsNothing = fn(&Value) -> bool;
/// Fields of vLLM's clients that are not supported here, and values of them that ask for nothing.
const NOT_DONE: &[(&str, IsNothing)] = &[
    ("suffix", |value| value.as_str() == Some("")),
    ("lora", |value| value.as_array().is_some_and(Vec::is_empty)),
    ("n_cmpl", |value| value.as_u64() == Some(1)),
    ("priority", |value| value.as_f64() == Some(0.0)),
    ("thinking_token_budget", |_| false),
];
/// Samplers of other servers, which change nothing here.
const OTHER_SAMPLERS: &[&str] = &[
    "dry_multiplier",
    "dynatemp_range",
    "mirostat",
    "samplers",
    "top_n_sigma",
    "xtc_probability",
    "use_beam_search",
    "length_penalty",
];

/// The sampler that a request wants, where it says nothing the server's.
///
/// # Errors
/// 400 that names the field.
pub fn sampler(fields: &Fields, served: &Served) -> Result<SamplerOptions, ApiError> {
    for (name, is_nothing) in NOT_DONE {
        if fields.get(name).is_some_and(|value| !is_nothing(value)) {
            return Err(ApiError::unsupported(fields.path(name)));
        }
    }
    if let Some(name) = fields.first(OTHER_SAMPLERS) {
        tracing::debug!(name, "the request asks for a sampler that is not supported; it is ignored");
    }
    let default = &served.sampler;
    let repeat = fields.first(&["repeat_penalty", "repetition_penalty"]).unwrap_or("repeat_penalty");
    let seed = fields.int("seed", i64::MIN..=i64::MAX)?;
    let mut logit_bias = default.logit_bias.clone();
    logit_bias.extend(biases(fields, served)?);
    Ok(SamplerOptions {
        temperature: fields.float("temperature", -1.0..=100.0)?.unwrap_or(default.temperature),
        top_k: fields.int("top_k", -1..=i64::from(i32::MAX))?.map_or(default.top_k, recommended::top_k),
        typical_p: typical(fields)?.unwrap_or(default.typical_p),
        top_p: fields.float("top_p", 0.0..=1.0)?.unwrap_or(default.top_p),
        min_p: fields.float("min_p", 0.0..=1.0)?.unwrap_or(default.min_p),
        repeat_penalty: fields.float(repeat, 0.001..=100.0)?.unwrap_or(default.repeat_penalty),
        presence_penalty: fields
            .float("presence_penalty", -100.0..=100.0)?
            .unwrap_or(default.presence_penalty),
        frequency_penalty: fields
            .float("frequency_penalty", -100.0..=100.0)?
            .unwrap_or(default.frequency_penalty),
        repeat_last_n: fields
            .int("repeat_last_n", -1..=i64::from(i32::MAX))?
            .map_or(default.repeat_last_n, |n| recommended::last_n(n, served.n_ctx())),
        logit_bias,
        // A negative seed asks for any, as llama-server has it.
        seed: match seed {
            Some(seed) => u64::try_from(seed).ok(),
            None => default.seed,
        },
    })
}

fn typical(fields: &Fields) -> Result<Option<f32>, ApiError> {
    fields.float(fields.first(&["typical_p", "typical"]).unwrap_or("typical_p"), 0.0..=1.0)
}

/// Options of generation, but for those that each family of endpoints has a name of its own for.
///
/// # Errors
/// 400 that names the field.
pub fn generation(fields: &Fields, served: &Served) -> Result<GenerateOptions, ApiError> {
    let sampler = sampler(fields, served)?;
    Ok(GenerateOptions {
        sampler,
        stop: fields.texts("stop", STOPS.0, STOPS.1)?,
        show_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
        stop_tokens: stop_tokens(fields, served)?,
        min_tokens: fields.count("min_tokens", 0, served.n_ctx())?.unwrap_or(0),
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        show_special: fields.bool("skip_special_tokens")? == Some(false),
        ..GenerateOptions::default()
    })
}

/// Tokens that end an answer.
fn stop_tokens(fields: &Fields, served: &Served) -> Result<Vec<u32>, ApiError> {
    let n_vocab = served.engine.hyper().n_vocab;
    let id = |value: &Value| {
        let id = int(value).and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_vocab);
        let want = format!("token ids below {n_vocab}");
        id.ok_or_else(|| ApiError::field(fields.path("stop_token_ids"), &want, value))
    };
    fields.list("stop_token_ids", STOP_TOKENS)?.unwrap_or_default().iter().map(id).collect()
}

/// The first of several fields that say how many tokens an answer may have; -1 is as many as there is room
/// for.
///
/// # Errors
/// 400 that names the field.
pub fn max_tokens(fields: &Fields, names: &[&str]) -> Result<Option<i64>, ApiError> {
    let Some(name) = fields.first(names) else { return Ok(None) };
    fields.int(name, -1..=i64::from(i32::MAX))
}

/// Longest time of an answer behind its first token.
///
/// # Errors
/// 400 that names the field.
pub fn time_limit(fields: &Fields) -> Result<Option<Duration>, ApiError> {
    let ms = fields.int("t_max_predict_ms", -1..=i64::from(i32::MAX))?;
    Ok(ms.filter(|ms| *ms > 0).map(|ms| Duration::from_millis(ms as u64)))
}

/// `logit_bias`: OpenAI's object of ids, or llama-server's list of pairs, in which a text stands for its
/// tokens and `false` for never.
fn biases(fields: &Fields, served: &Served) -> Result<Vec<(u32, f32)>, ApiError> {
    let name = fields.path("logit_bias");
    let Some(value) = fields.get("logit_bias") else { return Ok(Vec::new()) };
    let pairs: Vec<(Value, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(id, bias)| (Value::String(id.clone()), bias)).collect(),
        Value::Array(list) => {
            let pair = |pair: &'_ Value| match pair.as_array().map(Vec::as_slice) {
                Some([token, _]) => Ok(token.clone()),
                _ => Err(ApiError::field(&name, "pairs of a token and a bias", pair)),
            };
            let tokens: Vec<Value> = list.iter().map(pair).collect::<Result<_, _>>()?;
            tokens.into_iter().zip(list.iter().map(|pair| &pair[1])).collect()
        }
        other => return Err(ApiError::field(name, "an object or a list of pairs", other)),
    };
    if pairs.len() > BIASES {
        return Err(ApiError::bad(format!("`{name}`: want at most {BIASES} entries, got {}", pairs.len())));
    }
    let is_object = value.is_object();
    let mut found = Vec::new();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            bias => match bias.as_f64().filter(|bias| bias.abs() <= 1e6) {
                Some(bias) => bias as f32,
                None => return Err(ApiError::field(&name, "biases that are numbers or false", bias)),
            },
        };
        let n_vocab = served.engine.hyper().n_vocab;
        let id = match &token {
            Value::String(id) if is_object => id.trim().parse().ok(),
            Value::String(text) => {
                let ids = served.tokenizer().encode(text, Special::Parse, false);
                found.extend(ids.into_iter().map(|id| (id, bias)));
                continue;
            }
            other => int(other),
        };
        match id.and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_vocab) {
            Some(id) => found.push((id, bias)),
            None => {
                let want = format!("token ids below {n_vocab}");
                return Err(ApiError::field(name, &want, &token));
            }
        }
    }
    Ok(found)
}
