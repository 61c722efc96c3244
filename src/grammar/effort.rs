//! Bounds the work of a lexer before the parser builds it.
//!
//! The states of the lexer are derivatives of expressions. The parser counts its work on them, but compares
//! the count with a limit only between two derivatives, and those of the first state have no limit. So the
//! sizes of derivatives are estimated here from the expressions, and the first ones are computed with a
//! limit.

use std::collections::HashMap;

use llguidance::api::ParserLimits;
use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{AlphabetInfo, ExprRef};
use llguidance::earley::lexerspec::LexerSpec;

use super::{GrammarError, at_most};

/// Largest number of expressions and alternatives in the derivatives of a grammar by one byte.
const MAX_ALTERNATIVES: f64 = 2e6;
/// Largest number of combinations of the alternatives of intersected expressions.
pub const MAX_COMBINATIONS: f64 = 2e5;

/// Largest number of classes of Unicode characters in a grammar: each has up to a thousand expressions.
const MAX_UNICODE_CLASSES: usize = 500;

/// Kinds of expressions; the parser does not export their names.
const NO_TEXT: [u8; 2] = [1, 2];
const BYTE: [u8; 2] = [3, 4];
const BYTES: u8 = 5;
const REMAINDER: u8 = 6;
const NOT: u8 = 8;
const CONCAT: u8 = 10;
const OR: u8 = 11;
const AND: u8 = 12;

/// Checks the number of classes of Unicode characters in regular expressions.
///
/// # Errors
/// [`GrammarError::TooLarge`].
pub fn check_classes<'t>(texts: impl Iterator<Item = &'t str>) -> Result<(), GrammarError> {
    let n = texts.map(|text| {
        // Without regard to case, any class may have as many.
        let ignores_case = text.contains("(?") || text.contains("/i");
        let classes = ["\\p", "\\P", "\\w", "\\W"].into_iter().chain(ignores_case.then_some("["));
        classes.map(|class| text.matches(class).count()).sum::<usize>()
    });
    at_most("classes of Unicode characters", n.sum(), MAX_UNICODE_CLASSES)
}

/// Reason why a lexer takes too much work.
#[derive(Debug, thiserror::Error)]
#[error("its terminals are too complex: {0}")]
pub struct TooComplex(String);

/// Checks that a lexer can be built and run.
///
/// # Errors
/// [`TooComplex`].
pub fn check(words: &LexerSpec, limits: &ParserLimits) -> Result<(), TooComplex> {
    let too_complex = |what: &str| Err(TooComplex(what.to_owned()));
    let work = Work::of(words.regex_builder.exprset());
    if work.is_too_much() {
        return too_complex("too many alternatives or optional parts follow each other");
    }
    let mut limits = limits.clone();
    let mut lexer = words.to_regex_vec(&mut limits).map_err(|err| TooComplex(err.to_string()))?;
    lexer.set_fuel(limits.initial_lexer_fuel);
    let start = lexer.initial_state(&words.all_lexemes());
    for byte in 0..=u8::MAX {
        lexer.transition(start, byte);
        if let Some(err) = lexer.get_error() {
            return Err(TooComplex(err));
        }
    }
    Ok(())
}

/// Estimated work of the derivatives of a set of expressions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Expressions and alternatives in all derivatives by one byte: the maximum of all bytes.
    alternatives: f64,
    /// Most alternatives in one derivative.
    pub most_alternatives: f64,
    /// Combinations of alternatives in an intersection, also of later derivatives: the sum over all bytes,
    /// and the maximum of all intersections.
    combinations: f64,
}

impl Work {
    pub fn of(exprs: &ExprSet) -> Self {
        // An expression comes after its parts. Number 0 is none.
        let all: Vec<ExprRef> = (1..exprs.len() as u32).map(ExprRef::new).collect();
        let (alphabet, ..) = AlphabetInfo::from_exprset(exprs.clone(), &all);
        let mut of_class: Vec<Option<u8>> = vec![None; alphabet.len()];
        (0..=u8::MAX).for_each(|byte| of_class[alphabet.map(byte)] = Some(byte));
        let mut combinations = HashMap::new();
        let mut derivatives = Derivatives::new(exprs, &all);
        let mut work = Self::default();
        for byte in of_class.into_iter().flatten() {
            let total = derivatives.by(exprs, &all, byte, &mut combinations);
            work.alternatives = work.alternatives.max(total);
            work.most_alternatives = derivatives.most.iter().copied().fold(work.most_alternatives, f64::max);
        }
        Self { combinations: combinations.values().copied().fold(0.0, f64::max), ..work }
    }

