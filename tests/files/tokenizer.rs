//! Token ids compared with reference implementations, for whole vocabularies, and properties of any text.

use std::path::Path;

use proptest::prelude::*;
use serde::Deserialize;

use sterna::gguf::{Array, Gguf, Metadata, Value};
use sterna::tokenizer::{PreTokenizer, Special, StreamDecoder, Tokenizer, TokenizerOptions};

/// One line of a golden file.
#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    special: bool,
    /// For WordPiece: true if text is lowercased and accents are removed.
    #[serde(default)]
    lowercase: bool,
}

fn open(path: &Path, pre: Option<PreTokenizer>) -> Tokenizer {
    let gguf = Gguf::open(path).unwrap_or_else(|err| panic!("{err}"));
    Tokenizer::from_gguf(&gguf, TokenizerOptions { pre }).unwrap_or_else(|err| panic!("{err}"))
}

fn tiny() -> Tokenizer {
    open(&support::golden("tokenizer/tiny-vocab.gguf").expect("is in tests/data"), None)
}

/// Encodes and decodes the `want_cases` cases of the file `cases` in every way.
fn check(vocab: &str, cases: &str, pre: Option<&str>, want_cases: usize) {
    let (Some(vocab), Some(cases)) = (support::golden(vocab), support::golden(cases)) else { return };
    let tokenizer = open(&vocab, pre.map(|name| name.parse().unwrap()));
    let falcon = vocab.ends_with("ggml-vocab-falcon.gguf");
    assert_eq!(tokenizer.notices().len(), usize::from(falcon), "{:?}", tokenizer.notices());
    let text = std::fs::read_to_string(&cases).unwrap();
    let mut wrong = Vec::new();
    let mut n_cases = 0;
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let special = if case.special { Special::Parse } else { Special::AsText };
        let got = tokenizer.encode(&case.text, special, false);
        if got != case.ids {
            wrong.push(format!("{:?} ({special:?})\n  want {:?}\n  got  {got:?}", case.text, case.ids));
        }
        n_cases += 1;
        if !case.special && !falcon {
            assert_eq!(String::from_utf8_lossy(&tokenizer.decode(&got, true)), case.text);
        }
        let mut stream = StreamDecoder::new(&tokenizer, true);
        let streamed: String = got.iter().map(|&id| stream.push(id).to_owned()).collect();
        let streamed = streamed + stream.finish();
        let whole = tokenizer.decode(&got, true);
        let whole = String::from_utf8_lossy(&whole);
        assert!(streamed == whole || streamed.strip_prefix(' ') == Some(&whole), "{streamed:?} {whole:?}");
    }
    assert_eq!(n_cases, want_cases, "{}", cases.display());
    assert!(wrong.is_empty(), "{} of {n_cases} in {}:\n{}", wrong.len(), cases.display(), wrong.join("\n"));
}

macro_rules! golden {
    ($($name:ident: $vocab:literal, $cases:literal, $pre:expr;)*) => {$(
        #[test]
        fn $name() {
            check($vocab, $cases, $pre, 172);
        }
    )*};
}

/// BPE of characters: ids from Hugging Face's tokenizers, by scripts/golden/gemma4-tokenizer.
#[test]
fn gemma4_ids() {
    check("tokenizer/gemma4-vocab.gguf", "tokenizer/gemma4.jsonl", None, 88);
}

golden! {
    tiny_ids: "tokenizer/tiny-vocab.gguf", "tokenizer/tiny.jsonl", None;
    llama_bpe_ids: "tokenizer/ggml-vocab-llama-bpe.gguf", "tokenizer/llama-bpe.jsonl", None;
    llama_bpe_with_default_ids: "tokenizer/ggml-vocab-llama-bpe.gguf",
        "tokenizer/llama-bpe.pre-default.jsonl", Some("default");
    gpt_2_ids: "tokenizer/ggml-vocab-gpt-2.gguf", "tokenizer/gpt-2.jsonl", None;
    qwen2_ids: "tokenizer/ggml-vocab-qwen2.gguf", "tokenizer/qwen2.jsonl", None;
    falcon_ids: "tokenizer/ggml-vocab-falcon.gguf", "tokenizer/falcon.jsonl", None;
    llama_spm_ids: "tokenizer/ggml-vocab-llama-spm.gguf", "tokenizer/llama-spm.jsonl", None;
    phi_3_ids: "tokenizer/ggml-vocab-phi-3.gguf", "tokenizer/phi-3.jsonl", None;
}

