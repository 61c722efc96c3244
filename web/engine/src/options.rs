//! Parses the package's options from JSON.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};
use sterna::engine::{EngineOptions, GenerateOptions, Grammar, SamplerOptions, recommended};
use sterna::tokenizer::chat::{Message, ToolCall};
use wasm_bindgen::JsValue;

use crate::fault::error;

/// Default batch rows per step. Small, because an answer can only be stopped between steps.
const BATCH: usize = 128;

/// Named values, each taken once; names that are left over are unknown options.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// # Errors
    /// The text is not a JSON object.
    pub fn new(json: &str) -> Result<Self, JsValue> {
        match serde_json::from_str(json) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            _ => Err(error("options: want an object")),
        }
    }

    /// Takes a value, unless it is null or missing.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// As [`take`](Self::take), converted by `read`.
    ///
    /// # Errors
    /// The value cannot be converted.
    pub fn read<T>(
        &mut self,
        name: &str,
        want: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, JsValue> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(error(format!("{name}: want {want}, got {value}"))),
        }
    }

    /// # Errors
    /// The value is not a text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, JsValue> {
        self.read(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a text and parses it.
    ///
    /// # Errors
    /// The value is not a text, or cannot be parsed.
    fn parsed<T: FromStr<Err: Display>>(&mut self, name: &str) -> Result<Option<T>, JsValue> {
        let text = self.text(name)?;
        text.map(|text| text.parse().map_err(|err| error(format!("{name}: {err}")))).transpose()
    }

    /// # Errors
    /// The value is neither a text nor a list of texts.
    pub fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, JsValue> {
        self.read(name, "a text, or a list of texts", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
            _ => None,
        })
    }

    fn flag(&mut self, name: &str) -> Result<bool, JsValue> {
        Ok(self.read(name, "true or false", Value::as_bool)?.unwrap_or_default())
    }

    fn float(&mut self, name: &str, default: f32) -> Result<f32, JsValue> {
        Ok(self.read(name, "a number", Value::as_f64)?.map_or(default, |number| number as f32))
    }

    fn whole(&mut self, name: &str) -> Result<Option<i64>, JsValue> {
        // JavaScript may write an integer as 1e3.
        let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9.1e15;
        let read =
            |value: &Value| value.as_i64().or(value.as_f64().filter(whole).map(|number| number as i64));
        self.read(name, "a whole number", read)
    }

    fn size(&mut self, name: &str) -> Result<Option<usize>, JsValue> {
        match self.whole(name)? {
            Some(number) => usize::try_from(number)
                .map(Some)
                .map_err(|_| error(format!("{name}: want 0 or more, got {number}"))),
            None => Ok(None),
        }
    }

    /// Checks that no values are left.
    ///
    /// # Errors
    /// The names that are left.
    pub fn end(self) -> Result<(), JsValue> {
        let left = self.0.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name);
        let left: Vec<_> = left.collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(error(format!("unknown options: {}", left.join(", ")))),
        }
    }
}

/// Options for loading a model.
///
/// # Errors
/// A value has the wrong type.
pub fn engine(fields: &mut Fields) -> Result<EngineOptions, JsValue> {
    let default = EngineOptions::default();
    let backend = match fields.text("backend")?.as_deref() {
        None => "auto",
        Some("webgpu") => "wgpu",
        Some("cpu") => "cpu",
        Some(other) => return Err(error(format!("backend: want webgpu or cpu, got {other}"))),
    };
    Ok(EngineOptions {
        device: backend.parse().map_err(|err| error(format!("backend: {err}")))?,
        threads: Some(1),
        n_ctx: fields.size("nCtx")?,
        batch: fields.size("batch")?.unwrap_or(BATCH),
        n_seqs: fields.size("nSeqs")?.unwrap_or(1),
        cache_type_k: fields.parsed("cacheTypeK")?.unwrap_or(default.cache_type_k),
        cache_type_v: fields.parsed("cacheTypeV")?.unwrap_or(default.cache_type_v),
        kv_sinks: fields.size("kvSinks")?,
        kv_window: fields.size("kvWindow")?,
        head_type: fields.parsed("headType")?.unwrap_or_default(),
        act_type: fields.parsed("actType")?.unwrap_or_default(),
        tokenizer_pre: fields.parsed("tokenizerPre")?,
        ..EngineOptions::default()
    })
}

/// Options for generating text; `default` is the file's recommendation.
///
/// # Errors
/// A value has the wrong type, or a grammar cannot be used.
pub fn generate(
    fields: &mut Fields,
    default: SamplerOptions,
    n_ctx: usize,
    constraint: impl FnOnce(&mut Fields) -> Result<Option<Arc<dyn Grammar>>, JsValue>,
) -> Result<GenerateOptions, JsValue> {
    let seed = fields.whole("seed")?;
    let sampler = SamplerOptions {
        temperature: fields.float("temperature", default.temperature)?,
        top_k: fields.whole("topK")?.map_or(default.top_k, recommended::top_k),
        typical_p: fields.float("typicalP", default.typical_p)?,
        top_p: fields.float("topP", default.top_p)?,
        min_p: fields.float("minP", default.min_p)?,
        repeat_penalty: fields.float("repeatPenalty", default.repeat_penalty)?,
        presence_penalty: fields.float("presencePenalty", default.presence_penalty)?,
        frequency_penalty: fields.float("frequencyPenalty", default.frequency_penalty)?,
        repeat_last_n: fields
            .whole("repeatLastN")?
            .map_or(default.repeat_last_n, |n| recommended::last_n(n, n_ctx)),
        seed: seed.map(|seed| seed as u64),
        ..default
    };
    let grammar = constraint(fields)?;
    Ok(GenerateOptions {
        sampler,
        max_tokens: fields.size("maxTokens")?,
        min_tokens: fields.size("minTokens")?.unwrap_or_default(),
        stop: fields.texts("stop")?.unwrap_or_default(),
        ignore_eos: fields.flag("ignoreEos")?,
        show_special: fields.flag("showSpecial")?,
        grammar,
        ..GenerateOptions::default()
    })
}

/// The messages of a conversation.
///
/// # Errors
/// There are no messages, or one has no valid role or content.
pub fn messages(value: &Value) -> Result<Vec<Message>, JsValue> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| error(format!("messages: want a list of messages, got {value}")))?;
    list.iter().enumerate().map(|(at, one)| message(one).ok_or_else(|| wrong(at, one))).collect()
}

fn wrong(at: usize, one: &Value) -> JsValue {
    if one.get("content").is_some_and(Value::is_array) {
        return error(format!(
            "messages[{at}].content: want a text. Models in this package see no images, only those of \
             `sterna serve` do"
        ));
    }
    error(format!("messages[{at}]: want {{role, content}}, two texts, got {one}"))
}

fn message(value: &Value) -> Option<Message> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let content = match value.get("content") {
        Some(Value::Null) => "",
        _ => text("content")?,
    };
    let mut message = Message::new(text("role")?, content);
    message.reasoning_content = text("reasoning_content").map(str::to_owned);
    message.tool_call_id = text("tool_call_id").map(str::to_owned);
    message.name = text("name").map(str::to_owned);
    for call in value.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = call.get("function").unwrap_or(call);
        message.tool_calls.push(ToolCall {
            id: call.get("id").and_then(Value::as_str).map(str::to_owned),
            name: function.get("name")?.as_str()?.to_owned(),
            arguments: match function.get("arguments")? {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        });
    }
    Some(message)
}
