//! Model cards: the card's tokenizer, read by Hugging Face's library, gives the same ids as ours.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde::Deserialize;
use sterna::card::Card;
use sterna::gguf::Gguf;
use sterna::tokenizer::chat::{ChatTemplate, Message};
use sterna::tokenizer::{PreTokenizer, Special, Tokenizer, TokenizerOptions, tokenizer_json};

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    special: bool,
}

/// The tokenizer of a card, as Hugging Face's library reads it.
fn read(gguf: &Gguf, pre: Option<PreTokenizer>) -> tokenizers::Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    Card::of(gguf.metadata(), pre).unwrap().write(folder.path()).unwrap();
    tokenizers::Tokenizer::from_file(folder.path().join("tokenizer.json")).unwrap()
}

fn check(vocab: &Path, cases: &Path, pre: Option<PreTokenizer>) {
    let gguf = Gguf::open(vocab).unwrap();
    let mut parses = read(&gguf, pre);
    let mut as_text = parses.clone();
    parses.set_encode_special_tokens(false);
    as_text.set_encode_special_tokens(true);
    let own = Tokenizer::from_gguf(&gguf, TokenizerOptions { pre }).unwrap();
    let mut wrong = Vec::new();
    for line in std::fs::read_to_string(cases).unwrap().lines() {
        let Case { text, ids, special } = serde_json::from_str(line).unwrap();
        let tokenizer = if special { &parses } else { &as_text };
        let got = tokenizer.encode(text.as_str(), false).unwrap().get_ids().to_vec();
        if got != ids {
            wrong.push(format!("{text:?} ({special})\n  want {ids:?}\n  got  {got:?}"));
        }
        let with_bos = parses.encode(text.as_str(), true).unwrap().get_ids().to_vec();
        let want = own.encode(&text, Special::Parse, true);
        let spells_bos = want.first() == own.bos().as_ref() && with_bos.get(1) == own.bos().as_ref();
        if with_bos != want && !spells_bos {
            wrong.push(format!("{text:?} with BOS\n  want {want:?}\n  got  {with_bos:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} in {}:\n{}", wrong.len(), cases.display(), wrong.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Only characters in Hugging Face's tables, which are those of Unicode 8.
    #[test]
    #[ignore = "thorough: scripts/test --all"]
    fn wordpiece_ids_match_hugging_face(
        text in "([a-z]{1,8}|[A-Z]{1,4}|the|ing|[ -~]{1,6}|[\\x00-\\x20]|[ \u{a0}-\u{24f}]{1,5}|\
            [\u{300}-\u{36f}]{1,3}|[Ͱ-Ͽ]{1,3}|[Ѐ-ѿ]{1,5}|[א-ת]|[अ-ह]|[\u{2000}-\u{206f}]|\
            [Ḁ-ỿ]{1,3}|[ぁ-ヿ]|[一-丿]{1,3}|\
            [가-갿]|[\u{f900}-\u{fa0d}]|🦜|\u{fffd}|\\[CLS\\]|\\[MASK\\]){0,16}",
        lowercase in any::<bool>(),
    ) {
        static BOTH: LazyLock<[(tokenizers::Tokenizer, Tokenizer); 2]> = LazyLock::new(|| {
            [false, true].map(|lowercase| {
                let metadata = super::tokenizer::small_wordpiece(lowercase);
                let options = TokenizerOptions::default();
                let theirs = tokenizer_json(&metadata, options).unwrap().to_string();
                let theirs = tokenizers::Tokenizer::from_bytes(theirs).unwrap();
                (theirs, Tokenizer::from_metadata(&metadata, options).unwrap())
            })
        });
        let (theirs, ours) = &BOTH[usize::from(lowercase)];
        let want = theirs.encode(text.as_str(), true).unwrap().get_ids().to_vec();
        let got = ours.encode(&text, Special::Parse, true);
        // A text that spells `[CLS]` itself gets no second one.
        let spells_it = want.get(1) == ours.cls().as_ref();
        prop_assert_eq!(&got[..], if spells_it { &want[1..] } else { &want[..] });
        let cut = if got.len() > 2 { &got[..got.len() - 1] } else { &got[..] };
        let text = theirs.decode(cut, true).unwrap();
        let bytes = ours.decode(cut, false);
        prop_assert_eq!(String::from_utf8_lossy(&bytes), text);
    }
}

#[test]
fn text_pair_has_one_cls_token() {
    let metadata = super::tokenizer::small_wordpiece(true);
    let theirs = tokenizer_json(&metadata, TokenizerOptions::default()).unwrap().to_string();
    let theirs = tokenizers::Tokenizer::from_bytes(theirs).unwrap();
    let ours = Tokenizer::from_metadata(&metadata, TokenizerOptions::default()).unwrap();
    let ids = |text: &str| ours.encode(text, Special::AsText, false);
    let (cls, sep) = (ours.cls().unwrap(), ours.sep().unwrap());
    let want = [vec![cls], ids("who runs"), vec![sep], ids("the runner"), vec![sep]].concat();
    let pair = theirs.encode(("who runs", "the runner"), true).unwrap();
    assert_eq!(pair.get_ids(), want);
    assert!(pair.get_type_ids().ends_with(&[0, 1, 1, 1]));
}

#[test]
fn card_ids_match_ours_for_every_vocabulary() {
    let all = [
        ("tiny-vocab", "tiny", None),
        ("ggml-vocab-llama-bpe", "llama-bpe", None),
        ("ggml-vocab-llama-bpe", "llama-bpe.pre-default", Some("default")),
        ("ggml-vocab-gpt-2", "gpt-2", None),
        ("ggml-vocab-qwen2", "qwen2", None),
        ("ggml-vocab-falcon", "falcon", None),
        ("ggml-vocab-llama-spm", "llama-spm", None),
        ("ggml-vocab-phi-3", "phi-3", None),
    ];
    for (vocab, cases, pre) in all {
        let vocab = support::golden(&format!("tokenizer/{vocab}.gguf"));
        let (Some(vocab), Some(cases)) = (vocab, support::golden(&format!("tokenizer/{cases}.jsonl"))) else {
            continue;
        };
        check(&vocab, &cases, pre.map(|name: &str| name.parse().unwrap()));
    }
}

/// The template in a card has the line ends with which it is rendered here.
#[test]
fn card_template_has_newline_line_ends() {
    let gguf = Gguf::open(&support::golden("bitnet/tiny-i2_s.gguf").expect("is in tests/data")).unwrap();
    let mut metadata = gguf.metadata().clone();
    let template = "{% for m in messages %}\r\n{{ m.role + '\r' + m.content }}\r\n{% endfor %}";
    metadata.set("tokenizer.chat_template", template);
    let card = Card::of(&metadata, None).unwrap();
    let (_, settings) = card.files().find(|(name, _)| *name == "tokenizer_config.json").unwrap();
    let written = settings["chat_template"].as_str().unwrap();
    assert!(
        written.ends_with("{% for m in messages %}\n{{ m.role + '\n' + m.content }}\n{% endfor %}"),
        "{written:?}"
    );
}

#[test]
fn card_has_the_fields_that_readers_need() {
    let gguf = Gguf::open(&support::golden("bitnet/tiny-i2_s.gguf").expect("is in tests/data")).unwrap();
    let card = Card::of(gguf.metadata(), None).unwrap();
    let file = |name: &str| card.files().find(|(own, _)| *own == name).expect("the card has it").1.clone();
    let config = file("config.json");
    assert_eq!(
        (&config["model_type"], &config["architectures"][0]),
        (&"bitnet".into(), &"BitNetForCausalLM".into())
    );
    assert!(config["vocab_size"].is_u64() && config["max_position_embeddings"].is_u64());
    let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap();
    let ends: Vec<u32> = tokenizer.eog().collect();
    assert_eq!(file("generation_config.json")["eos_token_id"], serde_json::json!(ends));
    // A conversation has the same ids through the card's template and tokenizer as through ours.
    let demo = sterna::demo::model().map(|bytes| Gguf::from_bytes(bytes).unwrap());
    for gguf in [Some(gguf), demo].into_iter().flatten() {
        let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap();
        let card = Card::of(gguf.metadata(), None).unwrap();
        let (_, settings) = card.files().find(|(name, _)| *name == "tokenizer_config.json").unwrap();
        let template = ChatTemplate::new(settings["chat_template"].as_str().unwrap(), &tokenizer).unwrap();
        let chosen = ChatTemplate::choose(gguf.metadata(), &tokenizer, None);
        let own = chosen.or_else(|_| ChatTemplate::choose(gguf.metadata(), &tokenizer, Some("chatml")));
        let (own, reader) = (own.unwrap(), read(&gguf, None));
        for said in ["Hi", "  two\nlines ", "é 漢 🦜", "<|eot_id|>"] {
            let messages = [Message { role: "user".into(), content: said.into(), ..Message::default() }];
            let text = template.render(&messages, true).unwrap();
            let ids = reader.encode(text.as_str(), false).unwrap();
            let want = own.encode(&tokenizer, &own.render(&messages, true).unwrap());
            assert_eq!(ids.get_ids(), want, "{said}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// With each pre-tokenizer.
    #[test]
    fn card_ids_of_any_text_match_hugging_face(
        text in "([a-z]{1,8}|the|ing| a| in|er|Once|'s|'LL|[ \\n]{1,4}|[0-9]{1,5}|É|漢|\u{301}|\\PC){0,30}"
    ) {
        static ALL: LazyLock<Vec<(tokenizers::Tokenizer, Tokenizer)>> = LazyLock::new(|| {
            let gguf = Gguf::open(&support::golden("tokenizer/tiny-vocab.gguf").unwrap()).unwrap();
            let both = |pre| {
                let options = TokenizerOptions { pre: Some(pre) };
                (read(&gguf, Some(pre)), Tokenizer::from_gguf(&gguf, options).unwrap())
            };
            PreTokenizer::all().map(both).collect()
        });
        for (theirs, ours) in ALL.iter() {
            let want = theirs.encode(text.as_str(), false).unwrap().get_ids().to_vec();
            prop_assert_eq!(ours.encode(&text, Special::AsText, false), want, "{:?}", ours.pre());
        }
    }
}
