//! Byte-level BPE: pre-tokenizer, alphabet, and the `tokenizers` crate's merges.

use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab as Ids};

use crate::gguf::Metadata;

use super::pre::{Kind, PreTokenizer};
use super::vocab::{self, Vocab};
use super::{TokenizerError, byte_level};

/// Splits text into pieces and merges the bytes of each.
pub struct ByteLevelBpe {
    pre: PreTokenizer,
    model: BPE,
    /// Stands in the crate's output for a byte without a token. It keeps its neighbours apart, as the
    /// reference does, and never leaves this file.
    lost: u32,
}

impl ByteLevelBpe {
    /// Builds the tokens of `vocab` and the merges of `metadata`. A merge of or into something that is no
    /// token can never apply and is left out.
    ///
    /// # Errors
    /// [`TokenizerError::Metadata`] where there are no merges; [`TokenizerError::Build`] where the crate
    /// refuses.
    pub fn new(vocab: &mut Vocab, metadata: &Metadata, kind: &Kind) -> Result<Self, TokenizerError> {
        note_lost_bytes(vocab);
        let longest = vocab.tokens.iter().map(String::len).max().unwrap_or(0);
        let n_vocab = vocab.tokens.len();
        let mut merges = vocab::merges(metadata)?;
        let n_merges = merges.len();
        // The crate's buffer is as long as the longest token, and a longer join overruns it.
        merges.retain(|(left, right)| left.len() + right.len() <= longest);
        let mut n_kept = merges.len();
        // The crate looks up every merge itself. Only where it finds a wrong one is it worth doing twice.
        let model = match build(vocab, merges, kind) {
            Ok(model) => model,
            Err(_) => {
                let known: HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
                let is_known = |(left, right): &(String, String)| {
                    let join = format!("{left}{right}");
                    [left, right, &join].iter().all(|side| known.contains(side.as_str()))
                };
                let merges: Vec<_> = vocab::merges(metadata)?.into_iter().filter(is_known).collect();
                n_kept = merges.len();
                build(vocab, merges, kind)?
            }
        };
        if n_kept < n_merges {
            let dropped = n_merges - n_kept;
            vocab.notices.push(format!("{dropped} of {n_merges} merges are of or into no token: ignored"));
        }
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

fn build(vocab: &Vocab, merges: Vec<(String, String)>, kind: &Kind) -> Result<BPE, TokenizerError> {
    let n_vocab = vocab.tokens.len();
    let mut ids = Ids::with_capacity(n_vocab + 1);
    ids.extend(vocab.tokens.iter().cloned().zip(0u32..));
    let mut lost = String::from("\u{10ffff}");
    while ids.contains_key(&lost) {
        lost.push('\u{10ffff}');
    }
    ids.insert(lost.clone(), n_vocab as u32);
    BPE::builder()
        .vocab_and_merges(ids, merges)
        .unk_token(lost)
        .ignore_merges(kind.ignore_merges)
        // The crate's cache lives in thread-local storage and outlives the tokenizer.
        .cache_capacity(0)
        .build()
        .map_err(|err| TokenizerError::Build { detail: err.to_string() })
}

fn note_lost_bytes(vocab: &mut Vocab) {
    let mut is_token = [false; 256];
    for token in &vocab.tokens {
        let mut chars = token.chars();
        if let (Some(byte), None) = (chars.next().and_then(byte_level::byte_of), chars.next()) {
            is_token[byte as usize] = true;
        }
    }
    // Bytes that no UTF-8 text has are no loss.
    let in_utf8 = |byte: u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
    let n_lost = (0..=255u8).filter(|&byte| in_utf8(byte) && !is_token[byte as usize]).count();
    if n_lost > 0 {
        let notice = format!("the vocabulary has no token for {n_lost} bytes: encoding leaves them out");
        vocab.notices.push(notice);
    }
}
