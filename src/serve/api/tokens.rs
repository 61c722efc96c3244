//! Tokens of texts, text of tokens, and conversations rendered by the chat template.

use std::sync::Arc;

use axum::extract::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::openapi::{Endpoints, Operation};
use super::{Answer, ChatInput, OfModel, Read, Talk, model_of_query};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Kind, missing, request};
use crate::http::json::json;
use crate::kinds::{Any, Array, Bool, List, Text, int};
use crate::messages::{self, ChatFields, MESSAGES, Message};
use crate::prompts::{self, TextLimit};
use sterna_tokenizer::{Special, chat};

pub fn add(to: &mut Endpoints) {
    let operation = Operation::new("Tokens of a text").body::<TokenizeRequest>().answer::<Tokenized>();
    to.post(&["/tokenize"], tokenize, &operation);
    let operation = Operation::new("Text of tokens").body::<DetokenizeRequest>().answer::<Detokenized>();
    to.post(&["/detokenize"], detokenize, &operation);
    let operation =
        Operation::new("Renders a conversation with the chat template").body::<Talk>().answer::<Template>();
    to.post(&["/apply-template"], apply_template, &operation);
    let operation = Operation::new("The vocabulary's special tokens, in vLLM's format").of_model();
    to.get(&["/tokenizer_info"], tokenizer_info, &operation.answer::<TokenizerInfo>().fails(&[503]));
}

request! {
    /// llama-server's format with `content`, vLLM's with `prompt` or `messages`.
    struct TokenizeRequest {
        ..OfModel,
        ..ChatFields,
        /// A text, or a list of texts and tokens.
        content: Any as {
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": ["string", "integer"] } },
            ],
        },
        prompt: Text,
        messages: List<Message>(MESSAGES),
        /// Used with `content`.
        add_special: Bool,
        /// Used with `prompt`.
        add_special_tokens: Bool,
        parse_special: Bool,
        with_pieces: Bool,
    }
}

request! {
    /// Tokens to be converted to text.
    struct DetokenizeRequest {
        ..OfModel,
        /// At most 16 times the context length.
        tokens: Any as {
            "type": "array", "items": { "type": "integer", "minimum": 0 },
        } or missing("a list of tokens"),
    }
}

/// Tokens of a text.
#[derive(Serialize, JsonSchema)]
struct Tokenized {
    /// Number of tokens, in vLLM's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<usize>,
    /// Maximum context length, in vLLM's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    tokens: Tokens,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Tokens {
    Ids(Vec<u32>),
    WithPieces(Vec<TokenPiece>),
}

#[derive(Serialize, JsonSchema)]
struct TokenPiece {
    id: u32,
    piece: Piece,
}

/// A text, or bytes that are not valid UTF-8.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// The text, under llama-server's name and vLLM's.
#[derive(Serialize, JsonSchema)]
struct Detokenized {
    content: String,
    prompt: String,
}

/// The vocabulary, in the format of Hugging Face's `tokenizer_config.json`.
#[derive(Serialize, JsonSchema)]
struct TokenizerInfo {
    tokenizer_class: &'static str,
    vocab_size: usize,
    model_max_length: usize,
    add_bos_token: bool,
    bos_token: Option<String>,
    bos_token_id: Option<u32>,
    eos_token: Option<String>,
    eos_token_id: Option<u32>,
    /// The end-of-text token.
    pad_token: Option<String>,
    chat_template: Option<String>,
}

/// A conversation as text.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AppliedTemplate")]
struct Template {
    prompt: String,
}

