//! BPE with merges by rank: of bytes, after a pre-tokenizer, or of characters.
//!
//! Within a piece, the pair with the lowest rank merges first; among equal ranks, the leftmost. A piece of n
//! bytes takes n log n steps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use sterna_gguf::Metadata;

use super::pre::{PreTokenizer, Splitter};
use super::vocab::{self, Vocab};
use super::{TokenizerError, byte_level};

/// Splits text into pieces and merges the bytes or the characters of each.
pub struct MergedBpe {
    /// `None`: symbols are characters, and pieces are runs of newlines and the text between them.
    splitter: Option<Splitter>,
    ids: HashMap<Box<str>, u32>,
    /// Rank of a pair of tokens, and the token that it merges into.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Token of each byte, or `LOST`.
    bytes: Box<[u32; 256]>,
    ignore_merges: bool,
}

/// Marks a byte that has no token. Its neighbours cannot merge across it, as in the reference implementation.
/// It is dropped before the tokens are returned.
const LOST: u32 = u32::MAX;

const NONE: usize = usize::MAX;

/// A token of a piece. A merged token becomes part of its left neighbour.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    is_merged: bool,
    prev: usize,
    next: usize,
}

/// Scratch memory of the encoder, reused between pieces.
#[derive(Default)]
struct Scratch {
    word: String,
    symbols: Vec<Symbol>,
    /// Rank, position and merged token of each candidate pair; the lowest rank is popped first.
    queue: BinaryHeap<Reverse<(u32, usize, u32)>>,
}

impl MergedBpe {
    /// Byte-level BPE of the tokens of `vocab` and the merges of `metadata`. Drops merges whose sides or
    /// result are not in the vocabulary: they can never apply.
    ///
    /// # Errors
    /// [`TokenizerError::Metadata`] if there are no merges.
    pub fn of_bytes(
        vocab: &mut Vocab,
        metadata: &Metadata,
        pre: PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let spelled = |byte| byte_level::char_of(byte).to_string();
        let splitter = Some(Splitter::new(pre));
        Ok(Self { splitter, ignore_merges: pre.ignore_merges(), ..Self::new(vocab, metadata, spelled)? })
    }

    /// BPE of characters (Gemma 4); those without a token become the tokens of their bytes, `<0x41>`. Drops
    /// merges as [`of_bytes`](Self::of_bytes).
    ///
    /// # Errors
    /// [`TokenizerError::Metadata`] if there are no merges.
    pub fn of_chars(vocab: &mut Vocab, metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::new(vocab, metadata, |byte| format!("<0x{byte:02X}>"))
    }

