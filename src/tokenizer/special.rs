//! Finds special tokens spelled out in text.
//!
//! The rule is the reference's: tokens are searched longest first, each over the whole of the text that is
//! still text, from left to right. It is not "leftmost longest": with tokens `ab` and `bcd`, `abcd` is
//! `a` and then `bcd`.

use std::collections::BTreeSet;
use std::ops::Range;

use memchr::memmem;

use super::Special;

/// A token that is searched for in text.
pub struct SpecialToken {
    /// Its id.
    pub id: u32,
    /// Its spelling; not empty.
    pub text: String,
    /// True if it is only found on request ([`Special::Parse`]).
    pub on_request: bool,
    /// True if whitespace after it is swallowed.
    pub strip_right: bool,
}

/// A stretch of the text, or a token that was spelled out.
#[derive(Debug, PartialEq)]
pub enum Fragment {
    /// Bytes of the text.
    Text(Range<usize>),
    /// Token id.
    Token(u32),
}

/// The special tokens of a vocabulary.
pub struct SpecialTokens {
    /// Longest first; of equal lengths the lower id first.
    tokens: Vec<SpecialToken>,
}

impl SpecialTokens {
    /// Where `text` spells a token that is found on request only, in ascending order.
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

    /// All of them, in no order.
    pub fn listed(self) -> Vec<SpecialToken> {
        self.tokens
    }

    /// Orders `tokens`, whose ids must ascend.
    pub fn new(mut tokens: Vec<SpecialToken>) -> Self {
        tokens.sort_by_key(|token| std::cmp::Reverse(token.text.len()));
        Self { tokens }
    }

    /// Cuts `text` into plain stretches and special tokens. Tokens that are found on request only are not
    /// found over any of `plain`, which are positions of `text` in ascending order.
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
            // The next one may begin within this one, at its next character.
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

/// Which pairs of neighbouring bytes a text has: one pass spares a search for nearly every token that is
/// not there, however many thousands a vocabulary lists.
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
        // The longer token is refused where it covers the mark, and so is the shorter one behind it.
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
