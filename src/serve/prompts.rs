//! Prompts of completions: a text, a list of tokens, a mixture of both, or several of these.

use serde_json::Value;

use super::error::ApiError;
use super::kinds::int;
use super::model::Served;
use sterna_tokenizer::Special;

/// Maximum prompts of a request.
const PROMPTS: usize = 64;

/// Description of the prompts that a request may have.
pub const WANT: &str = "a text, a list of tokens, or a list of those";

/// The tokens of each prompt. Control tokens in texts are parsed, because raw prompts are written as the
/// model reads them.
///
/// # Errors
/// 400 for a value that is not a prompt, is empty, or contains tokens that the model does not have.
pub fn prompts(name: &str, value: &Value, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
    several(name, value, served, PROMPTS, Some(|_, n_tokens, n_ctx| ApiError::too_long(n_tokens, n_ctx)))
}

/// Error for a text that is too long for the context, from the name of its field, its number of tokens, and
/// the context length.
type TooLong = fn(String, usize, usize) -> ApiError;

/// As [`prompts`], with at most `most` prompts. Texts that cannot fit the context are refused unread, unless
/// `too_long` is `None`.
///
/// # Errors
/// As [`prompts`].
pub fn several(
    name: &str,
    value: &Value,
    served: &Served,
    most: usize,
    too_long: Option<TooLong>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let list = match value {
        Value::Array(list) => list,
        one => return Ok(vec![prompt(name, std::slice::from_ref(one), served, too_long)?]),
    };
    let is_one = list.iter().any(Value::is_number);
    if is_one {
        return Ok(vec![prompt(name, list, served, too_long)?]);
    }
    if list.is_empty() || list.len() > most {
        let message = format!("`{name}`: want 1 to {most} entries, got {}", list.len());
        return Err(ApiError::in_field(name, message));
    }
    let each = list.iter().enumerate().map(|(at, one)| {
        let name = format!("{name}[{at}]");
        match one {
            Value::Array(parts) => prompt(&name, parts, served, too_long),
            one => prompt(&name, std::slice::from_ref(one), served, too_long),
        }
    });
    each.collect()
}

/// A list of tokens, which may be empty.
///
/// # Errors
/// 400 for anything else.
pub fn tokens(name: &str, value: Option<&Value>, served: &Served) -> Result<Vec<u32>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.is_empty() => Ok(Vec::new()),
        Some(Value::Array(list)) if list.iter().all(Value::is_number) => prompt(name, list, served, None),
        Some(other) => Err(ApiError::field(name, "a list of tokens", other)),
    }
}

/// One prompt of texts and tokens.
fn prompt(
    name: &str,
    parts: &[Value],
    served: &Served,
    too_long: Option<TooLong>,
) -> Result<Vec<u32>, ApiError> {
    let (tokenizer, n_vocab) = (served.tokenizer(), served.engine.hyper().n_vocab);
    let mut tokens = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        if part.get("multimodal_data").is_some_and(|data| !data.is_null()) {
            return Err(ApiError::unsupported(format!("{name}.multimodal_data")));
        }
        let text = part.as_str().or_else(|| part.get("prompt_string")?.as_str());
        let exceeds = text.and_then(|text| served.exceeds(text.len(), served.n_ctx()));
        if let (Some(n_tokens), Some(too_long)) = (exceeds, too_long) {
            return Err(too_long(name.to_owned(), n_tokens, served.n_ctx()));
        }
        match (text, part) {
            // Only the first text gets a BOS token.
            (Some(text), _) => tokens.extend(tokenizer.encode(text, Special::Parse, at == 0)),
            (None, Value::Number(_)) => {
                let id = int(part).and_then(|id| u32::try_from(id).ok());
                match id.filter(|id| (*id as usize) < n_vocab) {
                    Some(id) => tokens.push(id),
                    None => return Err(ApiError::field(name, &format!("tokens below {n_vocab}"), part)),
                }
            }
            (None, other) => return Err(ApiError::field(name, "a text or tokens", other)),
        }
    }
    match tokens.is_empty() {
        true => Err(ApiError::field(name, "at least one token", &Value::Array(parts.to_vec()))),
        false => Ok(tokens),
    }
}