#[test]
fn qwen35_ids() {
    check("tokenizer/tiny-vocab.gguf", "tokenizer/qwen35.jsonl", Some("qwen35"), 46);
}

/// The metadata of a WordPiece vocabulary, from lines like those of BERT's vocab.txt: one token per line,
/// with the special tokens first.
fn word_pieces(lines: &str, lowercase: bool) -> Metadata {
    const SPECIAL: [&str; 5] = ["padding", "unknown", "cls", "seperator", "mask"];
    let spelled = |(id, token): (usize, &str)| match token.strip_prefix("##") {
        _ if id < SPECIAL.len() => token.to_owned(),
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => format!("\u{2581}{token}"),
    };
    let tokens: Vec<String> = lines.lines().enumerate().map(spelled).collect();
    let mut metadata = vocabulary("bert", &tokens.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    for (id, word) in SPECIAL.iter().enumerate() {
        metadata.set(format!("tokenizer.ggml.{word}_token_id"), id as u32);
    }
    metadata.set("tokenizer.ggml.normalizer.lowercase", lowercase);
    metadata
}

/// The vocabulary of `golden/tokenizer/wordpiece.txt`.
pub fn small_wordpiece(lowercase: bool) -> Metadata {
    let lines = support::golden("tokenizer/wordpiece.txt").expect("is in tests/data");
    word_pieces(&std::fs::read_to_string(lines).unwrap(), lowercase)
}

#[test]
fn wordpiece_ids() {
    let cases = support::golden("tokenizer/wordpiece.jsonl").expect("is in tests/data");
    let cases = std::fs::read_to_string(cases).unwrap();
    let tokenizers = [false, true].map(|lowercase| build(&small_wordpiece(lowercase)).unwrap());
    let mut wrong = Vec::new();
    for line in cases.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let special = if case.special { Special::Parse } else { Special::AsText };
        let tokenizer = &tokenizers[usize::from(case.lowercase)];
        let got = tokenizer.encode(&case.text, special, false);
        if got != case.ids {
            wrong.push(format!("{:?} ({special:?})\n  want {:?}\n  got  {got:?}", case.text, case.ids));
        }
        let mut stream = StreamDecoder::new(tokenizer, true);
        let streamed: String = got.iter().map(|&id| stream.push(id).to_owned()).collect();
        let whole = tokenizer.decode(&got, true);
        let whole = std::str::from_utf8(&whole).unwrap();
        assert_eq!(streamed.strip_prefix(' ').unwrap_or(&streamed), whole);
    }
    assert!(cases.lines().count() > 400);
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn wordpiece_adds_cls_and_sep() {
    let tokenizer = build(&small_wordpiece(true)).unwrap();
    assert_eq!((tokenizer.cls(), tokenizer.sep()), (Some(2), Some(3)));
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(2), Some(3), true));
    let ids = tokenizer.encode("Unbelievably RUNNING, runs.", Special::AsText, true);
    assert_eq!((ids[0], ids[ids.len() - 1]), (2, 3));
    assert_eq!(tokenizer.decode(&ids, false), b"unbelievably running , runs .");
    assert_eq!(tokenizer.decode(&ids, true), b"[CLS] unbelievably running , runs .[SEP]");
    assert_eq!(tokenizer.encode("", Special::AsText, true), [2, 3]);
    let spelled = tokenizer.encode("[CLS]runs[SEP]", Special::Parse, true);
    assert_eq!(spelled, [2, tokenizer.token_id("\u{2581}runs").unwrap(), 3, 3]);
    assert_eq!(tokenizer.token_id("[MASK]"), Some(4));
    assert!(tokenizer.is_special(1) && tokenizer.is_eog(3));
    // A file without ids of special tokens uses those of BERT.
    let tokens: Vec<String> = (0..110).map(|id| format!("[{id}]")).collect();
    let plain = vocabulary("bert", &tokens.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let plain = build(&plain).unwrap();
    assert_eq!((plain.cls(), plain.sep()), (Some(101), Some(102)));
    assert_eq!(plain.encode("a", Special::AsText, true), [101, 100, 102]);
    assert!(build(&vocabulary("bert", &["a"], &[])).unwrap().encode("b", Special::AsText, true).is_empty());
}

