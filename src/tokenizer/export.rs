//! Exports a vocabulary as a `tokenizer.json` for Hugging Face's tokenizers.
//!
//! Ids match [`Tokenizer::encode`](super::Tokenizer::encode) except where the format cannot express the rule:
//! for overlapping special tokens it takes the leftmost one, and among SentencePiece pairs of equal score the
//! lower ids merge first instead of the leftmost pair.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value as Json, json};

use super::pre::PreTokenizer;
use super::vocab::{self, Algorithm, TokenKind, Vocab};
use super::{
    TokenizerError, TokenizerOptions, mark_control_tokens, pre_tokenizer, special_tokens, wordpiece,
};
use sterna_gguf::Metadata;

/// Returns the contents of a `tokenizer.json` for the vocabulary of a file, readable by `tokenizers` 0.20 and
/// later. With special tokens, it adds BOS and EOS if the file asks for them.
///
/// # Errors
/// As [`Tokenizer::from_metadata`](super::Tokenizer::from_metadata).
pub fn tokenizer_json(metadata: &Metadata, options: TokenizerOptions) -> Result<Json, TokenizerError> {
    let mut vocab = Vocab::from_metadata(metadata)?;
    mark_control_tokens(&mut vocab);
    let (model, normalizer, pre, decoder, usually_bos) = match vocab.algorithm {
        Algorithm::ByteLevelBpe => {
            let pre = pre_tokenizer(&mut vocab, options.pre)?;
            let model = byte_level(&vocab, metadata, pre.ignore_merges())?;
            (model, Json::Null, steps(pre), json!(byte_level_step(true)), pre.add_bos())
        }
        Algorithm::RankedBpe => {
            let mut model = byte_level(&vocab, metadata, false)?;
            model["byte_fallback"] = true.into();
            let newlines = split("[^\\n]+|[\\n]+");
            (model, normalizer(&vocab), newlines, spm_decoder(&vocab), true)
        }
        Algorithm::ScoredBpe => (scored(&vocab), normalizer(&vocab), Json::Null, spm_decoder(&vocab), true),
        Algorithm::WordPiece => {
            let normalizer = json!({
                "type": "BertNormalizer",
                "clean_text": true,
                "handle_chinese_chars": true,
                "strip_accents": vocab.strip_accents,
                "lowercase": vocab.lowercase,
            });
            let pre = json!({ "type": "BertPreTokenizer" });
            // Keep spaces before punctuation, as our own decoder does.
            let decoder = json!({ "type": "WordPiece", "prefix": CONTINUES, "cleanup": false });
            (word_pieces(&vocab), normalizer, pre, decoder, true)
        }
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&vocab),
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": post_processor(&vocab, usually_bos),
        "decoder": decoder,
        "model": model,
    }))
}

/// Prefix of a piece that continues a word.
const CONTINUES: &str = "##";

fn word_pieces(vocab: &Vocab) -> Json {
    let spelled = |(token, kind): (&String, &TokenKind)| match vocab::begun(token) {
        Some(text) if *kind == TokenKind::Normal => text.to_owned(),
        None if *kind == TokenKind::Normal => format!("{CONTINUES}{token}"),
        _ => token.clone(),
    };
    let tokens = vocab.tokens.iter().zip(&vocab.kinds).map(spelled);
    let ids: Map<String, Json> = tokens.zip(0u32..).map(|(token, id)| (token, id.into())).collect();
    json!({
        "type": "WordPiece",
        // The format requires one.
        "unk_token": vocab.unk.map_or("[UNK]", |id| vocab.tokens[id as usize].as_str()),
        "continuing_subword_prefix": CONTINUES,
        "max_input_chars_per_word": wordpiece::MAX_WORD,
        "vocab": ids,
    })
}

/// Token ids by spelling; if several tokens have the same spelling, the last one wins.
fn ids(vocab: &Vocab) -> Map<String, Json> {
    (0u32..).zip(&vocab.tokens).map(|(id, token)| (token.clone(), id.into())).collect()
}

fn model(vocab: &Vocab, merges: Vec<(String, String)>, unk: Option<&str>, of_bytes: bool) -> Json {
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": unk,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": unk.is_some(),
        "byte_fallback": of_bytes,
        "ignore_merges": false,
        "vocab": ids(vocab),
        "merges": merges,
    })
}

fn byte_level(vocab: &Vocab, metadata: &Metadata, ignore_merges: bool) -> Result<Json, TokenizerError> {
    let known: HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
    let mut merges = vocab::merges(metadata)?;
    merges.retain(|(left, right)| {
        let join = format!("{left}{right}");
        [*left, *right, &join].iter().all(|side| known.contains(side))
    });
    let merges = merges.into_iter().map(|(left, right)| (left.to_owned(), right.to_owned())).collect();
    let mut model = model(vocab, merges, None, false);
    model["ignore_merges"] = ignore_merges.into();
    Ok(model)
}

