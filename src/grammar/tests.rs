//! What grammars allow, by the tiny vocabulary; and grammars that mean harm.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::engine::{Constraint, Grammar as _};
use crate::gguf::Gguf;
use crate::tokenizer::{Special, Tokenizer, TokenizerOptions};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let file = include_bytes!("../../tests/data/golden/tokenizer/tiny-vocab.gguf");
    let gguf = Gguf::from_bytes(bytes::Bytes::from_static(file)).unwrap();
    Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap()
});

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(&TOKENIZER));

/// Follows `text`, as few bytes a token as possible where `fine`. How many bytes of it are allowed, and
/// whether it may end there.
fn follow(grammar: &Compiled, text: &str, fine: bool) -> (usize, bool) {
    let mut state = grammar.start();
    let mut done = 0;
    let mut tokens = Vec::new();
    let parts: Vec<String> =
        if fine { text.chars().map(String::from).collect() } else { vec![text.to_owned()] };
    parts.iter().for_each(|part| tokens.extend(TOKENIZER.encode(part, Special::Parse, false)));
    for token in tokens {
        if state.is_done() || !state.mask().unwrap().allows(token) {
            break;
        }
        state.accept(token).unwrap();
        done += TOKENIZER.token_bytes(token).len();
    }
    (done, may_end(&mut *state))
}

fn may_end(state: &mut dyn Constraint) -> bool {
    state.is_done() || TOKENIZER.eog().any(|id| state.mask().unwrap().allows(id))
}

fn compiled(source: Source) -> Compiled {
    GRAMMARS.compile(&source).unwrap_or_else(|err| panic!("{source:?}: {err}"))
}

/// Whether a whole text is allowed; it must not depend on how it is cut into tokens.
pub fn allows(grammar: &Compiled, text: &str) -> bool {
    let (coarse, fine) = (follow(grammar, text, false), follow(grammar, text, true));
    assert_eq!(coarse == (text.len(), true), fine == (text.len(), true), "{text:?}: {coarse:?}, {fine:?}");
    coarse == (text.len(), true)
}

pub fn gbnf(text: &str) -> Compiled {
    compiled(Source::Gbnf(text.to_owned()))
}

fn assert_texts(grammar: &Compiled, good: &[&str], bad: &[&str]) {
    good.iter().for_each(|text| assert!(allows(grammar, text), "{text:?} should be allowed"));
    bad.iter().for_each(|text| assert!(!allows(grammar, text), "{text:?} should not be allowed"));
}