#[test]
fn bos_and_eog_tokens_are_read_from_the_file() {
    let tokenizer = tiny();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.eot()), (Some(636), Some(637), Some(638)));
    let plain = tokenizer.encode("a b", Special::AsText, false);
    let with_bos = tokenizer.encode("a b", Special::AsText, true);
    assert_eq!(with_bos, [&[636], plain.as_slice()].concat());
    assert_eq!([636, 637, 638, 639].map(|id| tokenizer.is_eog(id)), [false, true, true, false]);
    assert_eq!(tokenizer.decode(&with_bos, false), b"a b");
    assert_eq!(tokenizer.decode(&with_bos, true), b"<|begin_of_text|>a b");
    assert_eq!(tokenizer.token_bytes(640), b"");
    assert_eq!(tokenizer.n_vocab(), 640);
}

proptest! {
    #[test]
    fn byte_level_text_round_trips(text in "\\PC*|.{0,40}|(a| |\\n|1|<\\|eot_id\\|>|é|\\PC){0,60}") {
        let tokenizer = tiny();
        for special in [Special::AsText, Special::Parse] {
            let ids = tokenizer.encode(&text, special, false);
            prop_assert_eq!(tokenizer.decode(&ids, true), text.as_bytes());
        }
    }

    #[test]
    fn streamed_text_equals_decoded_text(ids in proptest::collection::vec(0u32..645, 0..60)) {
        let tokenizer = tiny();
        for show_special in [false, true] {
            let mut stream = StreamDecoder::new(&tokenizer, show_special);
            let pieces: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
            let whole = tokenizer.decode(&ids, show_special);
            prop_assert_eq!(pieces + stream.finish(), String::from_utf8_lossy(&whole));
        }
    }
}

/// The metadata of a vocabulary with these tokens and merges.
fn vocabulary(model: &str, tokens: &[&str], merges: &[&str]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("tokenizer.ggml.model", model);
    metadata.set("tokenizer.ggml.tokens", Array::from_strs(tokens.iter().copied()));
    metadata.set("tokenizer.ggml.merges", Array::from_strs(merges.iter().copied()));
    metadata
}

fn build(metadata: &Metadata) -> Result<Tokenizer, String> {
    Tokenizer::from_metadata(metadata, TokenizerOptions::default()).map_err(|err| err.to_string())
}

#[test]
fn llama_3_vocabulary_gets_its_pre_tokenizer() {
    let published = build(&vocabulary("gpt2", &["<|begin_of_text|>", "<|eot_id|>", "a"], &[])).unwrap();
    assert_eq!(published.pre().unwrap().name(), "llama-bpe");
    assert!(published.notices()[0].contains("using `llama-bpe`"));
    let other = build(&vocabulary("gpt2", &["a", "b"], &[])).unwrap();
    assert_eq!(other.pre().unwrap().name(), "default");
}

/// As in llama.cpp: the tokens that the file names, and all known spellings of end tokens.
#[test]
fn eog_tokens_are_named_or_known_by_spelling() {
    let ends = |tokens: &[&str], ids: &[(&str, u32)]| {
        let mut metadata = vocabulary("gpt2", tokens, &[]);
        ids.iter().for_each(|(key, id)| metadata.set(format!("tokenizer.ggml.{key}_token_id"), *id));
        build(&metadata).unwrap().eog().collect::<Vec<_>>()
    };
    let spelled = [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<|fim_pad|>",
        "<|fim_repo|>",
        "<|file_sep|>",
        "[EOS]",
        "a",
    ];
    assert_eq!(ends(&spelled, &[]), (0..16).collect::<Vec<_>>());
    // gpt-oss ends parts of a message with `<|end|>`, and continues.
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"], &[]), [1, 2]);
    let plain = ["a", "b", "c", "d", "e", "f", "g"];
    let named = [("eos", 0), ("eot", 1), ("eom", 2), ("fim_pad", 3), ("fim_rep", 4), ("fim_sep", 5)];
    assert_eq!(ends(&plain, &named), [0, 1, 2, 3, 4, 5]);
    assert!(ends(&plain, &[("eom", 99)]).is_empty());
}

