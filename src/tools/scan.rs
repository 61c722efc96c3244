//! Marks in text that comes in pieces: what cannot begin one is passed on at once.

/// What a text has of the marks that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first one: where it begins, and which it is.
    Mark(usize, usize),
    /// None, and none begins before this byte.
    None(usize),
}

/// Looks for the first of `marks`, of which none begins another. Takes time in proportion to the text, and is
/// called again with what it held back alone, which is shorter than a mark.
pub fn find(text: &str, marks: &[&str]) -> Found {
    let firsts: Vec<char> = marks.iter().filter_map(|mark| mark.chars().next()).collect();
    for (at, _) in text.match_indices(|c| firsts.contains(&c)) {
        let rest = &text[at..];
        if let Some(which) = marks.iter().position(|mark| rest.starts_with(mark)) {
            return Found::Mark(at, which);
        }
        if marks.iter().any(|mark| mark.starts_with(rest)) {
            return Found::None(at);
        }
    }
    Found::None(text.len())
}

/// Whether a text begins with these words, with any blanks between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// So many bytes of it do.
    Whole(usize),
    /// All of it does, and more is to come.
    Part,
    /// It does not.
    No,
}

/// See [`Prefix`].
pub fn prefix(text: &str, words: &[&str]) -> Prefix {
    let mut rest = text;
    for word in words {
        rest = rest.trim_start();
        match rest.strip_prefix(word) {
            Some(after) => rest = after,
            None if word.starts_with(rest) => return Prefix::Part,
            None => return Prefix::No,
        }
    }
    Prefix::Whole(text.len() - rest.len())
}
