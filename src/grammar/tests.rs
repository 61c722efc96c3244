//! Tests of grammar masks with the tiny vocabulary, and of hostile grammars.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use sterna_engine::{Constraint, Grammar as _};
use sterna_gguf::Gguf;
use sterna_tokenizer::{Special, Tokenizer, TokenizerOptions};

pub static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let file = include_bytes!("../../tests/data/golden/tokenizer/tiny-vocab.gguf");
    let gguf = Gguf::from_bytes(bytes::Bytes::from_static(file)).unwrap();
    Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap()
});

pub static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::of_any_tokens(&TOKENIZER));

/// Follows `text`, with tokens of as few bytes as possible if `fine`. Returns the number of allowed bytes,
/// and whether the text may end there.
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

pub fn compiled(source: Source) -> Compiled {
    GRAMMARS.compile(&source).unwrap_or_else(|err| panic!("{source:?}: {err}"))
}

/// True if a whole text is allowed; the result must not depend on the tokenisation.
pub fn allows(grammar: &Compiled, text: &str) -> bool {
    let (coarse, fine) = (follow(grammar, text, false), follow(grammar, text, true));
    assert_eq!(coarse == (text.len(), true), fine == (text.len(), true), "{text:?}: {coarse:?}, {fine:?}");
    coarse == (text.len(), true)
}

pub fn gbnf(text: &str) -> Compiled {
    compiled(Source::Gbnf(text.to_owned()))
}

pub fn assert_texts(grammar: &Compiled, good: &[&str], bad: &[&str]) {
    good.iter().for_each(|text| assert!(allows(grammar, text), "{text:?} should be allowed"));
    bad.iter().for_each(|text| assert!(!allows(grammar, text), "{text:?} should not be allowed"));
}