/// Tokenises in llama-server's format (`content`) or vLLM's (`prompt` or `messages`).
async fn tokenize(app: Arc<App>, request: Request) -> Answer {
    let answer = Read::<TokenizeRequest>::of(&app, request).await?.work(|read, served| {
        let (fields, tokenizer) = (read.fields(), served.tokenizer());
        let special = match fields.parse_special()?.unwrap_or(true) {
            true => Special::Parse,
            false => Special::AsText,
        };
        let most = served.most_text();
        let too_long = |_, n| ApiError::bad(format!("want a text of at most {most} tokens, got {n}"));
        let limit = Some(TextLimit { tokens: most, error: &too_long });
        let (is_vllm, ids) = if let Some(text) = fields.prompt()? {
            let (text, add_special) = (Value::from(text), fields.add_special_tokens()?.unwrap_or(true));
            (true, prompts::joined("prompt", &[text], special, add_special, served, limit)?)
        } else if let Some(messages) = fields.messages()? {
            let chat = messages::chat_prompt_with_tools(&messages, &fields.part(), served)?;
            if let Some(image) = chat.images.first() {
                let message = format!("`{}`: rows of images are not tokens", image.path);
                return Err(ApiError::in_field(&image.path, message));
            }
            (true, chat.prompt(served)?.ids)
        } else {
            let want = "a text, or a list of texts and tokens";
            let parts = match fields.content()? {
                Some(Value::Array(parts)) => parts.as_slice(),
                Some(text @ Value::String(_)) => std::slice::from_ref(text),
                Some(other) => return Err(ApiError::field("content", want, other)),
                None => return Err(ApiError::missing("content", want)),
            };
            let add_special = fields.add_special()?.unwrap_or(false);
            (false, prompts::joined("content", parts, special, add_special, served, limit)?)
        };
        let piece = |id: &u32| match std::str::from_utf8(tokenizer.token_bytes(*id)) {
            Ok(text) => Piece::Text(text.to_owned()),
            Err(_) => Piece::Bytes(tokenizer.token_bytes(*id).to_vec()),
        };
        let count = is_vllm.then_some(ids.len());
        let max_model_len = is_vllm.then(|| served.n_ctx());
        let tokens = match fields.with_pieces()?.unwrap_or(false) {
            true => {
                Tokens::WithPieces(ids.iter().map(|id| TokenPiece { id: *id, piece: piece(id) }).collect())
            }
            false => Tokens::Ids(ids),
        };
        Ok(Tokenized { count, max_model_len, tokens })
    });
    Ok(json(&answer.await?))
}

async fn detokenize(app: Arc<App>, request: Request) -> Answer {
    let answer = Read::<DetokenizeRequest>::of(&app, request).await?.work(|read, served| {
        let list = Array::new(served.most_text()).read("tokens".to_owned(), read.fields().tokens()?)?;
        let n_vocab = served.tokenizer().n_vocab();
        let id = |value: &Value| {
            let id = int(value).and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_vocab);
            id.ok_or_else(|| ApiError::field("tokens", &format!("tokens below {n_vocab}"), value))
        };
        let ids: Vec<u32> = list.iter().map(id).collect::<Result<_, _>>()?;
        let content = String::from_utf8_lossy(&served.tokenizer().decode(&ids, true)).into_owned();
        Ok(Detokenized { prompt: content.clone(), content })
    });
    Ok(json(&answer.await?))
}

async fn tokenizer_info(app: Arc<App>, request: Request) -> Answer {
    let model = model_of_query(&app, request.uri()).await?;
    let (served, tokenizer) = (&model.served, model.served.tokenizer());
    let spelled = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    Ok(json(&TokenizerInfo {
        tokenizer_class: "PreTrainedTokenizerFast",
        vocab_size: tokenizer.n_vocab(),
        model_max_length: served.n_ctx(),
        add_bos_token: tokenizer.add_bos(),
        bos_token: tokenizer.bos().map(spelled),
        bos_token_id: tokenizer.bos(),
        eos_token: tokenizer.eos().map(spelled),
        eos_token_id: tokenizer.eos(),
        pad_token: tokenizer.eos().map(spelled),
        chat_template: served.chats().then(|| served.template.source().to_owned()),
    }))
}

async fn apply_template(app: Arc<App>, request: Request) -> Answer {
    let answer = Read::<Talk>::of(&app, request).await?.work(|read, served| {
        let fields = read.fields().part::<ChatInput>();
        let chat = messages::chat_prompt_with_tools(&fields.messages()?, &fields.part(), served)?;
        let prompt = chat.prompt(served)?;
        // llama.cpp's mark of an image.
        Ok(Template { prompt: prompt.text.replace(chat::IMAGE, "<__media__>") })
    });
    Ok(json(&answer.await?))
}
