//! BERT's vocabulary of word pieces, in which pieces that continue a word begin with `##`. In a GGUF file,
//! pieces that begin a word have the prefix U+2581 instead, and the others have none.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::ConvertError;
use sterna_gguf::Metadata;

/// Prefix of a piece that continues a word.
pub const CONTINUES: &str = "##";

/// Keys of special tokens in `tokenizer_config.json`, and their usual spellings.
const SPECIAL: [(&str, &str); 5] = [
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

/// True if a `tokenizer.json` is of this kind.
pub fn is_wordpiece(tokenizer: &Json) -> bool {
    tokenizer["model"]["type"] == "WordPiece"
}

/// Builds the equivalent `tokenizer.json` from `vocab.txt`, which has one token per line.
///
/// # Errors
/// [`ConvertError::File`] if it cannot be read.
pub fn tokenizer_json(path: &Path, settings: &Json) -> Result<Json, ConvertError> {
    let text = std::fs::read_to_string(path).map_err(|err| ConvertError::file(path, err))?;
    let tokens = text.lines().map(|line| line.trim_end_matches('\r'));
    let vocab: serde_json::Map<String, Json> =
        tokens.zip(0u32..).map(|(token, id)| (token.to_owned(), id.into())).collect();
    let flag = |key: &str, usual: bool| settings.get(key).and_then(Json::as_bool).unwrap_or(usual);
    let special = special(settings);
    let added = special.iter().filter_map(|text| {
        let id = vocab.get(text)?;
        Some(json!({"id": id, "content": text, "special": true}))
    });
    Ok(json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars", true),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": flag("do_lower_case", true),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece", "continuing_subword_prefix": CONTINUES, "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }))
}

/// Spellings of the special tokens: `[UNK]`, `[SEP]`, `[PAD]`, `[CLS]` and `[MASK]`, in this order, unless
/// they have other names.
pub fn special(settings: &Json) -> [String; 5] {
    SPECIAL.map(|(key, usual)| {
        let named =
            settings.get(key).and_then(|json| json.as_str().or_else(|| json.get("content")?.as_str()));
        named.unwrap_or(usual).to_owned()
    })
}

/// Writes the normalisation of texts.
///
/// # Errors
/// Behaviour of the tokenizer that GGUF cannot express.
pub fn normalizer(tokenizer: &Json, metadata: &mut Metadata) -> Result<(), String> {
    let model = &tokenizer["model"];
    for (json, key, want) in [
        (&tokenizer["normalizer"], "type", json!("BertNormalizer")),
        (&tokenizer["normalizer"], "clean_text", json!(true)),
        (&tokenizer["normalizer"], "handle_chinese_chars", json!(true)),
        (&tokenizer["pre_tokenizer"], "type", json!("BertPreTokenizer")),
        (model, "continuing_subword_prefix", json!(CONTINUES)),
        (model, "max_input_chars_per_word", json!(100)),
    ] {
        if json[key] != want {
            return Err(format!(
                "a WordPiece tokenizer whose `{key}` is {}, but GGUF supports only {want}",
                json[key]
            ));
        }
    }
    for key in ["lowercase", "strip_accents"] {
        if let Some(value) = tokenizer["normalizer"][key].as_bool() {
            metadata.set(format!("tokenizer.ggml.normalizer.{key}"), value);
        }
    }
    Ok(())
}

/// Spelling in a GGUF file of a token that is not a control token.
pub fn spelled(token: &str) -> String {
    match token.strip_prefix(CONTINUES) {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => format!("\u{2581}{token}"),
    }
}
