//! GBNF, llama.cpp's grammar format: parsed in `parse.rs`, and written as Lark for the parser in `lark.rs`.
//!
//! GBNF describes characters; llguidance splits text into terminals first and then applies rules. Every rule
//! that is not recursive becomes one terminal, which is exact. Between terminals of a recursive rule the
//! lexer is greedy: of two possible readings, only the longest match remains.

mod lark;
mod parse;

#[cfg(test)]
mod tests;

use super::GrammarError;

/// Right-hand side of a rule: one of several sequences.
type Choices = Vec<Vec<Repeated>>;

/// An item of a sequence and its number of repetitions.
#[derive(Clone, Debug, PartialEq)]
struct Repeated {
    item: Item,
    least: u32,
    /// `None` is unbounded.
    most: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
enum Item {
    Text(String),
    /// A character in these ranges, or, if negated, in none of them.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    Any,
    Rule(usize),
    /// A token, or, if negated, any other token.
    Token {
        id: u32,
        negated: bool,
    },
}

#[derive(Debug)]
struct Rule {
    /// Empty for a bracketed group.
    name: String,
    choices: Choices,
}

/// Converts a GBNF grammar to Lark. `find` returns the id of a token by its spelling; there are `n_vocab`
/// tokens.
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
