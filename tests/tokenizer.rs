//! Token ids against the reference's, over whole vocabularies; and what must hold for any text.

mod common;

use std::path::Path;

use serde::Deserialize;

use sterna::gguf::Gguf;
use sterna::tokenizer::{Special, StreamDecoder, Tokenizer, TokenizerOptions};

/// One line of a golden file.
#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    special: bool,
}

fn open(path: &Path, pre: Option<&str>) -> Tokenizer {
    let gguf = Gguf::open(path).unwrap_or_else(|err| panic!("{err}"));
    Tokenizer::from_gguf(&gguf, TokenizerOptions { pre }).unwrap_or_else(|err| panic!("{err}"))
}

fn tiny() -> Tokenizer {
    open(&common::golden("tokenizer/tiny-vocab.gguf").expect("is in tests/data"), None)
}

/// Every case of `cases` in every way there is to encode and decode it.
fn check(vocab: &str, cases: &str, pre: Option<&str>) {
    let (Some(vocab), Some(cases)) = (common::golden(vocab), common::golden(cases)) else { return };
    let tokenizer = open(&vocab, pre);
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
    assert_eq!(n_cases, 172, "{}", cases.display());
    assert!(wrong.is_empty(), "{} of {n_cases} in {}:\n{}", wrong.len(), cases.display(), wrong.join("\n"));
}

macro_rules! golden {
    ($($name:ident: $vocab:literal, $cases:literal, $pre:expr;)*) => {$(
        #[test]
        fn $name() {
            check($vocab, $cases, $pre);
        }
    )*};
}

golden! {
    tiny_ids: "tokenizer/tiny-vocab.gguf", "tokenizer/tiny.jsonl", None;
    llama_bpe_ids: "tokenizer/ggml-vocab-llama-bpe.gguf", "tokenizer/llama-bpe.jsonl", None;
    llama_bpe_with_default_ids: "tokenizer/ggml-vocab-llama-bpe.gguf", "tokenizer/llama-bpe.pre-default.jsonl", Some("default");
    gpt_2_ids: "tokenizer/ggml-vocab-gpt-2.gguf", "tokenizer/gpt-2.jsonl", None;
    qwen2_ids: "tokenizer/ggml-vocab-qwen2.gguf", "tokenizer/qwen2.jsonl", None;
    falcon_ids: "tokenizer/ggml-vocab-falcon.gguf", "tokenizer/falcon.jsonl", None;
    llama_spm_ids: "tokenizer/ggml-vocab-llama-spm.gguf", "tokenizer/llama-spm.jsonl", None;
    phi_3_ids: "tokenizer/ggml-vocab-phi-3.gguf", "tokenizer/phi-3.jsonl", None;
}

#[test]
fn bos_and_end_of_generation() {
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