    /// True if a derivative takes too much work, even without intersections.
    pub fn is_too_much(&self) -> bool {
        self.alternatives > MAX_ALTERNATIVES
    }
}

/// Estimates for each expression, by its number.
struct Derivatives {
    /// Number of parts of a concatenation; 1 for other expressions.
    parts: Vec<f64>,
    /// Alternatives in the derivative.
    alternatives: Vec<f64>,
    /// Parts of the concatenation in the derivative.
    derived_parts: Vec<f64>,
    /// Most alternatives in the derivative of the expression or a part of it: later derivatives have about as
    /// many for each of theirs.
    most: Vec<f64>,
}

impl Derivatives {
    fn new(exprs: &ExprSet, all: &[ExprRef]) -> Self {
        let none = || vec![0.0; all.len() + 1];
        let (mut parts, alternatives, derived_parts, most) = (none(), none(), none(), none());
        for &expr in all {
            let last = exprs.get_args(expr).last();
            parts[expr.as_usize()] = match (exprs.get_tag(expr) as u8, last) {
                (BYTES | CONCAT, Some(last)) => 1.0 + parts[last.as_usize()],
                _ => 1.0,
            };
        }
        Self { parts, alternatives, derived_parts, most }
    }

    /// Estimates the derivatives by a byte, and adds the combinations in each intersection. Returns the
    /// total.
    fn by(&mut self, exprs: &ExprSet, all: &[ExprRef], byte: u8, to: &mut HashMap<ExprRef, f64>) -> f64 {
        let mut total = 0.0;
        for &expr in all {
            let (tag, args) = (exprs.get_tag(expr) as u8, exprs.get_args(expr));
            let most_of = |of: &[f64]| args.iter().map(|arg| of[arg.as_usize()]).fold(0.0, f64::max);
            let (n, n_parts) = match tag {
                tag if NO_TEXT.contains(&tag) => (0.0, 0.0),
                tag if BYTE.contains(&tag) => (f64::from(exprs.get(expr).matches_byte(byte)), 0.0),
                BYTES if exprs.get(expr).surely_no_match(byte) => (0.0, 0.0),
                BYTES => (1.0, self.parts[expr.as_usize()]),
                REMAINDER | NOT => (1.0, 1.0),
                CONCAT => {
                    let [first, rest] = [args[0], args[1]];
                    let n = self.alternatives[first.as_usize()];
                    let is_alternatives = n > 0.0 && exprs.get_tag(rest) as u8 == OR;
                    let n = n + if is_alternatives { exprs.get_args(rest).len() as f64 } else { 0.0 };
                    let after = match exprs.is_nullable(first) {
                        true => self.alternatives[rest.as_usize()],
                        false => 0.0,
                    };
                    let moved = self.derived_parts[first.as_usize()];
                    total += moved;
                    (n + after, if n > 0.0 { moved + 1.0 + self.parts[rest.as_usize()] } else { 0.0 })
                }
                OR => (
                    args.iter().map(|arg| self.alternatives[arg.as_usize()]).sum(),
                    most_of(&self.derived_parts),
                ),
                AND => {
                    let product = |of: &[f64]| args.iter().map(|arg| of[arg.as_usize()]).product::<f64>();
                    *to.entry(expr).or_default() += product(&self.most);
                    (product(&self.alternatives), 1.0)
                }
                // Repetitions, and the end of a text that is looked for.
                _ => {
                    let moved = most_of(&self.derived_parts);
                    total += moved;
                    (most_of(&self.alternatives), moved + 1.0)
                }
            };
            total += n;
            let at = expr.as_usize();
            self.alternatives[at] = n;
            self.derived_parts[at] = n_parts;
            self.most[at] = most_of(&self.most).max(n);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use sterna_engine::{ConstraintError, Grammar as _};

    use crate::tests::{GRAMMARS, TOKENIZER, allows};
    use crate::{GrammarError, Grammars, Limits, Source};

    fn schema(schema: Value, strict: bool) -> Source {
        Source::JsonSchema { schema, strict }
    }

    fn text(pattern: &str) -> Value {
        json!({ "type": "string", "pattern": pattern })
    }

    /// Rules of which each is the next one twice.
    fn doubled(n: usize) -> String {
        let rules: String = (1..n).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1)).collect();
        format!("root ::= r1 r1\n{rules}r{n} ::= [a-z]?\n")
    }

    fn list(n: usize, make: impl Fn(usize) -> Value) -> Value {
        (0..n).map(make).collect()
    }

    fn map(n: usize, make: impl Fn(usize) -> (String, Value)) -> Value {
        Value::Object((0..n).map(make).collect())
    }