/// Models that did not expect JSON would otherwise begin it with any tokens that spell it.
#[test]
fn forced_text_has_one_tokenisation() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let grammars = Grammars::new(&TOKENIZER);
    let compiled = grammars.compile(&Source::JsonSchema { schema, strict: true }).unwrap();
    let mut state = compiled.start();
    let mut text = Vec::new();
    loop {
        let mask = state.mask().unwrap();
        let allowed: Vec<u32> = (0..TOKENIZER.n_vocab() as u32).filter(|id| mask.allows(*id)).collect();
        let [forced] = allowed[..] else { break };
        let longer = |id: &u32| TOKENIZER.token_bytes(*id).starts_with(TOKENIZER.token_bytes(forced));
        let rest = [&text[..], TOKENIZER.token_bytes(forced)].concat();
        assert!(r#"{"name":"#.as_bytes().starts_with(&rest), "{:?}", String::from_utf8_lossy(&rest));
        let fits = |id: &u32| r#"{"name":"#.as_bytes()[text.len()..].starts_with(TOKENIZER.token_bytes(*id));
        let longest = (0..TOKENIZER.n_vocab() as u32).filter(longer).filter(fits);
        assert_eq!(longest.collect::<Vec<_>>(), [forced], "no longer token spells the same");
        state.accept(forced).unwrap();
        text = rest;
    }
    assert!(text.starts_with(br#"{"name"#), "{:?}", String::from_utf8_lossy(&text));
}

#[test]
fn json_objects() {
    let good = ["{}", r#"{"a": [1, 2.5e3, null, true], "b": {"c": "é\n"}}"#, r#"{"a":1}"#];
    let bad = ["", "1", "[]", "{", r#"{"a"}"#, r#"{"a": 1,}"#, "{}{}", r#"{"a":  1}"#, "{\n}"];
    assert_texts(&compiled(Source::JsonObject), &good, &bad);
    let free = GRAMMARS.compile_with(&Source::JsonObject, Space::Free).unwrap();
    let lines = ["{}", r#"{"a": 1}"#, "{\n  \"a\": 1\n}"];
    assert_texts(&free, &lines, &["{\n\n\n}", r#"{"a":  1}"#]);
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
    // An unknown format asserts nothing, so a strict schema may have it.
    let format = json!({"type": "string", "format": "zip"});
    assert!(allows(&compiled(Source::JsonSchema { schema: format, strict: true }), "\"a\""));
}

/// The schema of a tool, of which anything may be left out.
fn of_tool(mut schema: Value) -> Source {
    schema["x-guidance"] = json!({"lenient": true, "tool": "look"});
    Source::Lark(format!("start: %json {schema}\n"))
}

/// A schema, a keyword that does not compile, its position, a text that the rest allows, and one that it does
/// not.
type Loosened = (Value, &'static str, &'static str, &'static str, &'static str);

fn what_does_not_compile() -> Vec<Loosened> {
    let one = |schema: Value| json!({"properties": {"a": schema}, "required": ["a"], "type": "object"});
    let at = "#/properties/a";
    let text = |pattern: &str| one(json!({"type": "string", "pattern": pattern}));
    let (word, three) = (r#"{"a": "x"}"#, r#"{"a": 3}"#);
    let circle = json!({"type": "object", "properties": {"a": {"$ref": "#", "maxProperties": 9}}});
    vec![
        (text("^(?!-)[a-z-]+$"), "pattern", at, word, three),
        (text("^(?=.*a).+$"), "pattern", at, word, three),
        (text(r"^((25[0-5]|[0-9]{1,2})\.?\b){4}$"), "pattern", at, word, three),
        (text(r"^a\Z"), "pattern", at, word, three),
        (text(r"(a)\1"), "pattern", at, word, three),
        (text(&format!("{}(?=a)", "é".repeat(150))), "pattern", at, word, three),
        (one(json!({"type": "integer", "enum": ["1", "2"]})), "enum", at, three, word),
        (one(json!({"type": "integer", "const": "1"})), "const", at, three, word),
        (one(json!({"type": "integer", "minimum": "1"})), "minimum", at, three, word),
        (one(json!({"type": "number", "multipleOf": 0})), "multipleOf", at, three, word),
        (one(json!({"type": "integer", "minimum": 5, "maximum": 2})), "maximum", at, r#"{"a": 7}"#, word),
        (one(json!({"type": "string", "minLength": -1})), "minLength", at, word, three),
        (one(json!({"type": "text"})), "type", at, word, "{}"),
        (one(json!({"required": true})), "required", at, word, "{}"),
        (one(json!({"type": "string", "not": {"const": "x"}})), "not", at, word, three),
        (one(json!({"$ref": "http://a/b"})), "$ref", at, word, "{}"),
        (one(json!({"$ref": "#/$defs/none"})), "$ref", at, word, "{}"),
        (one(json!("string")), "a", "#/properties", word, "{}"),
        (
            json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}),
            "minProperties",
            "#",
            "{}",
            "[]",
        ),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf", "#", "2.5", "\"a\""),
        (
            json!({"$ref": "#/$defs/b", "$defs": {"b": {"type": "string", "pattern": "(?=a)"}}}),
            "pattern",
            "#/$defs/b",
            "\"x\"",
            "3",
        ),
        (circle, "$ref", at, r#"{"a": {"a": {}}}"#, "[]"),
    ]
}

#[test]
fn what_does_not_compile_is_left_out_and_named() {
    for (schema, keyword, at, good, bad) in what_does_not_compile() {
        let refuses = |strict: bool| {
            let refused = GRAMMARS.compile(&Source::JsonSchema { schema: schema.clone(), strict });
            let err = refused.map(|_| ()).expect_err("it is not enforced").to_string();
            assert!(err.contains(&format!("`{keyword}` at {at}, which")), "{schema}: {err}");
        };
        let mut loose = vec![of_tool(schema.clone())];
        // Without this keyword, an answer would have another form.
        if ["$ref", "a", "not", "required", "type"].contains(&keyword) {
            refuses(false);
        } else {
            loose.push(Source::JsonSchema { schema: schema.clone(), strict: false });
        }
        for source in loose {
            let loose = compiled(source);
            assert!(allows(&loose, good) && !allows(&loose, bad), "{schema}: {:?}", loose.notes());
            let named = format!("`{keyword}` at {at} is not enforced");
            assert!(loose.notes().iter().any(|note| note.contains(&named)), "{schema}: {:?}", loose.notes());
        }
        refuses(true);
    }
    // Nothing is left of a choice that cannot be made.
    for enumerated in [json!([]), json!("x")] {
        let source =
            Source::JsonSchema { schema: json!({"type": "string", "enum": enumerated}), strict: false };
        let err = GRAMMARS.compile(&source).map(|_| ()).expect_err("it has no values").to_string();
        assert!(err.contains("`enum` at #, which"), "{err}");
    }
}

#[test]
fn keywords_that_exclude_nothing_are_no_fault() {
    let one = |schema: Value| json!({"properties": {"a": schema}, "required": ["a"], "type": "object"});
    let defs = json!({"a/b": {"enum": ["x"]}, "a[b": {"enum": ["x"]}, "a~b": {"enum": ["x"]}});
    let refers = |to: &str| {
        let a = json!({"$ref": to});
        json!({"type": "object", "properties": {"a": a}, "required": ["a"], "$defs": defs})
    };
    let parts = json!({"type": "object", "properties": {"a": {"$ref": "#/components/schemas/T"}},
        "required": ["a"], "components": {"schemas": {"T": {"type": "string", "title": null}}}});
    let text = one(json!({"type": "string"}));
    let schemas = [
        one(json!({"type": "string", "format": "uri-reference"})),
        one(json!({"type": "string", "pattern": null, "enum": null, "not": null, "description": null})),
        one(json!({"type": "string", "minLength": 1.0, "not": false, "if": {}})),
        one(json!({"type": ["string", "null"], "enum": ["x", null]})),
        json!({"type": "object", "propertyNames": {"type": "string"}, "minProperties": null}),
        json!({"type": "object", "properties": null, "required": null, "patternProperties": []}),
        json!({"type": "object", "properties": [], "dependentRequired": {}, "unevaluatedProperties": true}),
        json!({"type": "object", "$defs": {"unused": {"pattern": "(?=a)", "not": {}}}}),
        refers("#/$defs/a~1b"),
        refers("#/$defs/a%5Bb"),
        refers("#/$defs/a~0b"),
        refers("#/$defs/a[b"),
        parts,
        text,
    ];
    for schema in schemas {
        let grammar = compiled(Source::JsonSchema { schema: schema.clone(), strict: true });
        assert!(allows(&grammar, r#"{"a": "x"}"#) && !allows(&grammar, "[]"), "{schema}");
        let is_annotation = |note: &String| note.contains("annotation");
        assert!(grammar.notes().iter().all(is_annotation), "{schema}: {:?}", grammar.notes());
    }
    let farthest = json!({"type": "number", "minimum": -3.4028234663852886e38, "maximum": u64::MAX});
    let grammar = compiled(Source::JsonSchema { schema: farthest, strict: true });
    assert_texts(&grammar, &["-1.5", "0", "1234567890123456"], &["12345678901234567", "1e99", "\"\""]);
}

#[test]
fn what_only_describes_a_schema_has_no_size() {
    let long = "All that there is to say. ".repeat(20_000);
    let note = json!({"type": "string", "description": long, "examples": [long], "default": long});
    let schema = json!({"type": "object", "title": long, "properties": {"a": note}});
    let grammar = compiled(Source::JsonSchema { schema: schema.clone(), strict: true });
    assert_texts(&grammar, &[r#"{"a": "x"}"#], &[r#"{"a": 3}"#]);
    let lark = format!("start: \"f\" args\nargs: %json {schema}\n");
    assert_texts(&compiled(Source::Lark(lark)), &[r#"f{"a": "x"}"#], &[r#"f{"a": 3}"#]);
    // A large constraint is an error, or only the type of a tool's schema is enforced.
    let words: Vec<String> = (0..20_000).map(|i| format!("word {i}")).collect();
    let large = json!({"type": "string", "enum": words});
    for strict in [true, false] {
        let refused = GRAMMARS.compile(&Source::JsonSchema { schema: large.clone(), strict });
        assert!(matches!(refused, Err(GrammarError::TooLarge { .. })), "{refused:?}");
    }
    let lenient = compiled(of_tool(large));
    assert_texts(&lenient, &["\"any\""], &["3"]);
    assert!(lenient.notes()[0].contains("bytes"), "{:?}", lenient.notes());
}

#[test]
fn schemas_in_lark_are_named_by_their_tools() {
    let lark = |lenient: bool| {
        let mark = json!({"lenient": lenient, "tool": "look", "at": "#/properties/a"});
        let schema = json!({"type": "string", "pattern": "(?=a)", "x-guidance": mark});
        Source::Lark(format!("start: \"f\" args\nargs: %json {schema}\n"))
    };
    let loose = compiled(lark(true));
    assert_texts(&loose, &["f\"b\""], &["f3"]);
    let note = &loose.notes()[0];
    assert!(note.starts_with("the tool `look`: `pattern` at #/properties/a is not enforced: "), "{note}");
    let err = GRAMMARS.compile(&lark(false)).map(|_| ()).unwrap_err().to_string();
    assert!(err.contains("of the tool `look` has the keyword `pattern` at #/properties/a"), "{err}");
}

#[test]
fn numbers_come_to_an_end() {
    let digits = |n: usize| "1".repeat(n);
    let of = |schema: Value| compiled(Source::JsonSchema { schema, strict: true });
    let long = [digits(17), format!("-{}", digits(17)), format!("0.{}", digits(17))];
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let full = format!("{0}.{0}e-123", digits(16));
    let number = of(json!({"type": "number"}));
    assert_texts(&number, &["0", "-2.5", "1e5", "3E+300", &full], &long);
    assert_texts(&number, &[], &["1e1234", "01", "1.", "\"1\""]);
    assert_texts(&of(json!({"type": "integer"})), &["0", "-12", &digits(16)], &[&digits(17), "1.5"]);
    // Bounds are enforced, and numbers within them are bounded too.
    let share = of(json!({"type": "number", "minimum": 0, "maximum": 100}));
    let (within, endless) = (format!("99.{}", digits(16)), format!("99.{}", digits(17)));
    assert_texts(&share, &["0", "100", "100.0", "3.25", &within], &["-1", "100.1", "101", &endless]);
    let zeros = format!("100.{}", "0".repeat(17));
    assert_texts(&share, &[], &[&zeros]);
    let whole = of(json!({"type": "integer", "minimum": 1}));
    assert_texts(&whole, &["1", &digits(16)], &["0", "-3", &digits(17)]);
    // Strings are not bounded, not even in a union with numbers.
    let either = of(json!({"type": ["string", "number"]}));
    let text = format!("\"{}\"", digits(40));
    assert_texts(&either, &[&text, "7"], &[&digits(17)]);
    // Any value, in a list, and in a schema within Lark; the surrounding text is free.
    let list = format!("[{}]", digits(17));
    assert_texts(&of(json!({"type": "array"})), &["[1, 2]"], &[&list]);
    let lark = compiled(Source::Lark("start: TEXT %json {\"type\": \"object\"}\nTEXT: /[0-9]+/\n".into()));
    let free = format!("{}{{\"a\": 1}}", digits(40));
    let bad = format!("1{{\"a\": {}}}", digits(17));
    assert_texts(&lark, &[&free], &[&bad]);
    // Names that look like the parser's printed terminals.
    let odd = of(json!({"properties": {"(ExprRef 5)": {}}, "required": ["(ExprRef 5)"], "type": "object"}));
    assert_texts(&odd, &[r#"{"(ExprRef 5)": 1}"#], &["{}", r#"{"a": 1}"#]);
    // A longer number in the schema raises the limit.
    assert_texts(&of(json!({"const": 1u64 << 60})), &["1152921504606846976"], &["1"]);
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

/// A patch in the format of Codex's tool, and sums as in OpenAI's API description.
const PATCH: &str = r#"start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"#;
const SUM: &str = r#"
// Spaces have their places.
start: expr
?expr: term (SP ADD SP term)* -> sum
     | "none"i

!term.2: factor (SP MUL SP factor) ~ 0..2 -> product
?factor: INT | "(" [A] ")"
SP: " "
ADD: "+" | "-" # two signs
MUL: "*"
A: "a".."c"
%import common (INT, LF)
"#;

#[test]
fn lark_becomes_a_regular_expression_if_no_rule_refers_to_itself() {
    let words = "start: (NAME \"=\" /[^;\\/]+/i \";\"){1,2}\n\
                 %import common.CNAME -> NAME\n%ignore WS\n%import common.WS";
    for (lark, good, bad) in [
        (
            PATCH,
            &[
                "*** Begin Patch\n*** Add File: a \\ \"b\".txt\n+x\n+\n*** End Patch",
                "*** Begin Patch\n*** Delete File: é\n*** Update File: n\n*** Move to: m\n@@\n-a\n+\tb\n \n\
                 *** End of File\n*** End Patch\n",
            ][..],
            &["*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\nx\n*** End Patch"][..],
        ),
        (
            SUM,
            &["1", "12 + 3 * 4 - (b)", "()", "NonE", "1 * 2 * 3"],
            &["", "1+2", "(d)", "1 * 2 * 3 * 4", "1 +"],
        ),
        (words, &["a=1;", " a = x y ;\nb_2=\t\";"], &["a=;", "a=1;b=2;c=3;", "2=a;", "a=/;"]),
    ] {
        let regex = lark_to_regex(lark).unwrap();
        let schema = json!({ "type": "string", "pattern": format!("^(?:{regex})$") });
        let texts = |texts: &[&str]| texts.iter().map(|text| json!(text).to_string()).collect::<Vec<_>>();
        let (good, bad) = (texts(good), texts(bad));
        let (good, bad): (Vec<&str>, Vec<&str>) =
            (good.iter().map(String::as_str).collect(), bad.iter().map(String::as_str).collect());
        assert_texts(&compiled(Source::JsonSchema { schema, strict: true }), &good, &bad);
    }
}

#[test]
fn lark_that_becomes_no_regular_expression_says_why() {
    let doubled: String = (0..20).map(|i| format!("a{i}: a{} a{}\n", i + 1, i + 1)).collect();
    let deep = format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    let chain: String = (0..5000).map(|i| format!("a{i}: a{}\n", i + 1)).collect();
    for (lark, why) in [
        ("start: \"(\" start? \")\"", "`start` refers to itself"),
        ("start: a\na: b\nb: \"x\" a", "`a` refers to itself"),
        ("rule: \"a\"", "no rule `start`"),
        ("start: b", "no rule `b`"),
        ("start: \"a\"\nstart: \"b\"", "line 2: `start` is defined twice"),
        ("start: \"a", "line 1: unterminated string"),
        ("start: /a", "line 1: unterminated regex"),
        ("start: (\"a\"\n", "unexpected `"),
        ("start: \"a\" }", "unexpected `}`"),
        ("start: \"ab\"..\"c\"", "line 1: each end of a range must be one character"),
        ("start: <|im_end|>", "line 1: `<` is not standard Lark"),
        ("start: %json {}", "line 1: unexpected `%json`"),
        ("start: ~A\nA: \"a\"", "line 1: unexpected `~`"),
        ("start: A\n%import python.A", "line 2: only `common` can be imported"),
        ("start: A\n%import common.A", "line 2: `common` has no `A`"),
        ("", "no rule `start`"),
        (&format!("start: a0\n{doubled}a20: \"abc\""), "bytes as a regular expression"),
        (&deep, "levels of brackets and rules"),
        (&format!("start: a0\n{chain}a5000: \"abc\""), "levels of brackets and rules"),
    ] {
        let said = lark_to_regex(lark).unwrap_err().to_string();
        assert!(said.contains(why), "{said}: not {why}");
    }
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
    // Its own instance: abandoned grammars keep running for a while and would block other tests.
    let grammars = Grammars::new(&TOKENIZER);
    for (what, source) in cases {
        let begun = Instant::now();
        let err = grammars.compile(&source).map(|_| ()).expect_err(what);
        let took = begun.elapsed();
        println!("{what}: {took:?}: {err}");
        assert!(took < Duration::from_secs(20), "{what}: {took:?}");
        assert!(!err.to_string().contains("backtrace"), "{what}: {err}");
    }
    // A valid grammar still compiles afterwards.
    let begun = Instant::now();
    let good = loop {
        match grammars.compile(&Source::JsonObject) {
            Err(GrammarError::Busy(_)) if begun.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            compiled => break compiled.unwrap(),
        }
    };
    assert!(allows(&good, "{}"));
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
    // The cores may be busy.
    let limits = Limits { time: Duration::from_secs(100), ..Limits::default() };
    let grammars = Grammars::with_limits(&TOKENIZER, limits);
    let level =
        |inner: Value| json!({"type": "object", "properties": {"a": {"type": "array", "items": inner}}});
    // Links of a chain, with as many levels in all as are allowed.
    let choice = |inner: Value| json!({"anyOf": [inner, {"type": "null"}]});
    type Link<'a> = &'a dyn Fn(Value) -> Value;
    let links: [(usize, Link<'_>); 3] = [
        (155, &|next| (0..61).fold(next, |inner, _| choice(inner))),
        (900, &|next| (0..5).fold(next, |inner, _| level(inner))),
        (3990, &|next| next),
    ];
    for (n, link) in links {
        let to = |i: usize| link(json!({"$ref": format!("#/$defs/d{i}")}));
        let mut defs: serde_json::Map<_, _> = (0..n).map(|i| (format!("d{i}"), to(i + 1))).collect();
        defs.insert(format!("d{n}"), json!({"type": "null"}));
        let schema = json!({"$ref": "#/$defs/d0", "$defs": defs});
        let compiled = grammars.compile(&Source::JsonSchema { schema, strict: true });
        assert!(compiled.is_ok(), "{n} links: {compiled:?}");
    }
    let rules: String = (0..3000).map(|i| format!("r{i} ::= \"a\" r{} | \"b\" root\n", i + 1)).collect();
    let chain = grammars.compile(&Source::Gbnf(format!("root ::= r0\n{rules}r3000 ::= \"c\"\n")));
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

    /// Tokens drawn from the masks are always accepted, and a new state that follows them has the same mask.
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
