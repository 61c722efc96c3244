//! SentencePiece BPE as the `llama` tokenizer has it: of all neighbours whose join is a token, the pair
//! with the highest score is joined first, the leftmost among equals.
//!
//! The `tokenizers` crate ranks pairs, and gives two pairs with the same join different ranks; here they are
//! equal and the position decides. So this merge rule is our own. A text of n characters takes n log n steps.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocab::Vocab;

/// Merges characters by the scores of the tokens that they make.
pub struct ScoredBpe {
    ids: HashMap<Box<str>, u32>,
    scores: Vec<f32>,
    /// Longest spelling, in bytes: a longer join need not be looked up.
    longest: usize,
    /// Token of each byte, for characters that are no token.
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
    /// No token has a space after something else, so no join reaches over the beginning of a word: words
    /// can be encoded one by one, which is many times faster than a whole text.
    by_words: bool,
}

/// A stretch of the text; joined ones live on in their left neighbour, with length 0 themselves.
struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// Two neighbours that could be joined.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when they were found: shows whether one has been joined since.
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
    /// Indexes the vocabulary. Of equal spellings the last one counts.
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
        // Zero and minus zero are one score; the sum makes them one bit pattern.
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

    /// Appends the tokens of `text`, in which spaces are `▁` already.
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

/// Where a `▁` follows another character.
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
