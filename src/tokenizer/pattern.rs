//! A small regular expression engine for pre-tokenizers: alternatives of runs of characters.
//!
//! The semantics are Perl's: the first alternative that matches, greedy runs. Supported is what the registry
//! in `pre.rs` uses: classes, ranges, `\s`, `\r`, `\n`, `\p{L}` and the like, `\p{Han}`, `&&[^\p{Han}]` at
//! the end of a class, `?`, `*`, `+`, `{1,3}`, `|` and, at the end of an alternative, `(?:…)?`.

use super::categories::{self, category};

pub struct Pattern(Vec<Alternative>);

type Alternative = Vec<Item>;

enum Item {
    /// At least `min` and up to `max` characters of a class.
    Run { class: Class, min: usize, max: usize },
    /// One of these alternatives, or nothing.
    Optional(Vec<Alternative>),
}

/// Character class of a run.
#[derive(Default)]
struct Class {
    /// Characters up to U+007F, one bit each.
    ascii: u128,
    /// Categories of the characters above U+007F.
    others: categories::Set,
    /// Explicit ranges above U+007F, inclusive, sorted and disjoint.
    ranges: Vec<(char, char)>,
    /// True if the class contains the characters above U+007F that are in neither `others` nor `ranges`.
    is_negated: bool,
    /// True if the class contains none of [`HAN`].
    without_han: bool,
}

/// Characters of the script Han, sorted.
const HAN: [(char, char); 22] = [
    ('\u{2e80}', '\u{2e99}'),
    ('\u{2e9b}', '\u{2ef3}'),
    ('\u{2f00}', '\u{2fd5}'),
    ('\u{3005}', '\u{3005}'),
    ('\u{3007}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    ('\u{3038}', '\u{303b}'),
    ('\u{3400}', '\u{4dbf}'),
    ('\u{4e00}', '\u{9fff}'),
    ('\u{f900}', '\u{fa6d}'),
    ('\u{fa70}', '\u{fad9}'),
    ('\u{16fe2}', '\u{16fe3}'),
    ('\u{16ff0}', '\u{16ff1}'),
    ('\u{20000}', '\u{2a6df}'),
    ('\u{2a700}', '\u{2b739}'),
    ('\u{2b740}', '\u{2b81d}'),
    ('\u{2b820}', '\u{2cea1}'),
    ('\u{2ceb0}', '\u{2ebe0}'),
    ('\u{2ebf0}', '\u{2ee5d}'),
    ('\u{2f800}', '\u{2fa1d}'),
    ('\u{30000}', '\u{3134a}'),
    ('\u{31350}', '\u{323af}'),
];

impl Class {
    fn of_categories(set: categories::Set) -> Self {
        let is_in = |byte: &u8| category(char::from(*byte)) & set != 0;
        let ascii = (0..128u8).filter(is_in).fold(0, |bits, byte| bits | 1 << byte);
        Self { ascii, others: set, ..Self::default() }
    }

    fn of_range(first: char, last: char) -> Self {
        let ascii = (0..128u8).filter(|byte| (first..=last).contains(&char::from(*byte)));
        let ascii = ascii.fold(0, |bits, byte| bits | 1 << byte);
        let ranges = if last.is_ascii() { Vec::new() } else { vec![(first, last)] };
        Self { ascii, ranges, ..Self::default() }
    }

    fn with(mut self, other: Self) -> Self {
        self.ranges.extend(other.ranges);
        self.ranges.sort();
        // Merge a range into the previous one if they overlap.
        self.ranges.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1;
            kept.1 = if touches { kept.1.max(next.1) } else { kept.1 };
            touches
        });
        Self { ascii: self.ascii | other.ascii, others: self.others | other.others, ..self }
    }

    fn negated(self) -> Self {
        Self { ascii: !self.ascii, is_negated: true, ..self }
    }

    /// Length in bytes of the first character of `text` if it is in the class.
    #[inline]
    fn first_of(&self, text: &str) -> Option<usize> {
        let byte = *text.as_bytes().first()?;
        if byte < 128 {
            return (self.ascii >> byte & 1 == 1).then_some(1);
        }
        let char = text.chars().next()?;
        let is_in = category(char) & self.others != 0 || lists(&self.ranges, char);
        let is_left_out = self.without_han && lists(&HAN, char);
        (is_in != self.is_negated && !is_left_out).then_some(char.len_utf8())
    }
}

