//! Bounds the length of JSON numbers: a small model that starts writing zeros may never stop.
//!
//! As in llama.cpp, a number has at most 16 digits before the point, 16 after it and 3 in its exponent; more
//! only if the schema contains a longer number. The parser has no such bound, so the terminals of a schema
//! are narrowed before the lexer is built.

use llguidance::api::SkipSpec;
use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::{LexemeSpec, LexerSpec};
use serde_json::Value;

use super::{GrammarError, Space};

/// Suffixes that the parser prints after a terminal.
const SAID: &[&str] = &[" lazy", " suffix", " contextual", " extra"];
/// Endings of printed terminals that have no expression.
const NO_EXPRESSION: &[&str] = &["\")", "(EmptyString)", "(NoMatch)"];

const EXPONENT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits {
    pub integer: usize,
    pub fraction: usize,
}

impl Default for Digits {
    fn default() -> Self {
        Self { integer: 16, fraction: 16 }
    }
}

impl Digits {
    /// Raises the limits to what the numbers in the schema need.
    #[must_use]
    pub fn with(self, schema: &Value) -> Self {
        match schema {
            Value::Object(object) => object.iter().fold(self, |most, (key, value)| match key.as_str() {
                "const" | "enum" => most.with_constant(value),
                // Shorter numbers also satisfy this bound.
                "maximum" | "exclusiveMaximum" if value.as_f64() > Some(0.0) => most.with_fraction(value),
                "minimum" | "exclusiveMinimum" if value.as_f64() < Some(0.0) => most.with_fraction(value),
                "maximum" | "exclusiveMaximum" | "minimum" | "exclusiveMinimum" => most.with_constant(value),
                _ => most.with(value),
            }),
            Value::Array(list) => list.iter().fold(self, Self::with),
            _ => self,
        }
    }

    fn with_constant(self, value: &Value) -> Self {
        match value {
            Value::Object(object) => object.values().fold(self, Self::with_constant),
            Value::Array(list) => list.iter().fold(self, Self::with_constant),
            value => {
                let before = digits(value).0;
                Self { integer: self.integer.max(before), ..self.with_fraction(value) }
            }
        }
    }

    fn with_fraction(self, value: &Value) -> Self {
        Self { fraction: self.fraction.max(digits(value).1), ..self }
    }

    /// Expression for text that does not begin like a number, or is a number within these limits.
    fn word(self) -> RegexAst {
        let Self { integer, fraction } = self;
        let number =
            format!(r"-?[0-9]{{1,{integer}}}(\.[0-9]{{1,{fraction}}})?([eE][+-]?[0-9]{{1,{EXPONENT}}})?");
        let begins = vec![RegexAst::Regex("[-0-9]".to_owned()), RegexAst::ExprRef(ExprRef::ANY_BYTE_STRING)];
        let other = RegexAst::Not(Box::new(RegexAst::Concat(begins)));
        RegexAst::Or(vec![RegexAst::Regex(number), other])
    }
}

/// Number of digits before and after the point, as the parser writes a number.
fn digits(value: &Value) -> (usize, usize) {
    let Some(value) = value.as_f64() else { return (0, 0) };
    let text = value.abs().to_string();
    match text.split_once('.') {
        Some((integer, fraction)) => (integer.len(), fraction.len()),
        None => (text.len(), 0),
    }
}

/// Bounds the numbers of every schema in a lexer.
///
/// # Errors
/// [`GrammarError::Invalid`] if the parser fails, or prints a terminal in an unknown form.
pub fn bound(spec: &mut LexerSpec, digits: Digits, space: Space) -> Result<(), GrammarError> {
    let skip = format!("{:?}", SkipSpec::once(RegexAst::Regex(space.pattern().to_owned())).regex);
    let class_before = spec.current_class;
    for at in 0..spec.lexemes.len() {
        let lexeme = &spec.lexemes[at];
        let class = lexeme.class();
        let its_skip = spec.skip_id(class);
        // Terminals of schemas are recognised by the white space that may separate them.
        let is_json = spec.lexeme_spec(its_skip).to_string(usize::MAX, None).contains(&skip);
        if !is_json || its_skip.as_usize() == at {
            continue;
        }
        let Some(expression) = expression(lexeme)? else { continue };
        let words = RegexAst::And(vec![RegexAst::ExprRef(expression), digits.word()]);
        // A new terminal takes the first free slot.
        let rest = spec.lexemes.split_off(at);
        spec.current_class = class;
        let added = spec.add_greedy_lexeme(String::new(), words, false, None, usize::MAX);
        added.map_err(|err| GrammarError::Invalid(err.to_string()))?;
        let is_new = spec.lexemes.len() > at;
        spec.lexemes.extend(rest.into_iter().skip(usize::from(is_new)));
    }
    spec.current_class = class_before;
    Ok(())
}

/// Finds the regular expression of a terminal. The parser only prints it; literals have none.
///
/// # Errors
/// [`GrammarError::Invalid`] if it is printed in an unknown form: its numbers would be unbounded.
fn expression(lexeme: &LexemeSpec) -> Result<Option<ExprRef>, GrammarError> {
    read_expression(&lexeme.to_string(usize::MAX, None))
}

fn read_expression(shown: &str) -> Result<Option<ExprRef>, GrammarError> {
    // Strip the suffixes.
    let mut word = match shown.rsplit_once(" tokens=") {
        Some((word, ranges)) if !ranges.contains('"') => word,
        _ => shown,
    };
    while let Some(rest) = SAID.iter().find_map(|said| word.strip_suffix(said)) {
        word = rest;
    }
    // A literal that looks like an expression ends in a quote.
    if NO_EXPRESSION.iter().any(|end| word.ends_with(end)) {
        return Ok(None);
    }
    let number = word.rsplit_once("(ExprRef ").and_then(|(_, rest)| rest.strip_suffix(')')?.parse().ok());
    let unread = || GrammarError::Invalid(format!("cannot bound a terminal of the schema: {shown}"));
    number.map(|number| Some(ExprRef::new(number))).ok_or_else(unread)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_are_read_as_the_parser_shows_them_or_refused() {
        let read = |shown| read_expression(shown).map(|found| found.map(|found| found.as_usize()));
        for shown in
            ["[3] n (ExprRef 12)", "[3]  (ExprRef 12) lazy contextual", "[3] n (ExprRef 12) tokens=<[1]>"]
        {
            assert_eq!(read(shown).unwrap(), Some(12), "{shown}");
        }
        for shown in [r#"[3] n (Literal "{")"#, r#"[3] n (Literal " (ExprRef 5)") lazy"#, "[3] n (NoMatch)"] {
            assert_eq!(read(shown).unwrap(), None, "{shown}");
        }
        for shown in ["[3] n (ExprRef twelve)", "[3] n (ExprRef 12) anew", "[3] n (Regex /[0-9]+/)"] {
            assert!(read(shown).is_err(), "{shown}");
        }
    }

    #[test]
    fn a_schema_that_names_longer_numbers_has_them() {
        let most = |schema: Value| {
            let Digits { integer, fraction } = Digits::default().with(&schema);
            (integer, fraction)
        };
        assert_eq!(most(json!({ "maximum": 1e18, "minimum": -1e18 })), (16, 16));
        assert_eq!(most(json!({ "items": [{ "minimum": 1e17 }] })), (18, 16));
        assert_eq!(most(json!({ "properties": { "a": { "const": { "b": [-1e19] } } } })), (20, 16));
        assert_eq!(most(json!({ "enum": [1e-20] })), (16, 20));
        assert_eq!(most(json!({ "enum": ["10000000000000000000"] })), (16, 16));
    }
}
