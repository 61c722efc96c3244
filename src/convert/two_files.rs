//! Vocabularies of checkpoints from before `tokenizer.json`: `vocab.json` contains the ids of tokens, and
//! `merges.txt` the pairs that byte-level BPE merges, one per line.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::{ConvertError, TOKENIZER_PRE, read_json};

/// Default of every special token in such tokenizers.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Builds the equivalent `tokenizer.json`, which splits texts like GPT-2. `is_known` is true if this model
/// does so or the caller sets another pre-tokenizer.
///
/// # Errors
/// [`ConvertError::File`] if one of the files is missing or corrupt, and if the pre-tokenizer is unknown.
pub fn tokenizer(folder: &Path, settings: &Json, is_known: bool) -> Result<Json, ConvertError> {
    let vocab = &folder.join("vocab.json");
    if !is_known {
        let detail = "comes without tokenizer.json, so the pre-tokenizer is unknown";
        return Err(ConvertError::file(vocab, detail).avoided_by([": set it with ", TOKENIZER_PRE, ""]));
    }
    let ids = read_json(vocab)?;
    let path = folder.join("merges.txt");
    let text = std::fs::read_to_string(&path).map_err(|err| ConvertError::file(&path, err))?;
    let lines = text.lines().enumerate().filter(|(at, line)| {
        let is_title = *at == 0 && line.starts_with("#version");
        !is_title && !line.is_empty()
    });
    let mut merges = Vec::new();
    for (at, line) in lines {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [left, right] if !left.is_empty() && !right.is_empty() => merges.push(line),
            _ => {
                let detail = format!("line {}: want two tokens with a space between them", at + 1);
                return Err(ConvertError::file(&path, detail));
            }
        }
    }
    let special = special(folder, settings)?;
    let added = special.iter().filter_map(|text| {
        let id = ids.get(text)?.as_u64()?;
        Some(json!({"id": id, "content": text, "special": true}))
    });
    let prefix = settings.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(false);
    Ok(json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": true},
        "post_processor": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
    }))
}

/// The special tokens named in the other files.
fn special(folder: &Path, settings: &Json) -> Result<Vec<String>, ConvertError> {
    let map = folder.join("special_tokens_map.json");
    let map = if map.is_file() { read_json(&map)? } else { Json::Null };
    let text = |json: &Json| json.as_str().or_else(|| json.get("content")?.as_str()).map(str::to_owned);
    let entries = [&map, settings].into_iter().filter_map(Json::as_object).flatten();
    let named = entries.filter(|(key, _)| key.ends_with("_token")).filter_map(|(_, json)| text(json));
    let mut special: Vec<String> = named.chain([END_OF_TEXT.to_owned()]).collect();
    special.sort();
    special.dedup();
    Ok(special)
}