#[test]
fn bos_is_not_added_twice() {
    let tokenizer = tiny();
    let once = tokenizer.encode("<|begin_of_text|>a b", Special::Parse, true);
    assert_eq!(once, tokenizer.encode("a b", Special::AsText, true));
    // As text it is not BOS.
    let text = tokenizer.encode("<|begin_of_text|>a b", Special::AsText, true);
    assert!(text[0] == 636 && text.len() > once.len() + 1, "{text:?}");
    assert_eq!(tokenizer.encode("", Special::Parse, true), [636]);
}

#[test]
fn spm_merges_by_score_and_then_by_position() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "aa", "ab", "aaa", "<0x41>"];
    let mut metadata = vocabulary("llama", &tokens, &[]);
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    metadata.set(
        "tokenizer.ggml.scores",
        Array::from_f32s([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -0.5, -1.0, 0.0]),
    );
    let tokenizer = build(&metadata).unwrap();
    let encode = |text| tokenizer.encode(text, Special::AsText, false);
    assert_eq!(encode("aab"), [4, 7], "`ab` scores more than `aa`");
    assert_eq!(encode("aaaa"), [8, 4], "of equal pairs the leftmost is merged first");
    assert_eq!(encode("A z"), [9, 3, 0], "a byte token, and <unk> if there is none");
    assert_eq!(tokenizer.encode("a", Special::AsText, true), [1, 4]);
}

#[test]
fn invalid_vocabularies_are_refused() {
    let tokens = ["a", "b", "ab"];
    for (model, want) in [("t5", "`gpt2` (byte-level BPE), `llama`"), ("t5", "t5"), ("rwkv", "rwkv")] {
        let message = build(&vocabulary(model, &tokens, &[])).err().unwrap();
        assert!(message.contains(want), "{message}");
    }
    let wrong = |key: &str, value: Value, want: &str| {
        for model in ["gpt2", "llama"] {
            let mut metadata = vocabulary(model, &tokens, &[]);
            metadata.set(key, value.clone());
            let message = build(&metadata).err().unwrap_or_else(|| panic!("{key} was accepted"));
            assert!(message.contains(key) && message.contains(want), "{message}");
        }
    };
    wrong("tokenizer.ggml.scores", Array::from_f32s([1.0]).into(), "want 3 entries, one per token, found 1");
    wrong("tokenizer.ggml.token_type", Array::from_i32s([1, 1]).into(), "want 3 entries");
    wrong("tokenizer.ggml.tokens", Array::from_i32s([1, 1]).into(), "array of strings");
    wrong("tokenizer.ggml.tokens", Array::from_strs([]).into(), "found 0");
    wrong("tokenizer.ggml.add_bos_token", 1u32.into(), "bool");
    wrong("tokenizer.ggml.bos_token_id", "x".into(), "u32");

    let mut metadata = vocabulary("gpt2", &tokens, &["a b", "a b", "a", "", " ", "x y", "ab ab", "b b"]);
    metadata.set("tokenizer.ggml.eos_token_id", 3u32);
    let tokenizer = build(&metadata).unwrap();
    assert_eq!(tokenizer.encode("ab", Special::AsText, false), [2]);
    assert_eq!(tokenizer.eos(), None);
    assert!(
        tokenizer.notices().iter().any(|notice| notice.contains("eos_token_id is 3")),
        "{:?}",
        tokenizer.notices()
    );
}

#[test]
fn long_words_take_no_quadratic_time() {
    let spm = build(&vocabulary("llama", &["<unk>", "<s>", "</s>", "a", "aa", "aaaa", "▁"], &[])).unwrap();
    for tokenizer in [&tiny(), &spm] {
        for word in ["a", "é", " ", "\n", "1", "<"] {
            let text = word.repeat(1 << 18);
            assert!(tokenizer.encode(&text, Special::Parse, false).len() <= 2 * text.len());
        }
    }
}