/// True if one of the sorted ranges contains the character.
fn lists(ranges: &[(char, char)], char: char) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= char);
    after > 0 && char <= ranges[after - 1].1
}

impl Pattern {
    /// Parses an expression.
    ///
    /// # Panics
    /// If it uses unsupported syntax.
    pub fn new(text: &str) -> Self {
        let mut rest = text;
        let alternatives = alternatives(&mut rest);
        assert!(rest.is_empty(), "{text}: unsupported syntax: {rest}");
        Self(alternatives)
    }

    /// Start and end of the first non-empty match at or after `from`.
    pub fn find_at(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        text[from..].char_indices().find_map(|(at, _)| {
            let rest = &text[from + at..];
            let len = self.0.iter().find_map(|items| matched(items, rest)).filter(|&len| len > 0)?;
            Some((from + at, from + at + len))
        })
    }
}

/// Length in bytes of the match of a sequence of items at the start of `text`.
fn matched(items: &[Item], text: &str) -> Option<usize> {
    let Some((item, rest)) = items.split_first() else { return Some(0) };
    match item {
        Item::Run { class, min, max } => {
            let (mut n, mut end) = (0, 0);
            while n < *max
                && let Some(len) = class.first_of(&text[end..])
            {
                (n, end) = (n + 1, end + len);
            }
            while n >= *min {
                if let Some(len) = matched(rest, &text[end..]) {
                    return Some(end + len);
                }
                end -= text[..end].chars().next_back()?.len_utf8();
                n -= 1;
            }
            None
        }
        Item::Optional(choices) => Some(choices.iter().find_map(|items| matched(items, text)).unwrap_or(0)),
    }
}

/// Parses alternatives up to the end or a closing bracket.
fn alternatives(rest: &mut &str) -> Vec<Alternative> {
    let mut all = vec![Vec::new()];
    while !rest.is_empty() && !rest.starts_with(')') {
        if take(rest, "|") {
            all.push(Vec::new());
        } else {
            let item = item(rest);
            all.last_mut().expect("starts with one alternative").push(item);
        }
    }
    all
}

fn item(rest: &mut &str) -> Item {
    if take(rest, "(?:") {
        let choices = alternatives(rest);
        assert!(take(rest, ")?") && (rest.is_empty() || rest.starts_with('|')), "a group must end in `)?`");
        return Item::Optional(choices);
    }
    let class = if take(rest, "[") { bracketed(rest) } else { single(rest) };
    let (min, max) = if take(rest, "?") {
        (0, 1)
    } else if take(rest, "*") {
        (0, usize::MAX)
    } else if take(rest, "+") {
        (1, usize::MAX)
    } else if take(rest, "{1,3}") {
        (1, 3)
    } else {
        (1, 1)
    };
    Item::Run { class, min, max }
}

fn bracketed(rest: &mut &str) -> Class {
    let negated = take(rest, "^");
    let mut class = Class::default();
    while !take(rest, "]") {
        if take(rest, r"&&[^\p{Han}]") {
            class.without_han = true;
        } else {
            class = class.with(single(rest));
        }
    }
    if negated { class.negated() } else { class }
}

