//! Sampling, length and stop options of a request, by the names of OpenAI, llama-server and vLLM.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, request};
use super::kinds::{Any, Array, Bool, Float, Int, MAX_INT, Only, Texts, Unread, UpTo, int};
use super::model::Served;
use sterna_engine::{GenerateOptions, SamplerOptions, recommended};
use sterna_tokenizer::Special;

/// Maximum stop texts of a request, and maximum bytes of each.
pub const STOPS: (usize, usize) = (128, 1024);
/// Maximum tokens that end an answer.
const STOP_TOKENS: usize = 256;
/// Maximum candidates whose log-probabilities are returned per token.
pub const TOP_LOGPROBS: usize = 20;
/// Maximum tokens of `logit_bias`.
const BIASES: usize = 1024;
/// Maximum bytes of the texts in `logit_bias`.
const BIAS_BYTES: usize = 64 << 10;

request! {
    /// Fields of every generating request. Missing ones have the server's defaults.
    pub struct Generation {
        ..OtherSamplers,
        temperature: Float(-1.0, 100.0),
        top_p: Float(0.0, 1.0),
        /// 0 and -1 allow all tokens.
        top_k: Int(-1, MAX_INT),
        min_p: Float(0.0, 1.0),
        typical_p | typical: Float(0.0, 1.0),
        repeat_penalty | repetition_penalty: Float(0.001, 100.0),
        /// Number of tokens that the penalties look back on; -1 is the whole context.
        repeat_last_n: Int(-1, MAX_INT),
        presence_penalty: Float(-100.0, 100.0),
        frequency_penalty: Float(-100.0, 100.0),
        /// A negative seed is random.
        seed: Int(i64::MIN, i64::MAX),
        /// Tokens (ids or texts) and biases, or pairs of a token and a bias or false; 1024 tokens at most.
        logit_bias: Any as {
            "anyOf": [
                { "type": "object", "additionalProperties": { "type": ["number", "boolean"] } },
                { "type": "array", "items": { "type": "array", "minItems": 2, "maxItems": 2 } },
            ],
        },
        stop: Texts(STOPS.0, STOPS.1),
        include_stop_str_in_output: Bool,
        stop_token_ids: Array(STOP_TOKENS) as { "items": { "type": "integer", "minimum": 0 } },
        /// At most the context length.
        min_tokens: UpTo(0),
        ignore_eos: Bool,
        skip_special_tokens: Bool,
        suffix: Only(|| json!([""])),
        n_cmpl: Only(|| json!([1])),
        priority: Only(|| json!([0.0])),
        thinking_token_budget: Only(|| json!([])),
    }
}

request! {
    /// Number of answers.
    pub struct Choices {
        /// At most the server's number of slots.
        n: UpTo(1),
    }
}

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

request! {
    /// Samplers of other servers, which are ignored.
    pub enum OtherSamplers = OTHER_SAMPLERS;
}

/// The sampler of a request, with the server's defaults.
///
/// # Errors
/// 400 that names the field.
pub fn sampler(fields: &Fields<'_, Generation>, served: &Served) -> Result<SamplerOptions, ApiError> {
    fields.suffix()?;
    fields.n_cmpl()?;
    fields.priority()?;
    fields.thinking_token_budget()?;
    if let Some(name) = OTHER_SAMPLERS.iter().find(|name| fields.given(&[name]).is_some()) {
        tracing::debug!(name, "the request asks for a sampler that is not supported; it is ignored");
    }
    let default = &served.sampler;
    let seed = fields.seed()?;
    let mut logit_bias = default.logit_bias.clone();
    logit_bias.extend(biases(fields, served)?);
    Ok(SamplerOptions {
        temperature: fields.temperature()?.unwrap_or(default.temperature),
        top_k: fields.top_k()?.map_or(default.top_k, recommended::top_k),
        typical_p: fields.typical_p()?.unwrap_or(default.typical_p),
        top_p: fields.top_p()?.unwrap_or(default.top_p),
        min_p: fields.min_p()?.unwrap_or(default.min_p),
        repeat_penalty: fields.repeat_penalty()?.unwrap_or(default.repeat_penalty),
        presence_penalty: fields.presence_penalty()?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.frequency_penalty()?.unwrap_or(default.frequency_penalty),
        repeat_last_n: fields
            .repeat_last_n()?
            .map_or(default.repeat_last_n, |n| recommended::last_n(n, served.n_ctx())),
        logit_bias,
        // A negative seed is random, as in llama-server.
        seed: match seed {
            Some(seed) => u64::try_from(seed).ok(),
            None => default.seed,
        },
    })
}