    fn new(
        vocab: &mut Vocab,
        metadata: &Metadata,
        spelled: impl Fn(u8) -> String,
    ) -> Result<Self, TokenizerError> {
        // If several tokens have the same spelling, the last one wins.
        let ids: HashMap<Box<str>, u32> =
            (0u32..).zip(&vocab.tokens).map(|(id, token)| (token.as_str().into(), id)).collect();
        let mut bytes = Box::new([LOST; 256]);
        for byte in 0..=255u8 {
            bytes[usize::from(byte)] = ids.get(spelled(byte).as_str()).copied().unwrap_or(LOST);
        }
        // Bytes that never occur in UTF-8 need no token.
        let in_utf8 = |byte: u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        let n_lost = (0..=255u8).filter(|&byte| in_utf8(byte) && bytes[usize::from(byte)] == LOST).count();
        if n_lost > 0 {
            let notice = format!("the vocabulary has no token for {n_lost} bytes: encoding drops them");
            vocab.notices.push(notice);
        }
        let listed = vocab::merges(metadata)?;
        let mut merges = HashMap::with_capacity(listed.len());
        let mut join = String::new();
        for (rank, (left, right)) in (0u32..).zip(&listed) {
            join.clear();
            join.extend([*left, *right]);
            if let (Some(left), Some(right), Some(join)) =
                (ids.get(*left), ids.get(*right), ids.get(join.as_str()))
            {
                merges.insert((*left, *right), (rank, *join));
            }
        }
        let n_dropped = listed.len() - merges.len();
        if n_dropped > 0 {
            let n_merges = listed.len();
            vocab.notices.push(format!("ignoring {n_dropped} of {n_merges} merges: not in the vocabulary"));
        }
        Ok(Self { splitter: None, ids, merges, bytes, ignore_merges: false })
    }

    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut room = Scratch::default();
        match &self.splitter {
            Some(splitter) => {
                for piece in splitter.split(text) {
                    self.encode_piece(piece, &mut room, out);
                }
            }
            None => {
                let is_break = |byte: &u8| *byte == b'\n';
                let mut at = 0;
                // Newlines are whole characters.
                for run in text.as_bytes().chunk_by(|a, b| is_break(a) == is_break(b)) {
                    let piece = &text[at..at + run.len()];
                    at += run.len();
                    match self.id(piece).filter(|_| piece.starts_with('\n')) {
                        Some(id) => out.push(id),
                        None => self.encode_piece(piece, &mut room, out),
                    }
                }
            }
        }
    }

    fn encode_piece(&self, piece: &str, room: &mut Scratch, out: &mut Vec<u32>) {
        if self.ignore_merges {
            room.word.clear();
            byte_level::encode(piece, &mut room.word);
            if let Some(id) = self.id(&room.word) {
                return out.push(id);
            }
        }
        let Scratch { symbols, queue, .. } = room;
        symbols.clear();
        let mut add = |id: u32| {
            let at = symbols.len();
            symbols.push(Symbol { id, is_merged: false, prev: at.wrapping_sub(1), next: at + 1 });
        };
        let of_byte = |byte: u8| self.bytes[usize::from(byte)];
        match self.splitter {
            Some(_) => piece.bytes().for_each(|byte| add(of_byte(byte))),
            None => piece.chars().for_each(|char| {
                let mut buffer = [0; 4];
                let text = &*char.encode_utf8(&mut buffer);
                match self.id(text) {
                    Some(id) => add(id),
                    None => text.bytes().for_each(|byte| add(of_byte(byte))),
                }
            }),
        }
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;
        queue.clear();
        for at in 1..symbols.len() {
            self.offer(symbols, at - 1, queue);
        }
        while let Some(Reverse((_, at, join))) = queue.pop() {
            let Symbol { next, is_merged, .. } = symbols[at];
            // A neighbour may have merged since this candidate was queued.
            if is_merged || self.merge_at(symbols, at).is_none_or(|(_, now)| now != join) {
                continue;
            }
            let right = symbols[next];
            symbols[next].is_merged = true;
            symbols[at] = Symbol { id: join, next: right.next, ..symbols[at] };
            if right.next != NONE {
                symbols[right.next].prev = at;
                self.offer(symbols, at, queue);
            }
            if symbols[at].prev != NONE {
                self.offer(symbols, symbols[at].prev, queue);
            }
        }
        let left = symbols.iter().filter(|symbol| !symbol.is_merged && symbol.id != LOST);
        out.extend(left.map(|symbol| symbol.id));
    }

    /// Rank of the merge of the token at `at` with its right neighbour, and the merged token.
    fn merge_at(&self, symbols: &[Symbol], at: usize) -> Option<(u32, u32)> {
        let Symbol { id, next, .. } = symbols[at];
        self.merges.get(&(id, symbols.get(next)?.id)).copied()
    }

    fn offer(&self, symbols: &[Symbol], at: usize, queue: &mut BinaryHeap<Reverse<(u32, usize, u32)>>) {
        if let Some((rank, join)) = self.merge_at(symbols, at) {
            queue.push(Reverse((rank, at, join)));
        }
    }

    /// Id of the token spelled `text`.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}