/// Only the byte-level alphabet: the text is already split.
fn byte_level_step(decodes: bool) -> Json {
    json!({ "type": "ByteLevel", "add_prefix_space": decodes, "trim_offsets": true, "use_regex": decodes })
}

fn split(pattern: &str) -> Json {
    let pattern = json!({ "Regex": pattern });
    json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false })
}

fn steps(pre: PreTokenizer) -> Json {
    let steps: Vec<Json> =
        pre.published().map(|pattern| split(&pattern)).chain([byte_level_step(false)]).collect();
    json!({ "type": "Sequence", "pretokenizers": steps })
}

/// Merges in the order in which the scores apply them: each way to split a token in two, best token first.
fn scored(vocab: &Vocab) -> Json {
    let ids: HashMap<&str, u32> =
        (0u32..).zip(&vocab.tokens).map(|(id, token)| (token.as_str(), id)).collect();
    let score = |id: u32| vocab.scores.get(id as usize).map_or(0.0, |score| score + 0.0);
    let mut pairs: Vec<(u32, u32, u32)> = Vec::new();
    for (token, &id) in &ids {
        for (at, _) in token.char_indices().skip(1) {
            if let (Some(left), Some(right)) = (ids.get(&token[..at]), ids.get(&token[at..])) {
                pairs.push((id, *left, *right));
            }
        }
    }
    pairs.sort_by(|a, b| {
        score(b.0).total_cmp(&score(a.0)).then(a.0.cmp(&b.0)).then((a.1, a.2).cmp(&(b.1, b.2)))
    });
    let spelled = |id: u32| vocab.tokens[id as usize].clone();
    let merges = pairs.into_iter().map(|(_, left, right)| (spelled(left), spelled(right))).collect();
    let unk = vocab.unk.map(|id| vocab.tokens[id as usize].as_str());
    model(vocab, merges, unk, true)
}

fn normalizer(vocab: &Vocab) -> Json {
    let prefix = vocab.add_space_prefix.then(|| json!({ "type": "Prepend", "prepend": "▁" }));
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let steps: Vec<Json> = prefix.into_iter().chain([spaces]).collect();
    json!({ "type": "Sequence", "normalizers": steps })
}

fn spm_decoder(vocab: &Vocab) -> Json {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if vocab.add_space_prefix {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Tokens that are matched before anything else. Special ones are not written out.
fn added_tokens(vocab: &Vocab) -> Vec<Json> {
    let mut tokens = special_tokens(vocab).listed();
    tokens.sort_by_key(|token| token.id);
    let is_hidden = |id: u32| matches!(vocab.kinds[id as usize], TokenKind::Control | TokenKind::Unknown);
    let entry = |token: super::special::SpecialToken| {
        json!({
            "id": token.id,
            "content": token.text,
            "single_word": false,
            "lstrip": false,
            "rstrip": token.strip_right,
            "normalized": false,
            "special": is_hidden(token.id),
        })
    };
    tokens.into_iter().map(entry).collect()
}

fn post_processor(vocab: &Vocab, usually_bos: bool) -> Json {
    let bos = vocab.bos.filter(|_| vocab.add_bos.unwrap_or(usually_bos));
    let eos = vocab.eos.filter(|_| vocab.add_eos);
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let spelled = |id: u32| vocab.tokens[id as usize].clone();
    let token = |id: u32, of: u8| json!({ "SpecialToken": { "id": spelled(id), "type_id": of } });
    let text = |of: u8| {
        let name = if of == 0 { "A" } else { "B" };
        let sequence = json!({ "Sequence": { "id": name, "type_id": of } });
        let all =
            bos.map(|id| token(id, of)).into_iter().chain([sequence]).chain(eos.map(|id| token(id, of)));
        all.collect::<Vec<Json>>()
    };
    let entry = |id: u32| (spelled(id), json!({ "id": spelled(id), "ids": [id], "tokens": [spelled(id)] }));
    let special: Map<String, Json> = bos.into_iter().chain(eos).map(entry).collect();
    let mut pair = [text(0), text(1)].concat();
    if vocab.algorithm == Algorithm::WordPiece && bos.is_some() {
        // Only the first text gets a BOS: `[CLS] A [SEP] B [SEP]`.
        pair.remove(text(0).len());
    }
    json!({
        "type": "TemplateProcessing",
        "single": text(0),
        "pair": pair,
        "special_tokens": special,
    })
}