/// Generation options, except those whose names differ between endpoint families.
///
/// # Errors
/// 400 that names the field.
pub fn generation(fields: &Fields<'_, Generation>, served: &Served) -> Result<GenerateOptions, ApiError> {
    let sampler = sampler(fields, served)?;
    Ok(GenerateOptions {
        sampler,
        stop: fields.stop()?.unwrap_or_default(),
        show_stop: fields.include_stop_str_in_output()?.unwrap_or(false),
        stop_tokens: stop_tokens(fields, served)?,
        min_tokens: count(fields.min_tokens()?, served.n_ctx())?.unwrap_or(0),
        ignore_eos: fields.ignore_eos()?.unwrap_or(false),
        show_special: fields.skip_special_tokens()? == Some(false),
        speculation: served.speculation.clone(),
        ..GenerateOptions::default()
    })
}

/// Tokens that end an answer.
fn stop_tokens(fields: &Fields<'_, Generation>, served: &Served) -> Result<Vec<u32>, ApiError> {
    let n_vocab = served.engine.hyper().n_vocab;
    let id = |value: &Value| {
        let id = int(value).and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_vocab);
        let want = format!("token ids below {n_vocab}");
        id.ok_or_else(|| ApiError::field(fields.path("stop_token_ids"), &want, value))
    };
    fields.stop_token_ids()?.unwrap_or_default().iter().map(id).collect()
}

/// Number of answers requested.
///
/// # Errors
/// 400 that names the field.
pub fn n(fields: &Fields<'_, Choices>, served: &Served) -> Result<usize, ApiError> {
    Ok(count(fields.n()?, served.n_slots())?.unwrap_or(1))
}

fn count(value: Option<Unread<'_>>, most: usize) -> Result<Option<usize>, ApiError> {
    Ok(value.map(|value| value.up_to(most)).transpose()?.map(|count| count as usize))
}

/// `logit_bias`: OpenAI's object of ids, or llama-server's list of pairs. In both a text that is no id means
/// its tokens, and `false` bans a token.
fn biases(fields: &Fields<'_, Generation>, served: &Served) -> Result<Vec<(u32, f32)>, ApiError> {
    let name = fields.path("logit_bias");
    let Some(value) = fields.logit_bias()? else { return Ok(Vec::new()) };
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
    let at_most = |most: usize, what: &str, got: usize| match got > most {
        true => Err(ApiError::in_field(&name, format!("`{name}`: want at most {most} {what}, got {got}"))),
        false => Ok(()),
    };
    at_most(BIASES, "tokens", pairs.len())?;
    let is_object = value.is_object();
    let (mut found, mut n_bytes) = (Vec::new(), 0);
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
            Value::String(id) if is_object && id.trim().parse::<i64>().is_ok() => id.trim().parse().ok(),
            Value::String(text) => {
                n_bytes += text.len();
                at_most(BIAS_BYTES, "bytes of texts", n_bytes)?;
                let ids = served.tokenizer().encode(text, Special::Parse, false);
                found.extend(ids.into_iter().map(|id| (id, bias)));
                at_most(BIASES, "tokens", found.len())?;
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
    at_most(BIASES, "tokens", found.len())?;
    Ok(found)
}
