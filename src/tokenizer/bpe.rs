//! Byte-level BPE: pre-tokenizer, alphabet, and the `tokenizers` crate's merges.

use std::collections::HashSet;
use std::mem;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab as Ids};

use super::pre::{Kind, PreTokenizer};
use super::vocab::Vocab;
use super::{TokenizerError, byte_level};

/// Splits text into pieces and merges the bytes of each.
pub struct ByteLevelBpe {
    pre: PreTokenizer,
    model: BPE,
    /// Stands in the crate's output for a byte that is no token. It keeps its neighbours apart, as the
    /// reference does, and never leaves this file.
    lost: u32,
}

impl ByteLevelBpe {
    /// Builds the merges of `vocab`, which it takes out. A merge of or into something that is no token can
    /// never apply, and of two merges of one pair the first counts.
    ///
    /// # Errors
    /// [`TokenizerError::Build`] where the crate refuses.
    pub fn new(vocab: &mut Vocab, kind: &Kind) -> Result<Self, TokenizerError> {
        let n_vocab = vocab.tokens.len();
        let mut ids = Ids::with_capacity(n_vocab + 1);
        ids.extend(vocab.tokens.iter().cloned().zip(0u32..));
        let mut lost = String::from("\u{10ffff}");
        while ids.contains_key(&lost) {
            lost.push('\u{10ffff}');
        }
        let mut merges = mem::take(&mut vocab.merges);
        let n_merges = merges.len();
        let mut seen = HashSet::with_capacity(n_merges);
        let mut join = String::new();
        merges.retain(|(left, right)| {
            let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) else { return false };
            join.clear();
            join.push_str(left);
            join.push_str(right);
            ids.contains_key(&join) && seen.insert((left_id, right_id))
        });
        if merges.len() < n_merges {
            let dropped = n_merges - merges.len();
            vocab
                .notices
                .push(format!("{dropped} of {n_merges} merges name no token or repeat a pair: ignored"));
        }
        // Bytes that no UTF-8 text has are no loss.
        let in_utf8 = |byte: &u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        let is_token =
            |byte: u8| ids.contains_key(byte_level::char_of(byte).encode_utf8(&mut [0; 4]) as &str);
        let n_lost = (0..=255).filter(in_utf8).filter(|&byte| !is_token(byte)).count();
        if n_lost > 0 {
            let notice = format!("the vocabulary has no token for {n_lost} bytes: encoding leaves them out");
            vocab.notices.push(notice);
        }
        ids.insert(lost.clone(), n_vocab as u32);
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .unk_token(lost)
            .ignore_merges(kind.ignore_merges)
            // The crate's cache lives in thread-local storage and outlives the tokenizer.
            .cache_capacity(0)
            .build()
            .map_err(|err| TokenizerError::Build { detail: err.to_string() })?;
        Ok(Self { pre: PreTokenizer::new(kind), model, lost: n_vocab as u32 })
    }

    /// Appends the tokens of `text`.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        for piece in self.pre.split(text) {
            word.clear();
            byte_level::encode(piece, &mut word);
            let tokens =
                self.model.tokenize(&word).expect("every character is a token or `lost`, and `lost` is one");
            out.extend(tokens.iter().map(|token| token.id).filter(|&id| id != self.lost));
        }
    }

    /// Id of the token spelled `text`.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.model.token_to_id(text).filter(|&id| id != self.lost)
    }
}