    #[test]
    fn grammars_with_endless_work_are_refused() {
        let parts: Vec<String> = (0..30).map(|i| format!("/.*x.{{{i}}}/")).collect();
        let base = json!({ "properties": map(300, |i| (format!("a{i}"), text("^a$"))) });
        let choice =
            |name: &str| json!({ "anyOf": list(100, |i| json!({ "required": [format!("{name}{i}")] })) });
        // The time does not decide, however busy the machine is.
        let limits = Limits { time: Duration::from_secs(600), ..Limits::default() };
        let grammars = Grammars::with_limits(&TOKENIZER, limits);
        let twice = |i: usize| list(2, |_| json!({ "$ref": format!("#/$defs/d{i}") }));
        for source in [
            Source::Gbnf(doubled(16)),
            Source::Gbnf(doubled(30)),
            Source::Regex("a?".repeat(20_000)),
            Source::Lark(format!("start: T\nT: {}\n", parts.join(" & "))),
            schema(json!({ "type": "integer", "multipleOf": 99_999_989 }), true),
            schema(text(&"a?".repeat(20_000)), true),
            schema(json!({ "allOf": list(30, |i| text(&format!(".*x.{{{i}}}"))) }), true),
            schema(json!({ "allOf": [base, choice("a"), choice("b")] }), true),
            schema(
                json!({ "allOf": twice(0),
                    "$defs": map(60, |i| (format!("d{i}"), json!({ "allOf": twice((i + 1) % 60) }))) }),
                true,
            ),
            schema(json!({ "patternProperties": map(200, |i| (format!("^p{i}_[a-z]*$"), json!({}))) }), true),
        ] {
            let err = grammars.compile(&source).map(|_| ()).unwrap_err();
            assert!(!matches!(err, GrammarError::TooSlow(_) | GrammarError::Busy(_)), "{source:?}: {err}");
        }
    }

    #[test]
    fn large_grammars_compile() {
        let all = |properties: Value| json!({ "type": "object", "properties": properties });
        let base = all(map(100, |i| (format!("a{i}"), json!({}))));
        let members = list(4, |i| text(["[A-Z]", "[a-z]", "[0-9]", "[^A-Za-z0-9]"][i]));
        let kind =
            |i: usize| json!({ "properties": { "kind": { "const": i }, "value": {} }, "required": ["kind"] });
        for source in [
            Source::Gbnf(doubled(8)),
            Source::Choice((0..1000).map(|i| format!("choice number {i}")).collect()),
            schema(all(map(300, |i| (format!("property{i}"), text("^[a-z]{1,20}$")))), true),
            schema(json!({ "enum": list(1000, |i| json!(format!("value number {i}"))) }), true),
            schema(json!({ "type": "string", "allOf": members, "minLength": 8, "maxLength": 64 }), true),
            schema(json!({ "allOf": [base, { "anyOf": list(50, kind) }] }), true),
            schema(json!({ "type": "integer", "multipleOf": 3600, "minimum": 0, "maximum": 86400 }), true),
            schema(json!({ "type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 9999.99 }), true),
        ] {
            let compiled = GRAMMARS.compile(&source).unwrap_or_else(|err| panic!("{source:?}: {err}"));
            assert_eq!(compiled.notes(), [""; 0], "{source:?}");
        }
    }

    #[test]
    fn lenient_schemas_lose_only_what_takes_too_long() {
        let properties = json!({ "a": { "type": "integer", "multipleOf": 99_999_989 }, "b": text("^x$") });
        let strict = json!({ "type": "object", "properties": properties, "required": ["a", "b"] });
        let compiled = GRAMMARS.compile(&schema(strict, false)).unwrap();
        assert!(compiled.notes()[0].contains("`multipleOf` at #/properties/a"), "{:?}", compiled.notes());
        assert!(allows(&compiled, r#"{"a": 7, "b": "x"}"#) && !allows(&compiled, r#"{"a": 7, "b": "y"}"#));
    }

    #[test]
    fn slow_masks_are_given_up() {
        let limits = Limits { mask_time: Duration::ZERO, ..Limits::default() };
        let grammars = Grammars::with_limits(&TOKENIZER, limits);
        let source = Source::Gbnf("root ::= s\ns ::= s s | s s s | [a-z ]\n".to_owned());
        let mut state = grammars.compile(&source).unwrap().start();
        let err = loop {
            let n_vocab = TOKENIZER.n_vocab() as u32;
            let picked = state.mask().map(|mask| (0..n_vocab).rfind(|id| mask.allows(*id)).unwrap());
            if let Err(err) = picked.and_then(|token| state.accept(token)) {
                break err;
            }
        };
        assert_eq!(err, ConstraintError::TooSlow(Duration::ZERO));
    }
}
