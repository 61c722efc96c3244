//! Grammars of the kinds that users of llama.cpp write.

use super::super::tests::{allows, gbnf};
use super::*;

fn assert_texts(grammar: &str, good: &[&str], bad: &[&str]) {
    let compiled = gbnf(grammar);
    good.iter().for_each(|text| assert!(allows(&compiled, text), "{text:?} should be allowed"));
    bad.iter().for_each(|text| assert!(!allows(&compiled, text), "{text:?} should not be allowed"));
}

#[test]
fn sums_in_brackets() {
    let grammar = r#"
        # What refers to itself stays a rule.
        root  ::= sum "\n"
        sum   ::= term ([-+] term)*
        term  ::= value ([*/] value)*
        value ::= [0-9]+ | name | "(" sum ")"
        name  ::= [a-z] [a-z0-9_]*
    "#;
    assert_texts(grammar, &["1\n", "a+1*(b-2)/x_9\n", "((7))\n"], &["1", "+1\n", "(1\n", "1a\n", "A\n"]);
}

#[test]
fn json_by_hand() {
    let grammar = r#"root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
# A space, or a line end and what follows it.
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let good = [r#"{"a": [1, -2.5e+3], "b": {"c": "\u00e9é"}}"#, "{}", "{\n\t\"x\": null}", "{ }\n"];
    assert_texts(grammar, &good, &["[]", r#"{"a": 01}"#, r#"{"a": "x}"#, "{\"a\": \"\n\"}", "{  }"]);
}

#[test]
fn a_list_and_moves_of_chess() {
    assert_texts(r#"root ::= ("- " [^\r\n]+ "\n")+"#, &["- a\n", "- a\n- →é\n"], &["- a", "-a\n", "- \n"]);
    let chess = r#"
root     ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move     ::= (pawn | nonpawn | castle) [+#]?
nonpawn  ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn     ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle   ::= "O-O" "-O"?
"#;
    let good = ["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 Nf6\n2. O-O exd8=Q#\n10. Rab1 Qh4+\n"];
    assert_texts(chess, &good, &["1. e4 e5\n", "1. e9 e5\n2. Nf3 Nc6\n", "e4 e5\n"]);
}

#[test]
fn characters_beyond_ascii() {
    let grammar =
        "root ::= word ([ \\t\\n] word)* \"。\"?\nword ::= [ぁ-ゟ]+ | [ァ-ヿ]+ | [\\u4E00-\\U00009FFF]+";
    assert_texts(grammar, &["ひらがな カタカナ", "漢字。"], &["", "kana", "ひカ", "漢字。。"]);
    assert_texts("root ::= [^é]{2}", &["ab", "→\n"], &["é", "aé", "abc"]);
    assert_texts("root ::= . .", &["a\n", "é→"], &["a", "abc"]);
}

#[test]
fn repetition() {
    assert_texts(
        "root ::= \"a\"{2} [bc]{1,3} \"d\"{,2} \"e\"{2,}",
        &["aabee", "aabcbddeeee"],
        &["abee", "aaee"],
    );
    assert_texts("root ::= \"a\" \"b\"{0} \"c\"", &["ac"], &["abc"]);
    assert_texts("root ::= (\"x\"?){2} \"y\"**", &["", "x", "xx", "yyy"], &["xxx"]);
    assert_texts("root ::= \"a\"\n  | \"b\"\n  | \"c\"", &["a", "b", "c"], &["ab", ""]);
    assert_texts("root ::= item{2}\nitem ::= \"(\" item? \")\"", &["()()", "(())()"], &["()", "()()()"]);
}

#[test]
fn left_recursion_and_rules_that_are_empty() {
    assert_texts("root ::= root \"a\" | \"b\"", &["b", "ba", "baaa"], &["a", "ab", ""]);
    assert_texts("root ::= a \"x\" a\na ::= | \"(\" a \")\"", &["x", "()x", "(())x()"], &["(", "(x"]);
}

#[test]
fn tokens_by_name_and_number() {
    let find = |name: &str| (name == "<think>").then_some(7);
    let lark = to_lark("root ::= <think> body* !<[3]>\nbody ::= !<think>", &find, 10).unwrap();
    assert_eq!(lark, "start: r0\nr0: <[7]> r1* <[^3]>  // root\nr1: <[^7]>  // body\n");
}

#[test]
fn errors_say_where() {
    let cases = [
        ("", 1, 1, "root"),
        ("rot ::= \"a\"", 1, 12, "root"),
        ("root = \"a\"", 1, 6, "`::=`"),
        ("root ::= \"a", 1, 12, "the end"),
        ("root ::= [a-", 1, 13, "character"),
        ("root ::= [z-a]", 1, 11, "ends before"),
        ("root ::= []", 1, 12, "no characters"),
        ("root ::= \"\\q\"", 1, 11, "escape"),
        ("root ::= \"\\uD800\"", 1, 11, "4 hexadecimal"),
        ("root ::= (\"a\"", 1, 14, "`)`"),
        ("root ::= \"a\")", 1, 13, "end of the line"),
        ("root ::= a\n\na ::= é", 3, 7, "end of the line"),
        ("root ::= a b\na ::= \"x\"", 1, 12, "`b` is not defined"),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, 1, "twice"),
        ("root ::= \"a\"{3,2}", 1, 14, "less than"),
        ("root ::= \"a\"{,}", 1, 16, ""),
        ("root ::= \"a\"{x}", 1, 14, "a number"),
        ("root ::= <|x|>", 1, 10, "no token <|x|>"),
        ("root ::= <[10]>", 1, 10, "no token <[10]>"),
        ("root ::= !x", 1, 11, "a token"),
    ];
    for (text, line, column, words) in cases {
        match to_lark(text, &|_| None, 10) {
            Err(GrammarError::Gbnf { line: l, column: c, detail }) => {
                assert!((l, c) == (line, column) && detail.contains(words), "{text:?}: {l}:{c}: {detail}");
            }
            Ok(_) if words.is_empty() => {}
            other => panic!("{text:?}: {other:?}"),
        }
    }
}