#[test]
fn json_objects() {
    let good = ["{}", r#"{"a": [1, 2.5e3, null, true], "b": {"c": "é\n"}}"#, "{\n  \"a\": 1\n}"];
    let bad = ["", "1", "[]", "{", r#"{"a"}"#, r#"{"a": 1,}"#, "{}{}", "{\n\n\n\n}"];
    assert_texts(&compiled(Source::JsonObject), &good, &bad);
}

#[test]
fn schemas_keep_the_order_of_their_properties() {
    let schema = json!({
        "type": "object",
        "properties": {"zeta": {"type": "integer"}, "alpha": {"enum": ["x", "y"]}},
        "required": ["zeta", "alpha"],
        "additionalProperties": false,
    });
    let grammar = compiled(Source::JsonSchema { schema, strict: true });
    let good = [r#"{"zeta": 1, "alpha": "x"}"#, r#"{"zeta":-20,"alpha":"y"}"#];
    let bad = [r#"{"alpha": "x", "zeta": 1}"#, r#"{"zeta": 1}"#, r#"{"zeta": 1, "alpha": "z"}"#, "{}"];
    assert_texts(&grammar, &good, &bad);
}

#[test]
fn what_a_lenient_schema_does_not_enforce_is_noted() {
    let schema = json!({"type": "array", "items": {"type": "string", "format": "zip"}, "uniqueItems": true});
    let lenient = compiled(Source::JsonSchema { schema: schema.clone(), strict: false });
    assert!(allows(&lenient, r#"["a", "a"]"#) && !allows(&lenient, "[1]"));
    let notes = lenient.notes().join("\n");
    assert!(notes.contains("uniqueItems") && notes.contains("zip"), "{notes}");
    let strict = GRAMMARS.compile(&Source::JsonSchema { schema, strict: true }).unwrap_err();
    assert!(strict.to_string().contains("`uniqueItems` at #"), "{strict}");
    let format = json!({"type": "string", "format": "zip"});
    let strict = GRAMMARS.compile(&Source::JsonSchema { schema: format, strict: true }).unwrap_err();
    assert!(strict.to_string().contains("zip"), "{strict}");
}

#[test]
fn regular_expressions_match_the_whole_text() {
    let grammar = compiled(Source::Regex(r"^\d{4}-(0[1-9]|1[0-2])/x$".into()));
    assert_texts(&grammar, &["2026-11/x"], &["2026-13/x", "2026-11/xx", "x2026-11/x", ""]);
    assert_texts(&compiled(Source::Regex(String::new())), &[""], &["a"]);
}

#[test]
fn one_of_several_texts() {
    let choices = ["yes", "yes, \"of course\"", "no\n", "\u{7f}"].map(str::to_owned).to_vec();
    let grammar = compiled(Source::Choice(choices.clone()));
    let good: Vec<&str> = choices.iter().map(String::as_str).collect();
    assert_texts(&grammar, &good, &["", "y", "no", "yes,", "yesyes"]);
    assert!(GRAMMARS.compile(&Source::Choice(Vec::new())).is_err());
}

#[test]
fn lark_with_a_schema_in_it() {
    let text = "start: \"call \" NAME args\nNAME: /[a-z]+/\nargs: %json {\"type\": \"object\"}\n";
    let grammar = compiled(Source::Lark(text.into()));
    assert_texts(&grammar, &["call f{}", r#"call add{"a": 1}"#], &["call {}", "call f", "call F{}"]);
    let guidance = compiled(Source::Gbnf("%llguidance {}\nstart: \"a\"+\n".into()));
    assert_texts(&guidance, &["a", "aaa"], &["", "b"]);
}

#[test]
fn the_text_ends_only_where_the_grammar_does() {
    let grammar = gbnf("root ::= \"ab\" \"c\"?");
    let mut state = grammar.start();
    for text in ["a", "b", "c"] {
        assert_eq!(may_end(&mut *state), text == "c", "before {text}");
        let token = TOKENIZER.encode(text, Special::AsText, false)[0];
        state.accept(token).unwrap();
    }
    assert!(state.is_done());
    let end = TOKENIZER.eog().next().unwrap();
    let mut state = grammar.start();
    assert!(state.accept(end).is_err(), "the empty text is not allowed");
}

#[test]
fn special_tokens_are_not_spelled_out_and_can_be_named() {
    let end = TOKENIZER.eog().next().unwrap();
    let name = String::from_utf8(TOKENIZER.token_bytes(end).to_vec()).unwrap();
    let text = compiled(Source::Choice(vec![name.clone()]));
    let mut state = text.start();
    assert!(!state.mask().unwrap().allows(end), "text is not the token");
    for grammar in [format!("root ::= \"a\" <[{end}]> \"b\""), format!("root ::= \"a\" {name} \"b\"")] {
        let mut state = gbnf(&grammar).start();
        state.accept(TOKENIZER.encode("a", Special::AsText, false)[0]).unwrap();
        assert!(state.mask().unwrap().allows(end), "{grammar}");
    }
}

#[test]
fn grammars_that_mean_harm_are_errors_within_a_bounded_time() {
    let chain: serde_json::Map<String, Value> =
        (0..3000).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}))).collect();
    let schema = |schema| Source::JsonSchema { schema, strict: true };
    let words: Vec<String> = (0..100_000).map(|i| format!("word {i}")).collect();
    let nested = |open: &str, n: usize, close: &str| format!("{}{}", open.repeat(n), close.repeat(n));
    let lark_chain = |n: usize| {
        let rules: String = (0..n).map(|i| format!("r{i}: \"a\" r{} \"b\"\n", i + 1)).collect();
        format!("start: r0\n{rules}")
    };
    let short_chain: String = (0..10_000).map(|i| format!("r{i}:r{}\n", i + 1)).collect();
    let short_chain = format!("start:r0\n{short_chain}");
    let cases = [
        ("a chain of references", schema(json!({"$ref": "#/$defs/d0", "$defs": chain}))),
        ("a large enumeration", schema(json!({ "enum": words.clone() }))),
        ("many choices", Source::Choice(words)),
        ("no JSON schema", schema(json!(3))),
        ("a keyword", schema(json!({"not": {}}))),
        ("a bracket", Source::Regex("(".into())),
        ("nested groups of a regex", Source::Regex(nested("(", 20_000, ")"))),
        ("a long regex", Source::Regex("a".repeat(1 << 20))),
        ("look-around", Source::Regex("(?=a)b".into())),
        ("nested groups of Lark", Source::Lark(format!("start: {}", nested("(", 10_000, ")")))),
        ("a rule that is missing", Source::Lark("start: a\n".into())),
        ("a chain of rules", Source::Lark(lark_chain(20_000))),
        ("a chain of rules to nothing", Source::Lark(lark_chain(4000))),
        ("the longest chain of rules", Source::Lark(short_chain)),
        ("nested groups of GBNF", Source::Gbnf(format!("root ::= {}", nested("(", 10_000, ")")))),
        ("GBNF that repeats", Source::Gbnf("root ::= [a-z]{1,99999999}".into())),
        ("no text", Source::Gbnf(String::new())),
    ];
    for (what, source) in cases {
        let begun = Instant::now();
        let err = GRAMMARS.compile(&source).map(|_| ()).expect_err(what);
        let took = begun.elapsed();
        println!("{what}: {took:?}: {err}");
        assert!(took < Duration::from_secs(20), "{what}: {took:?}");
        assert!(!err.to_string().contains("backtrace"), "{what}: {err}");
    }
    // And then a good one.
    assert!(allows(&compiled(Source::JsonObject), "{}"));
}

#[test]
fn grammars_that_are_hard_to_follow_fail_or_go_on_within_a_bounded_time() {
    let properties: Value = (0..500).map(|i| (format!("a{i}"), json!({}))).collect();
    let sources = [
        Source::Regex("((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}".into()),
        Source::Regex("(a|b)*a(a|b){18}c(a|b)*b(a|b){18}".into()),
        Source::Regex("(a*)*(a*)*(a*)*b".into()),
        Source::Gbnf("root ::= (((\"a\" root?){9999}){9999}){9999}".into()),
        Source::Gbnf("root ::= root root | \"a\" | \"aa\" | \"\"".into()),
        Source::JsonSchema { schema: json!({"$ref": "#"}), strict: true },
        Source::JsonSchema { schema: json!({"type": "object", "properties": properties}), strict: true },
    ];
    let letter = TOKENIZER.encode("a", Special::AsText, false)[0];
    for source in sources {
        let begun = Instant::now();
        if let Ok(compiled) = GRAMMARS.compile(&source) {
            let mut state = compiled.start();
            for _ in 0..40 {
                let Ok(mask) = state.mask() else { break };
                let first = (0..TOKENIZER.n_vocab() as u32).find(|&id| mask.allows(id)).unwrap();
                let token = if mask.allows(letter) { letter } else { first };
                if state.accept(token).is_err() || state.is_done() {
                    break;
                }
            }
        }
        let took = begun.elapsed();
        println!("{took:?}: {:.60}", format!("{source:?}"));
        assert!(took < Duration::from_secs(30), "{source:?}: {took:?}");
    }
}

#[test]
fn the_deepest_grammars_that_are_allowed_leave_the_stack_whole() {
    let level =
        |inner: Value| json!({"type": "object", "properties": {"a": {"type": "array", "items": inner}}});
    let mut defs = serde_json::Map::new();
    for i in 0..99 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        defs.insert(format!("d{i}"), (0..5).fold(next, |inner, _| level(inner)));
    }
    defs.insert("d99".into(), json!({"type": "null"}));
    let schema = json!({"$ref": "#/$defs/d0", "$defs": defs});
    let compiled = GRAMMARS.compile(&Source::JsonSchema { schema, strict: true });
    assert!(compiled.is_ok() || matches!(compiled, Err(GrammarError::TooLarge { .. })), "{compiled:?}");
    let rules: String = (0..3000).map(|i| format!("r{i} ::= \"a\" r{} | \"b\" root\n", i + 1)).collect();
    let chain = GRAMMARS.compile(&Source::Gbnf(format!("root ::= r0\n{rules}r3000 ::= \"c\"\n")));
    assert!(chain.is_ok(), "{chain:?}");
}

#[test]
fn a_grammar_that_takes_too_long_is_given_up() {
    let limits = Limits { time: Duration::ZERO, ..Limits::default() };
    let grammars = Grammars::with_limits(&TOKENIZER, limits);
    for _ in 0..8 {
        let err = grammars.compile(&Source::JsonObject).map(|_| ());
        assert!(matches!(err, Err(GrammarError::TooSlow(_) | GrammarError::Busy(_)) | Ok(())), "{err:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is drawn from the masks, no state fails, and a copy from the start is where this one is.
    #[test]
    fn any_walk_through_the_masks_is_allowed(draws in proptest::collection::vec(any::<u32>(), 1..40)) {
        static JSON: LazyLock<Compiled> = LazyLock::new(|| compiled(Source::JsonObject));
        let n_vocab = TOKENIZER.n_vocab() as u32;
        let mut state = JSON.start();
        let mut tokens = Vec::new();
        for draw in draws {
            if state.is_done() {
                break;
            }
            let mask = state.mask().unwrap().clone();
            let allowed: Vec<u32> = (0..n_vocab).filter(|&id| mask.allows(id)).collect();
            prop_assert!(!allowed.is_empty());
            let token = allowed[draw as usize % allowed.len()];
            state.accept(token).unwrap();
            tokens.push(token);
        }
        let mut again = JSON.start();
        tokens.iter().for_each(|&token| again.accept(token).unwrap());
        prop_assert_eq!(again.is_done(), state.is_done());
        prop_assert_eq!(again.mask().unwrap(), state.mask().unwrap());
    }
}
