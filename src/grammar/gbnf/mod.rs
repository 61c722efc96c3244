//! GBNF, the grammars of llama.cpp: read here (`parse.rs`), and written as Lark for the parser (`lark.rs`).
//!
//! GBNF speaks of characters; llguidance reads words first and then rules of them. So whatever does not refer
//! to itself becomes one word, which is exact. Between words, where a rule refers to itself, the longest word
//! is taken: of a grammar that could be read in two ways there, one is left.

mod lark;
mod parse;

#[cfg(test)]
mod tests;

use super::GrammarError;

/// Right-hand side of a rule: one of several sequences.
type Choices = Vec<Vec<Repeated>>;

/// An item of a sequence, and how often it comes.
#[derive(Clone, Debug, PartialEq)]
struct Repeated {
    item: Item,
    least: u32,
    /// `None` has no bound.
    most: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
enum Item {
    Text(String),
    /// A character of these ranges, or of none of them.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    /// Any character.
    Any,
    /// Index of a rule.
    Rule(usize),
    /// A token, or any but it.
    Token {
        id: u32,
        negated: bool,
    },
}

/// A rule.
#[derive(Debug)]
struct Rule {
    /// Empty for a group in brackets.
    name: String,
    choices: Choices,
}

/// A GBNF grammar in Lark. `find` gives the id of a token by its spelling, of `n_vocab` there are.
///
/// # Errors
/// [`GrammarError::Gbnf`] with line and column; [`GrammarError::TooLarge`].
pub fn to_lark(
    text: &str,
    find: &dyn Fn(&str) -> Option<u32>,
    n_vocab: usize,
) -> Result<String, GrammarError> {
    let (rules, root) = parse::Reader::new(text, find, n_vocab).read()?;
    lark::write(&rules, root)
}
