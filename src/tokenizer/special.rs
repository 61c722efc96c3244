//! Finds special tokens spelled out in text.
//!
//! As in the reference implementation, tokens are searched longest first, each over all the text that is not
//! yet a token, from left to right. This is not "leftmost longest": with tokens `ab` and `bcd`, `abcd` is `a`
//! and then `bcd`.

use std::collections::BTreeSet;
use std::ops::Range;

use memchr::memmem;

use super::Special;

/// A token to search for in text.
pub struct SpecialToken {
    pub id: u32,
    /// Spelling; not empty.
    pub text: String,
    /// True if it is only found when requested ([`Special::Parse`]).
    pub on_request: bool,
    /// True if the whitespace after it is stripped.
    pub strip_right: bool,
}

/// A range of the text, or a token that it spells.
#[derive(Debug, PartialEq)]
pub enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

pub struct SpecialTokens {
    /// Longest first; among equal lengths, the lower id first.
    tokens: Vec<SpecialToken>,
}

impl SpecialTokens {
    /// Positions, ascending, at which `text` spells tokens that are only found when requested.
    pub fn spelled(&self, text: &str) -> Vec<usize> {
        let present = Bigrams::of(text);
        let on_request =
            self.tokens.iter().filter(|token| token.on_request && present.may_contain(&token.text));
        let mut found = BTreeSet::new();
        for token in on_request {
            let finder = memmem::Finder::new(&token.text);
            let mut from = 0;
            while let Some(at) = finder.find(&text.as_bytes()[from..]) {
                found.insert(from + at);
                from += at + 1;
            }
        }
        found.into_iter().collect()
    }

    /// Returns all of them, in no particular order.
    pub fn listed(self) -> Vec<SpecialToken> {
        self.tokens
    }

    /// Sorts `tokens`, whose ids must be ascending.
    pub fn new(mut tokens: Vec<SpecialToken>) -> Self {
        tokens.sort_by_key(|token| std::cmp::Reverse(token.text.len()));
        Self { tokens }
    }

    /// Splits `text` into plain ranges and special tokens. Tokens that are only found when requested do not
    /// match across a position in `plain`, which is sorted.
    pub fn partition(&self, text: &str, special: Special, plain: &[usize]) -> Vec<Fragment> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(0..text.len())];
        let present = Bigrams::of(text);
        for token in &self.tokens {
            if (token.on_request && special == Special::AsText) || !present.may_contain(&token.text) {
                continue;
            }
            let finder = memmem::Finder::new(&token.text);
            if finder.find(text.as_bytes()).is_none() {
                continue;
            }
            let mut finer = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => cut(text, range, token, &finder, plain, &mut finer),
                    Fragment::Token(_) => finer.push(fragment),
                }
            }
            fragments = finer;
        }
        fragments
    }
}

fn cut(
    text: &str,
    mut range: Range<usize>,
    token: &SpecialToken,
    finder: &memmem::Finder<'_>,
    plain: &[usize],
    out: &mut Vec<Fragment>,
) {
    let mut from = range.start;
    while let Some(at) = finder.find(&text.as_bytes()[from..range.end]) {
        let found = from + at..from + at + token.text.len();
        let next = plain.partition_point(|&position| position < found.start);
        if token.on_request && plain.get(next).is_some_and(|position| *position < found.end) {
            // The next occurrence may overlap this one.
            from = found.start + text[found].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        if found.start > range.start {
            out.push(Fragment::Text(range.start..found.start));
        }
        out.push(Fragment::Token(token.id));
        range.start = found.end;
        if token.strip_right {
            let rest = &text[range.clone()];
            range.start +=
                rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']).len();
        }
        from = range.start;
    }
    if !range.is_empty() {
        out.push(Fragment::Text(range));
    }
}

/// Set of byte pairs in a text. Building it takes one pass and avoids a search for nearly every token that
/// does not occur in the text, even if a vocabulary has thousands.
struct Bigrams(Box<[u64; 1024]>);

impl Bigrams {
    fn of(text: &str) -> Self {
        let mut bits = Box::new([0; 1024]);
        for pair in text.as_bytes().windows(2) {
            let key = usize::from(u16::from_le_bytes([pair[0], pair[1]]));
            bits[key / 64] |= 1 << (key % 64);
        }
        Self(bits)
    }

    fn may_contain(&self, token: &str) -> bool {
        token.as_bytes().windows(2).all(|pair| {
            let key = usize::from(u16::from_le_bytes([pair[0], pair[1]]));
            self.0[key / 64] >> (key % 64) & 1 == 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(list: &[&str]) -> SpecialTokens {
        let make = |(id, text): (u32, &&str)| SpecialToken {
            id,
            text: text.to_string(),
            on_request: text.starts_with('<'),
            strip_right: text.ends_with('_'),
        };
        SpecialTokens::new((0..).zip(list).map(make).collect())
    }

    #[test]
    fn longest_first_not_leftmost() {
        let found = tokens(&["ab", "bcd"]).partition("abcd ab", Special::Parse, &[]);
        assert_eq!(
            found,
            [Fragment::Text(0..1), Fragment::Token(1), Fragment::Text(4..5), Fragment::Token(0)]
        );
    }

    #[test]
    fn control_tokens_only_on_request() {
        let special = tokens(&["<s>", "user"]);
        assert_eq!(
            special.partition("<s>user", Special::Parse, &[]),
            [Fragment::Token(0), Fragment::Token(1)]
        );
        assert_eq!(
            special.partition("<s>user", Special::AsText, &[]),
            [Fragment::Text(0..3), Fragment::Token(1)]
        );
        assert_eq!(special.partition("", Special::Parse, &[]), []);
    }

    #[test]
    fn what_is_marked_as_plain_is_no_token() {
        let special = tokens(&["<s>", "<<s>", "user"]);
        let text = "<s>user<<s><s>";
        assert_eq!(special.spelled(text), [0, 7, 8, 11]);
        // The longer token is refused because it covers the mark; so is the shorter one after it.
        let found = special.partition(text, Special::Parse, &[0, 7, 8]);
        assert_eq!(
            found,
            [Fragment::Text(0..3), Fragment::Token(2), Fragment::Text(7..11), Fragment::Token(0)]
        );
        let found = special.partition("<<s>", Special::Parse, &[0]);
        assert_eq!(found, [Fragment::Text(0..1), Fragment::Token(0)]);
        let found = special.partition("<<s>", Special::Parse, &[2]);
        assert_eq!(found, [Fragment::Text(0..4)]);
    }

    #[test]
    fn whitespace_after_a_stripping_token_goes() {
        let found = tokens(&["x_"]).partition("x_ \n\tyx_", Special::AsText, &[]);
        assert_eq!(found, [Fragment::Token(0), Fragment::Text(5..6), Fragment::Token(0)]);
    }
}