/// Parses a character, a range, or a named class.
fn single(rest: &mut &str) -> Class {
    const NAMED: &[(&str, categories::Set)] = &[
        (r"\s", categories::SPACE),
        (r"\p{L}", categories::L),
        (r"\p{Lu}", categories::LU),
        (r"\p{Ll}", categories::LL),
        (r"\p{Lt}", categories::LT),
        (r"\p{Lm}", categories::LM),
        (r"\p{Lo}", categories::LO),
        (r"\p{M}", categories::M),
        (r"\p{N}", categories::N),
        (r"\p{P}", categories::P),
        (r"\p{S}", categories::S),
    ];
    if take(rest, r"\p{Han}") {
        return Class { ranges: HAN.to_vec(), ..Class::default() };
    }
    if let Some((_, set)) = NAMED.iter().find(|(name, _)| take(rest, name)) {
        return Class::of_categories(*set);
    }
    let first = character(rest);
    if rest.starts_with('-') && !rest.starts_with("-]") {
        *rest = &rest[1..];
        return Class::of_range(first, character(rest));
    }
    Class::of_range(first, first)
}

fn character(rest: &mut &str) -> char {
    let is_escaped = take(rest, "\\");
    let char = rest.chars().next().unwrap_or_else(|| panic!("a character is missing at the end"));
    *rest = &rest[char.len_utf8()..];
    match char {
        'r' if is_escaped => '\r',
        'n' if is_escaped => '\n',
        _ if is_escaped && !char.is_ascii_punctuation() => panic!("unknown escape: {char}"),
        _ => char,
    }
}

/// Removes the prefix `text`, if present.
fn take(rest: &mut &str, text: &str) -> bool {
    let Some(after) = rest.strip_prefix(text) else { return false };
    *rest = after;
    true
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::pre::PreTokenizer;

    #[test]
    fn the_first_alternative_counts_and_runs_give_back() {
        let find = |pattern: &str, text: &str| Pattern::new(pattern).find_at(text, 0);
        assert_eq!(find("a|ab", "xab"), Some((1, 2)));
        assert_eq!(find(r"\s*[\r\n]+|\s+", " \n  x"), Some((0, 2)));
        assert_eq!(find(r"[0-9][0-9][0-9]", "12 1234"), Some((3, 6)));
        assert_eq!(find(r"\p{L}+(?:'[sS]|'t)?|b", "é's"), Some((0, 4)));
        assert_eq!(find(r"\p{N}{1,3}", "x12345"), Some((1, 4)));
        assert_eq!(find(r"[^\s\p{L}\p{N}]+", "a 1\u{301}\u{a0}"), Some((3, 5)));
        assert_eq!(find(r"[\-\]ä-üé-ö]+", "a-]äöz"), Some((1, 7)));
        assert_eq!(find(r"[^(\s|。)]+", "(。漢字\u{3000}"), Some((4, 10)));
        assert_eq!(find(r"\p{Han}+", "かな漢字x"), Some((6, 12)));
        assert_eq!(find(r"[\p{L}&&[^\p{Han}]]+", "漢字かな漢"), Some((6, 12)));
        assert_eq!(find("'s", ""), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Starts searches at any position.
        #[test]
        fn matches_are_those_of_the_regex_crate(
            text in "\\PC{0,12}|.{0,24}|([ \\n\\r\\t\u{a0}'/sStTlL09AZaz_]|[Éǅʰ漢か한。€\u{301}²٣]|\\PC){0,40}",
            at in 0usize..40,
        ) {
            static BOTH: LazyLock<Vec<(Regex, Pattern)>> = LazyLock::new(|| {
                let all = PreTokenizer::all().flat_map(PreTokenizer::published);
                // Neither crate supports look-ahead.
                let plain = |pattern: String| {
                    let plain = pattern.replace(r"\s+(?!\S)|", "").replace("+$", "+");
                    plain.split("(?=").next().unwrap_or_default().to_owned()
                };
                let both = |pattern: String| (Regex::new(&pattern).unwrap(), Pattern::new(&pattern));
                all.map(plain).map(both).collect()
            });
            let from = text.char_indices().map(|(at, _)| at).nth(at).unwrap_or(0);
            for (regex, pattern) in BOTH.iter() {
                let want = regex.find_at(&text, from).map(|found| (found.start(), found.end()));
                prop_assert_eq!(pattern.find_at(&text, from), want, "{}", regex);
            }
        }
    }
}
