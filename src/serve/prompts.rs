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
    let n_ctx = served.n_ctx();
    let too_long = |_, n_tokens| ApiError::too_long(n_tokens, n_ctx);
    several(name, value, served, PROMPTS, Some(TextLimit { tokens: n_ctx, error: &too_long }))
}

/// Limit of a text, checked by its bytes before it is tokenised.
#[derive(Clone, Copy)]
pub struct TextLimit<'a> {
    /// Maximum tokens.
    pub tokens: usize,
    /// Error for a text of the field and of at least the given number of tokens.
    pub error: &'a dyn Fn(String, usize) -> ApiError,
}

/// As [`prompts`], with at most `most` prompts, and with `limit` for each text.
///
/// # Errors
/// As [`prompts`].
pub fn several(
    name: &str,
    value: &Value,
    served: &Served,
    most: usize,
    limit: Option<TextLimit<'_>>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let list = match value {
        Value::Array(list) => list,
        Value::Number(_) => return Err(ApiError::field(name, WANT, value)),
        one => return Ok(vec![prompt(name, std::slice::from_ref(one), served, limit)?]),
    };
    let is_one = list.iter().any(Value::is_number);
    if is_one {
        return Ok(vec![prompt(name, list, served, limit)?]);
    }
    if list.is_empty() || list.len() > most {
        let message = format!("`{name}`: want 1 to {most} entries, got {}", list.len());
        return Err(ApiError::in_field(name, message));
    }
    let each = list.iter().enumerate().map(|(at, one)| {
        let name = format!("{name}[{at}]");
        match one {
            Value::Array(parts) => prompt(&name, parts, served, limit),
            one => prompt(&name, std::slice::from_ref(one), served, limit),
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
    limit: Option<TextLimit<'_>>,
) -> Result<Vec<u32>, ApiError> {
    let tokens = joined(name, parts, Special::Parse, true, served, limit)?;
    match tokens.is_empty() {
        true => Err(ApiError::field(name, "at least one token", &Value::Array(parts.to_vec()))),
        false => Ok(tokens),
    }
}

/// The tokens of texts and tokens that are joined. `add_special` adds a BOS token to a text at the start.
///
/// # Errors
/// 400 for other values, and for tokens that the model does not have; that of `limit`.
pub fn joined(
    name: &str,
    parts: &[Value],
    special: Special,
    add_special: bool,
    served: &Served,
    limit: Option<TextLimit<'_>>,
) -> Result<Vec<u32>, ApiError> {
    let (tokenizer, n_vocab) = (served.tokenizer(), served.engine.hyper().n_vocab);
    let mut tokens = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        if part.get("multimodal_data").is_some_and(|data| !data.is_null()) {
            return Err(ApiError::unsupported(format!("{name}.multimodal_data")));
        }
        let text = part.as_str().or_else(|| part.get("prompt_string")?.as_str());
        if let (Some(text), Some(limit)) = (text, limit)
            && let Some(n_tokens) = served.exceeds(text.len(), limit.tokens)
        {
            return Err((limit.error)(name.to_owned(), n_tokens));
        }
        match (text, part) {
            // Only the first text gets a BOS token.
            (Some(text), _) => tokens.extend(tokenizer.encode(text, special, add_special && at == 0)),
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
    Ok(tokens)
}
