//! WordPiece as in BERT: text is normalised and split into words; each word is split into the longest known
//! piece, then the longest piece of the rest, and so on. A word with a part that matches no piece is unknown
//! as a whole.
//!
//! Files spell a piece that begins a word `▁word` and one that continues it `ing`; BERT's own vocabulary has
//! `word` and `##ing`. Ids match Hugging Face's `tokenizers`, which such models are used with. llama.cpp
//! gives the same ids for most texts, but it keeps invisible format characters, has no limit on the length of
//! a word, and reads a `▁` in the text as the prefix. Characters have their category in current Unicode;
//! those newer than Unicode 8, which `tokenizers` uses, may differ.

use std::collections::HashMap;

use super::bases;
use super::categories::{self, CF_CO, P};
use super::vocab::{TokenKind, Vocab, begun};

/// Longest word in characters (`max_input_chars_per_word`); a longer one is unknown.
pub const MAX_WORD: usize = 100;

/// Word pieces, and how text is normalised.
pub struct WordPiece {
    /// Pieces that begin a word, without the prefix.
    first: HashMap<Box<str>, u32>,
    /// Pieces that continue a word.
    further: HashMap<Box<str>, u32>,
    /// Control tokens and others that are not pieces of text, as spelled.
    others: HashMap<Box<str>, u32>,
    longest: usize,
    unk: Option<u32>,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    /// Indexes the vocabulary. If several tokens have the same spelling, the last one wins.
    pub fn new(vocab: &Vocab) -> Self {
        let mut out = Self {
            first: HashMap::new(),
            further: HashMap::new(),
            others: HashMap::new(),
            longest: 0,
            unk: vocab.unk,
            lowercase: vocab.lowercase,
            strip_accents: vocab.strip_accents,
        };
        for (id, (token, kind)) in (0u32..).zip(vocab.tokens.iter().zip(&vocab.kinds)) {
            let (map, text) = match (kind, begun(token)) {
                (TokenKind::Normal, Some(text)) => (&mut out.first, text),
                (TokenKind::Normal, None) => (&mut out.further, token.as_str()),
                _ => (&mut out.others, token.as_str()),
            };
            map.insert(text.into(), id);
            out.longest = out.longest.max(text.len());
        }
        out
    }

    /// Id of the token spelled `text`, prefix included.
    pub fn id(&self, text: &str) -> Option<u32> {
        let piece = match begun(text) {
            Some(text) => self.first.get(text),
            None => self.further.get(text),
        };
        self.others.get(text).or(piece).copied()
    }

    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        for char in text.chars() {
            let char = match char {
                '\t' | '\n' | '\r' => ' ',
                '\0' | char::REPLACEMENT_CHARACTER => continue,
                _ if char.is_control() || categories::category(char) & CF_CO != 0 => continue,
                _ => char,
            };
            let is_chinese = is_chinese(char);
            if is_chinese {
                self.end(&mut word, out);
            }
            match self.strip_accents {
                true => {
                    bases::without_accents(char).into_iter().for_each(|base| self.push(base, &mut word, out))
                }
                false => self.push(char, &mut word, out),
            }
            if is_chinese {
                self.end(&mut word, out);
            }
        }
        self.end(&mut word, out);
    }

    /// Appends a character to the word, or ends the word.
    fn push(&self, char: char, word: &mut String, out: &mut Vec<u32>) {
        if char.is_whitespace() {
            self.end(word, out);
        } else if char.is_ascii_punctuation() || categories::category(char) & P != 0 {
            self.end(word, out);
            word.push(char);
            self.end(word, out);
        } else if self.lowercase {
            word.extend(char.to_lowercase());
        } else {
            word.push(char);
        }
    }

    /// Appends the pieces of the word and clears it.
    fn end(&self, word: &mut String, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let n_before = out.len();
        if self.pieces(word, out).is_none() {
            out.truncate(n_before);
            out.extend(self.unk);
        }
        word.clear();
    }

    fn pieces(&self, word: &str, out: &mut Vec<u32>) -> Option<()> {
        if word.len() > MAX_WORD && word.chars().count() > MAX_WORD {
            return None;
        }
        let mut at = 0;
        while at < word.len() {
            let pieces = if at == 0 { &self.first } else { &self.further };
            let most = word.len().min(at + self.longest);
            let mut ends = (at + 1..=most).rev().filter(|end| word.is_char_boundary(*end));
            let (end, id) = ends.find_map(|end| Some((end, *pieces.get(&word[at..end])?)))?;
            out.push(id);
            at = end;
        }
        Some(())
    }
}

/// True for CJK ideographs, each of which is a word of its own. The gap at U+2B820 is also in the code of
/// `tokenizers`.
fn is_chinese(char: char) -> bool {
    matches!(char,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}'
        | '\u{2a700}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}'
        | '\u{2f800}'..='\u{2fa1f}')
}
