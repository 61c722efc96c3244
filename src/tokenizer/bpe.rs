//! Byte-level BPE: pre-tokenizer, alphabet, and merges by rank.
//!
//! Within a piece, the pair with the lowest rank merges first; among equal ranks, the leftmost. A piece of n
//! bytes takes n log n steps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use sterna_gguf::Metadata;

use super::pre::{PreTokenizer, Splitter};
use super::vocab::{self, Vocab};
use super::{TokenizerError, byte_level};

/// Splits text into pieces and merges the bytes of each.
pub struct ByteLevelBpe {
    splitter: Splitter,
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

impl ByteLevelBpe {
    /// Builds the tokens of `vocab` and the merges of `metadata`. Drops merges whose sides or result are not
    /// in the vocabulary: they can never apply.
    ///
    /// # Errors
    /// [`TokenizerError::Metadata`] if there are no merges.
    pub fn new(vocab: &mut Vocab, metadata: &Metadata, pre: PreTokenizer) -> Result<Self, TokenizerError> {
        // If several tokens have the same spelling, the last one wins.
        let ids: HashMap<Box<str>, u32> =
            (0u32..).zip(&vocab.tokens).map(|(id, token)| (token.as_str().into(), id)).collect();
        let mut bytes = Box::new([LOST; 256]);
        for byte in 0..=255u8 {
            let spelling = byte_level::char_of(byte);
            bytes[usize::from(byte)] = ids.get(&*spelling.encode_utf8(&mut [0; 4])).copied().unwrap_or(LOST);
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
        Ok(Self { splitter: Splitter::new(pre), ids, merges, bytes, ignore_merges: pre.ignore_merges() })
    }

    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut room = Scratch::default();
        for piece in self.splitter.split(text) {
            self.encode_piece(piece, &mut room, out);
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
        symbols.extend(piece.bytes().enumerate().map(|(at, byte)| Symbol {
            id: self.bytes[usize::from(byte)],
            is_merged: false,
            prev: at.wrapping_sub(1),
            next: at + 1,
        }));
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
