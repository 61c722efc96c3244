//! SentencePiece vocabularies that exist only as `tokenizer.json`, in the three layouts of such files. The
//! expected ids are those of Hugging Face's `tokenizers`.

use std::fs;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use sterna::convert::ConvertOptions;
use sterna::tokenizer::{Special, Tokenizer, TokenizerOptions};
use support::golden;

use super::folder::{Folder, Raw, llama, numbers};
use super::{convert, to};

const LAYOUTS: [&str; 3] = ["llama2", "gemma", "metaspace"];

/// The small vocabulary with the steps of a layout.
fn tokenizer(layout: &str) -> Json {
    let path = golden("tokenizer/metaspace.json").unwrap();
    let mut json: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let none = Json::Null;
    let (normalizer, steps) = match layout {
        "llama2" => (json!({"type": "Sequence", "normalizers": [prepend, replace]}), none),
        "gemma" => {
            let at_spaces = json!({"String": " "});
            let behavior = "MergedWithPrevious";
            let split = json!({"type": "Split", "pattern": at_spaces, "behavior": behavior, "invert": false});
            (replace, split)
        }
        _ => (
            none,
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false}),
        ),
    };
    (json["normalizer"], json["pre_tokenizer"]) = (normalizer, steps);
    json
}

fn folder(tokenizer: Json) -> Folder {
    let mut folder = llama();
    let n_vocab = tokenizer["model"]["vocab"].as_object().unwrap().len();
    let embedding = Raw::f32s(&[n_vocab, 8], &numbers(n_vocab * 8, 1));
    folder.tensors.insert("model.embed_tokens.weight".to_owned(), embedding);
    folder.config["vocab_size"] = json!(n_vocab);
    folder.tokenizer = tokenizer;
    folder
}

fn converted(tokenizer: Json) -> (Tokenizer, Vec<String>) {
    let (gguf, _, notes) = convert(folder(tokenizer).write().path(), &to("f16")).unwrap();
    (Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap(), notes)
}

#[test]
fn metaspace_ids_match_golden_ids() {
    #[derive(serde::Deserialize)]
    struct Case {
        layout: String,
        text: String,
        ids: Vec<u32>,
    }
    let ours = LAYOUTS.map(|layout| (layout, converted(tokenizer(layout)).0));
    let lines = fs::read_to_string(golden("tokenizer/metaspace.jsonl").unwrap()).unwrap();
    let mut n_cases = 0;
    for line in lines.lines() {
        let Case { layout, text, ids } = serde_json::from_str(line).unwrap();
        let (_, tokenizer) = ours.iter().find(|(name, _)| *name == layout).unwrap();
        assert_eq!(tokenizer.encode(&text, Special::Parse, true), ids, "{layout} of {text:?}");
        n_cases += 1;
    }
    assert!(n_cases >= 45, "only {n_cases}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn metaspace_ids_of_any_text_match_hugging_face(
        text in "([a-z]{1,6}|the|lic|ense| a| in|er|on|[ \\n]{1,9}|[0-9]{1,5}|é|漢|🦜|\\PC){0,30}"
    ) {
        static BOTH: LazyLock<Vec<(tokenizers::Tokenizer, Tokenizer)>> = LazyLock::new(|| {
            let both = |layout: &&str| {
                let json = tokenizer(layout);
                (json.to_string().parse().unwrap(), converted(json).0)
            };
            LAYOUTS[..2].iter().map(both).collect()
        });
        for (theirs, ours) in BOTH.iter() {
            let want = theirs.encode(text.as_str(), false).unwrap().get_ids().to_vec();
            prop_assert_eq!(ours.encode(&text, Special::Parse, false), want);
        }
    }
}

