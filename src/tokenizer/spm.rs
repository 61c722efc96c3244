//! SentencePiece BPE as in the `llama` tokenizer: of all neighbours that join to a token, the pair with the
//! highest score is joined first; among equal scores, the leftmost.
//!
//! The `tokenizers` crate ranks pairs, so two pairs that join to the same token have different ranks; here
//! they are equal and the position decides. Hence our own merge rule. A text of n characters takes n log n
//! steps.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocab::Vocab;

/// Merges characters by the scores of the resulting tokens.
pub struct ScoredBpe {
    ids: HashMap<Box<str>, u32>,
    scores: Vec<f32>,
    /// Longest token, in bytes: longer joins are not looked up.
    longest: usize,
    /// Token of each byte, for characters that have no token.
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
    /// True if no token has a space after another character, so that no join crosses the start of a word.
    /// Words are then encoded one by one, which is many times faster than encoding the whole text.
    by_words: bool,
}

/// A range of the text. A joined symbol becomes part of its left neighbour and has length 0.
struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Combined length in bytes when queued: if it differs now, one of them has been joined since.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

impl ScoredBpe {
    /// Indexes the vocabulary. If several tokens have the same spelling, the last one wins.
    pub fn new(vocab: &Vocab) -> Self {
        let ids: HashMap<Box<str>, u32> =
            (0u32..).zip(&vocab.tokens).map(|(id, token)| (token.as_str().into(), id)).collect();
        let mut bytes = Box::new([None; 256]);
        for byte in 0..=255u8 {
            let plain = char::from(byte).to_string();
            let plain = plain.as_str();
            bytes[byte as usize] = ids
                .get(format!("<0x{byte:02X}>").as_str())
                .or_else(|| if byte.is_ascii() { ids.get(plain) } else { None })
                .copied();
        }
        // Adding zero gives 0 and -0 the same bit pattern.
        let scores = if vocab.scores.is_empty() {
            vec![0.0; vocab.tokens.len()]
        } else {
            vocab.scores.iter().map(|score| score + 0.0).collect()
        };
        let longest = vocab.tokens.iter().map(String::len).max().unwrap_or(0);
        let by_words = vocab.tokens.iter().all(|token| word_starts(token).next().is_none());
        Self { ids, scores, longest, bytes, unk: vocab.unk, by_words }
    }

    /// Id of the token spelled `text`.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Appends the tokens of `text`, whose spaces are already replaced by `▁`.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        if !self.by_words {
            return self.encode_stretch(text, out);
        }
        let mut start = 0;
        for end in word_starts(text).chain([text.len()]) {
            self.encode_stretch(&text[start..end], out);
            start = end;
        }
    }

    fn encode_stretch(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols = symbols_of(text);
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.offer(text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(pair) = queue.pop() {
            let (left, right) = (&symbols[pair.left], &symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let (prev, next) = (left.prev, right.next);
            symbols[pair.left].len = pair.len;
            symbols[pair.left].next = next;
            symbols[pair.right].len = 0;
            if next != NONE {
                symbols[next].prev = pair.left;
                self.offer(text, &symbols, pair.left, next, &mut queue);
            }
            if prev != NONE {
                self.offer(text, &symbols, prev, pair.left, &mut queue);
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.emit(&text[symbol.start..][..symbol.len], out);
        }
    }

    fn offer(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, queue: &mut BinaryHeap<Pair>) {
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return;
        }
        if let Some(id) = self.id(&text[symbols[left].start..][..len]) {
            queue.push(Pair { score: self.scores[id as usize], left, right, len });
        }
    }

    fn emit(&self, piece: &str, out: &mut Vec<u32>) {
        match self.id(piece) {
            Some(id) => out.push(id),
            None => out.extend(piece.bytes().filter_map(|byte| self.bytes[byte as usize].or(self.unk))),
        }
    }
}

/// Positions of each `▁` that follows another character.
fn word_starts(text: &str) -> impl Iterator<Item = usize> {
    let before = text.chars();
    text.char_indices()
        .skip(1)
        .zip(before)
        .filter(|((_, char), before)| *char == '▁' && *before != '▁')
        .map(|((at, _), _)| at)
}

fn symbols_of(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .enumerate()
        .map(|(at, (start, char))| Symbol {
            start,
            len: char.len_utf8(),
            prev: at.wrapping_sub(1),
            next: at + 1,
        })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
    symbols
}
