//! The vocabulary of a file. Missing values get the defaults of the reference implementation.

use std::collections::HashSet;

use sterna_gguf::Metadata;

use super::TokenizerError;

/// Kind of a token: `tokenizer.ggml.token_type`, numbered as in the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Decodes to nothing.
    Undefined,
    /// A piece of text.
    Normal,
    /// Represents text that the vocabulary cannot express.
    Unknown,
    /// Controls the model; matched in text only when requested.
    Control,
    /// Added by hand; always matched in text before anything else.
    UserDefined,
    /// Decodes to nothing.
    Unused,
    /// One byte, spelled `<0x41>`.
    Byte,
}

impl TokenKind {
    fn from_id(id: i32) -> Self {
        match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Undefined,
        }
    }
}

/// Tokenization algorithm: `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `gpt2`: byte-level BPE, merges by rank.
    ByteLevelBpe,
    /// `llama`: SentencePiece BPE, merges by score, with byte fallback.
    ScoredBpe,
    /// `gemma4`: BPE of characters, merges by rank, with byte fallback.
    RankedBpe,
    /// `bert`: WordPiece, the longest piece first.
    WordPiece,
}

/// Keys of tokens that end a generation, besides EOS and the end of a turn.
const ENDS: [&str; 4] = [
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Prefix of a WordPiece token that begins a word.
const BEGINS: char = '▁';

/// Text of a WordPiece token that begins a word. The prefix alone is a piece itself, since no piece is empty.
pub fn begun(token: &str) -> Option<&str> {
    token.strip_prefix(BEGINS).filter(|text| !text.is_empty())
}

/// A vocabulary as read, before the encoder is built.
#[derive(Clone, Debug)]
pub struct Vocab {
    pub algorithm: Algorithm,
    /// `tokenizer.ggml.pre`; only for byte-level BPE.
    pub pre: Option<String>,
    /// `general.name` in lower case: some quirks depend on it.
    pub model_name: String,
    /// Spelling of each token, `[n_vocab]`. An empty one is replaced by `[EMPTY_id]`.
    pub tokens: Vec<String>,
    /// One per token, or empty; higher scores merge first.
    pub scores: Vec<f32>,
    pub kinds: Vec<TokenKind>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of a turn, if the file specifies one.
    pub eot: Option<u32>,
    /// Other tokens that end a generation according to the file: end of message and fill-in-the-middle
    /// tokens.
    pub ends: Vec<u32>,
    /// Token for text that the vocabulary cannot express.
    pub unk: Option<u32>,
    /// Token before an encoder's first text.
    pub cls: Option<u32>,
    /// Token after each of an encoder's texts.
    pub sep: Option<u32>,
    /// True if texts begin with `bos`; `None` if the file does not say.
    pub add_bos: Option<bool>,
    pub add_eos: bool,
    /// True if encoding adds a space before a text.
    pub add_space_prefix: bool,
    pub lowercase: bool,
    pub strip_accents: bool,
    /// Warnings about values that were assumed or repaired, one sentence each.
    pub notices: Vec<String>,
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";

impl Vocab {
    /// Reads the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`TokenizerError`] for a missing key, a wrong type or length, or an unknown algorithm.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let algorithm = match metadata.require_str("tokenizer.ggml.model")? {
            "gpt2" => Algorithm::ByteLevelBpe,
            "llama" => Algorithm::ScoredBpe,
            "gemma4" => Algorithm::RankedBpe,
            "bert" => Algorithm::WordPiece,
            other => return Err(TokenizerError::UnknownModel { found: other.to_owned() }),
        };
        let scored = algorithm == Algorithm::ScoredBpe;
        let tokens: Vec<String> = metadata
            .require_strs(TOKENS)?
            .enumerate()
            .map(|(id, text)| if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() })
            .collect();
        let n_vocab = tokens.len();
        if n_vocab == 0 || n_vocab >= u32::MAX as usize {
            return Err(TokenizerError::Size { got: n_vocab });
        }
        let one_a_token = |key, got| {
            if got == n_vocab { Ok(()) } else { Err(TokenizerError::Length { key, want: n_vocab, got }) }
        };
        let scores: Vec<f32> = match metadata.f32s(SCORES)? {
            Some(scores) => {
                one_a_token(SCORES, scores.len())?;
                scores.collect()
            }
            None => Vec::new(),
        };
        let kinds = match metadata.i32s(KINDS)? {
            Some(ids) => {
                one_a_token(KINDS, ids.len())?;
                ids.map(TokenKind::from_id).collect()
            }
            None => vec![TokenKind::Normal; n_vocab],
        };
        let of_words = algorithm == Algorithm::WordPiece;
        let lowercase = metadata.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
        let strip_accents = metadata.bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
        let mut vocab = Self {
            algorithm,
            pre: metadata.str("tokenizer.ggml.pre")?.filter(|pre| !pre.is_empty()).map(str::to_owned),
            model_name: metadata.str("general.name")?.unwrap_or_default().to_lowercase(),
            tokens,
            scores,
            kinds,
            bos: None,
            eos: None,
            eot: None,
            ends: Vec::new(),
            unk: None,
            cls: None,
            sep: None,
            // Readers of WordPiece files add both, whatever the file says.
            add_bos: if of_words { Some(true) } else { metadata.bool("tokenizer.ggml.add_bos_token")? },
            add_eos: of_words || metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(scored),
            lowercase,
            strip_accents,
            notices: Vec::new(),
        };
        // If a SentencePiece file specifies no special tokens, they are the first three entries; for
        // WordPiece, those of BERT.
        let usual = |of_sentencepiece: u32, of_bert: Option<u32>| {
            let id = if scored { Some(of_sentencepiece) } else { of_bert.filter(|_| of_words) };
            id.filter(|id| (*id as usize) < n_vocab)
        };
        vocab.bos = vocab.special_id(metadata, "tokenizer.ggml.bos_token_id", usual(1, None))?;
        vocab.eos = vocab.special_id(metadata, "tokenizer.ggml.eos_token_id", usual(2, None))?;
        vocab.unk = vocab.special_id(metadata, "tokenizer.ggml.unknown_token_id", usual(0, Some(100)))?;
        let (bos, eos) = (vocab.bos.filter(|_| of_words), vocab.eos.filter(|_| of_words));
        vocab.cls = vocab.special_id(metadata, "tokenizer.ggml.cls_token_id", bos)?;
        // The format misspells it.
        vocab.sep = vocab.special_id(metadata, "tokenizer.ggml.seperator_token_id", eos)?;
        if of_words {
            vocab.cls = vocab.cls.or(usual(0, Some(101)));
            vocab.sep = vocab.sep.or(usual(0, Some(102)));
            (vocab.bos, vocab.eos) = (vocab.cls, vocab.sep);
            vocab.mark_special(metadata)?;
        }
        vocab.eot = vocab.special_id(metadata, "tokenizer.ggml.eot_token_id", None)?;
        for key in ENDS {
            let found = vocab.special_id(metadata, key, None)?;
            vocab.ends.extend(found);
        }
        Ok(vocab)
    }

    /// Marks the special tokens of a WordPiece file as control tokens: older files have no token types.
    fn mark_special(&mut self, metadata: &Metadata) -> Result<(), TokenizerError> {
        let pad = self.special_id(metadata, "tokenizer.ggml.padding_token_id", None)?;
        let mask = self.special_id(metadata, "tokenizer.ggml.mask_token_id", None)?;
        for id in [self.cls, self.sep, self.unk, pad, mask].into_iter().flatten() {
            let is_spelled = !self.tokens[id as usize].starts_with(BEGINS);
            let kind = &mut self.kinds[id as usize];
            if *kind == TokenKind::Normal && is_spelled {
                *kind = TokenKind::Control;
            }
        }
        Ok(())
    }

    fn special_id(
        &mut self,
        metadata: &Metadata,
        key: &str,
        usual: Option<u32>,
    ) -> Result<Option<u32>, TokenizerError> {
        // Writers encode "none" as -1 or as the largest u32.
        let none = [Some(-1), Some(i128::from(u32::MAX))];
        if none.contains(&metadata.get(key).and_then(|value| value.as_int())) {
            return Ok(usual);
        }
        Ok(match metadata.u32(key)? {
            Some(id) if (id as usize) < self.tokens.len() => Some(id),
            Some(id) => {
                let n_vocab = self.tokens.len();
                self.notices
                    .push(format!("{key} is {id}, and the vocabulary has only {n_vocab} tokens: ignored"));
                usual
            }
            None => usual,
        })
    }

    /// Id of the token spelled `text`; the last one if there are several.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.tokens.iter().rposition(|token| token == text).map(|id| id as u32)
    }
}

/// Left and right side of each merge of a vocabulary with ranks, best first. Of duplicates, the first one is
/// kept.
///
/// # Errors
/// [`TokenizerError::Metadata`] if the file has none.
pub fn merges(metadata: &Metadata) -> Result<Vec<(&str, &str)>, TokenizerError> {
    let merges = metadata.require_strs("tokenizer.ggml.merges")?;
    let mut seen = HashSet::with_capacity(merges.len());
    Ok(merges.filter(|&merge| seen.insert(merge)).filter_map(split_merge).collect())
}

/// Splits `"Ġ t"` into its two sides. The first character may itself be a space.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge[first..].find(' ')?;
    Some((&merge[..space], &merge[space + 1..]))
}