#[test]
fn metaspace_metadata_is_written() {
    for (layout, prefix) in LAYOUTS.into_iter().zip([true, false, true]) {
        let (gguf, _, notes) = convert(folder(tokenizer(layout)).write().path(), &to("f16")).unwrap();
        let metadata = gguf.metadata();
        let str_of = |key: &str| metadata.str(key).unwrap().map(str::to_owned);
        assert_eq!(str_of("tokenizer.ggml.model").as_deref(), Some("llama"));
        assert_eq!(str_of("tokenizer.ggml.pre").as_deref(), Some("default"));
        assert_eq!(metadata.bool("tokenizer.ggml.add_space_prefix").unwrap(), Some(prefix), "{layout}");
        assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
        assert_eq!(metadata.bool("tokenizer.ggml.add_eos_token").unwrap(), Some(false));
        assert_eq!(metadata.u32("tokenizer.ggml.unknown_token_id").unwrap(), Some(0));
        let kinds: Vec<i32> = metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap().collect();
        // The unknown token, two control tokens, 256 bytes, and text.
        assert_eq!(kinds[..4], [2, 3, 3, 6]);
        assert_eq!(kinds.iter().filter(|kind| **kind == 6).count(), 256);
        assert_eq!(kinds[259..].iter().filter(|kind| **kind != 1).count(), 0);
        let says_spaces =
            notes.iter().any(|note| note.contains("no space before a text that begins with one"));
        assert_eq!(says_spaces, layout == "metaspace", "{notes:?}");
    }
    let mut plain = tokenizer("gemma");
    plain["post_processor"] = Json::Null;
    assert!(!converted(plain).0.add_bos());
}

/// Tokens that no merge makes although two other tokens spell them.
#[test]
fn unreachable_tokens_and_splits_are_noted() {
    assert!(converted(tokenizer("gemma")).1.is_empty());
    let mut changed = tokenizer("gemma");
    let merges = changed["model"]["merges"].as_array_mut().unwrap();
    let last = merges.pop().unwrap();
    let (_, notes) = converted(changed);
    assert!(notes.len() == 1 && notes[0].contains("1 tokens cannot be reached"), "{last}: {notes:?}");
    let mut splits = tokenizer("metaspace");
    splits["pre_tokenizer"]["split"] = json!(true);
    let (_, notes) = converted(splits);
    assert!(notes.iter().any(|note| note.contains("splits texts before each space")), "{notes:?}");
}

#[test]
fn sentencepiece_vocabulary_is_not_taken_for_another() {
    let refused = |tokenizer: Json, options: &ConvertOptions, words: &[&str]| {
        let said = convert(folder(tokenizer).write().path(), options).err().unwrap().to_string();
        for word in words {
            assert!(said.contains(word), "{said}: want {word}");
        }
    };
    let with = |pre: &str| ConvertOptions { tokenizer_pre: Some(pre.parse().unwrap()), ..to("f16") };
    for layout in LAYOUTS {
        for pre in ["default", "llama-bpe"] {
            let words = [
                "tokenizer.json",
                "a SentencePiece vocabulary",
                pre,
                "leave ConvertOptions::tokenizer_pre out",
            ];
            refused(tokenizer(layout), &with(pre), &words);
        }
    }
    let dir = folder(tokenizer("gemma")).write();
    fs::write(dir.path().join("tokenizer.model"), "").unwrap();
    let said = convert(dir.path(), &with("llama-bpe")).err().unwrap().to_string();
    assert!(said.contains("tokenizer.model: is a SentencePiece vocabulary"), "{said}");
    let mut no_bytes = tokenizer("llama2");
    no_bytes["model"]["byte_fallback"] = json!(false);
    refused(no_bytes, &to("f16"), &["model.byte_fallback is not true"]);
    let mut digits = tokenizer("gemma");
    digits["pre_tokenizer"] = json!({"type": "Digits", "individual_digits": true});
    refused(digits, &to("f16"), &["a step Digits", "tokenizer.model"]);
    let mut suffix = tokenizer("gemma");
    suffix["model"]["end_of_word_suffix"] = json!("</w>");
    refused(suffix, &to("f16"), &["end_of_word_suffix", "want none"]);
}
