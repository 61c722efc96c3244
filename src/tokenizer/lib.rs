//! Converts text to token ids and back with the vocabulary of a GGUF file, and renders chat templates.
//!
//! Token ids match llama.cpp's `llama_tokenize`, including its quirks, since published models are run with
//! it; for WordPiece they match Hugging Face. Tests compare every algorithm with golden ids. This crate knows
//! nothing about models, engines or devices.
//!
//! Start at [`Tokenizer::from_metadata`]; `pre.rs` lists the pre-tokenizers.
#![forbid(unsafe_code)]

mod bases;
mod bpe;
mod byte_level;
mod categories;
pub mod chat;
mod error;
mod export;
mod filled;
mod pattern;
mod pieces;
mod pre;
mod special;
mod spm;
mod stream;
mod vocab;
mod wordpiece;

use std::collections::BTreeSet;

use sterna_gguf::{Gguf, Metadata};

pub use error::TokenizerError;
pub use export::tokenizer_json;
pub use pre::PreTokenizer;
pub use stream::{StreamDecoder, Utf8Stream};

use bpe::MergedBpe;
use pieces::Pieces;
use special::{Fragment, SpecialToken, SpecialTokens};
use spm::ScoredBpe;
use vocab::{Algorithm, TokenKind, Vocab};
use wordpiece::WordPiece;

/// Treatment of special tokens that are spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|eot_id|>` is the token. For templates, and for prompts written in the model's own format.
    Parse,
    /// `<|eot_id|>` is ten characters. For text from outside.
    AsText,
}

/// Overrides of what the file specifies.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenizerOptions {
    /// Pre-tokenizer to use instead of the one in the file.
    pub pre: Option<PreTokenizer>,
}

enum Encoder {
    ByteLevel(Box<MergedBpe>),
    Ranked(Box<MergedBpe>),
    Scored(ScoredBpe),
    Words(WordPiece),
}

/// A vocabulary, ready to encode and decode. It is immutable and can be shared between threads.
pub struct Tokenizer {
    encoder: Encoder,
    specials: SpecialTokens,
    pieces: Pieces,
    /// Bytes of the longest token.
    longest: usize,
    /// Tokens that are not written out unless requested.
    hidden: BTreeSet<u32>,
    eog: BTreeSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    cls: Option<u32>,
    sep: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    /// True if decoding strips the space at the start of a text.
    strips_space: bool,
    pre: Option<PreTokenizer>,
    notices: Vec<String>,
}

/// Spellings that are control tokens whatever the file says, and whether they end a generation. The ones that
/// end a turn come first, in order of preference for `eot`.
const CONTROL_SPELLINGS: &[(&str, Ends)] = &[
    ("<|eot_id|>", Ends::Turn),
    ("<|im_end|>", Ends::Turn),
    ("<|end|>", Ends::Turn),
    ("<end_of_turn>", Ends::Turn),
    ("<turn|>", Ends::Turn),
    ("<|endoftext|>", Ends::Turn),
    ("<|end_of_text|>", Ends::Turn),
    ("<EOT>", Ends::Turn),
    ("_<EOT>", Ends::Turn),
    ("[EOT]", Ends::Turn),
    ("<｜end▁of▁sentence｜>", Ends::Turn),
    ("<end_of_utterance>", Ends::Turn),
    ("<|eom_id|>", Ends::Generation),
    ("<|return|>", Ends::Generation),
    ("<|call|>", Ends::Generation),
    ("<|flush|>", Ends::Generation),
    ("<|calls|>", Ends::Generation),
    ("</s>", Ends::Generation),
    ("<eos>", Ends::Generation),
    ("[EOS]", Ends::Generation),
    ("<|fim_pad|>", Ends::Generation),
    ("<fim-pad>", Ends::Generation),
    ("<fim_pad>", Ends::Generation),
    ("<PAD>", Ends::Generation),
    ("<|fim_repo|>", Ends::Generation),
    ("<|repo_name|>", Ends::Generation),
    ("<fim-repo>", Ends::Generation),
    ("<REPO>", Ends::Generation),
    ("<reponame>", Ends::Generation),
    ("<|file_sep|>", Ends::Generation),
    ("<|fim_prefix|>", Ends::Nothing),
    ("<fim-prefix>", Ends::Nothing),
    ("<fim_prefix>", Ends::Nothing),
    ("<PRE>", Ends::Nothing),
    ("▁<PRE>", Ends::Nothing),
    ("<|fim_suffix|>", Ends::Nothing),
    ("<fim-suffix>", Ends::Nothing),
    ("<fim_suffix>", Ends::Nothing),
    ("<SUF>", Ends::Nothing),
    ("▁<SUF>", Ends::Nothing),
    ("<|fim_middle|>", Ends::Nothing),
    ("<fim-middle>", Ends::Nothing),
    ("<fim_middle>", Ends::Nothing),
    ("<MID>", Ends::Nothing),
    ("▁<MID>", Ends::Nothing),
];

#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Turn,
    Generation,
    Nothing,
}

impl Tokenizer {
    /// Builds the tokenizer of a file. A vocabulary-only file is enough.
    ///
    /// # Errors
    /// As [`Tokenizer::from_metadata`].
    pub fn from_gguf(gguf: &Gguf, options: TokenizerOptions) -> Result<Self, TokenizerError> {
        Self::from_metadata(gguf.metadata(), options)
    }

    /// Builds a tokenizer from the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`TokenizerError`]: a key is missing or has the wrong type or length, or the file (or `options`) needs
    /// an algorithm or a pre-tokenizer that is not supported.
    pub fn from_metadata(metadata: &Metadata, options: TokenizerOptions) -> Result<Self, TokenizerError> {
        metadata.check_is_model()?;
        let mut vocab = Vocab::from_metadata(metadata)?;
        let eog = mark_control_tokens(&mut vocab);
        let specials = special_tokens(&vocab);
        let pieces = Pieces::new(&vocab);
        let longest = pieces.longest();
        let (encoder, pre, usually_bos) = match vocab.algorithm {
            Algorithm::ByteLevelBpe => {
                let pre = pre_tokenizer(&mut vocab, options.pre)?;
                let encoder = Encoder::ByteLevel(Box::new(MergedBpe::of_bytes(&mut vocab, metadata, pre)?));
                (encoder, Some(pre), pre.add_bos())
            }
            Algorithm::RankedBpe => {
                let encoder = MergedBpe::of_chars(&mut vocab, metadata)?;
                (Encoder::Ranked(Box::new(encoder)), None, true)
            }
            Algorithm::ScoredBpe => (Encoder::Scored(ScoredBpe::new(&vocab)), None, true),
            Algorithm::WordPiece => (Encoder::Words(WordPiece::new(&vocab)), None, true),
        };
        let hidden = (0u32..)
            .zip(&vocab.kinds)
            .filter(|(_, kind)| matches!(kind, TokenKind::Control | TokenKind::Unknown))
            .map(|(id, _)| id)
            .collect();
        let add_space_prefix = vocab.add_space_prefix && vocab.algorithm == Algorithm::ScoredBpe;
        Ok(Self {
            encoder,
            specials,
            pieces,
            longest,
            hidden,
            eog,
            bos: vocab.bos,
            eos: vocab.eos,
            eot: vocab.eot,
            cls: vocab.cls,
            sep: vocab.sep,
            add_bos: vocab.add_bos.unwrap_or(usually_bos),
            add_eos: vocab.add_eos,
            add_space_prefix,
            strips_space: add_space_prefix || vocab.algorithm == Algorithm::WordPiece,
            pre,
            notices: vocab.notices,
        })
    }

    /// Encodes `text`. With `add_special`, adds BOS and EOS if the file asks for them; BOS is not added if
    /// the text already spells it, as a rendered chat template may.
    pub fn encode(&self, text: &str, special: Special, add_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        if add_special && self.add_bos {
            ids.extend(self.bos);
        }
        self.encode_but(text, special, &[], &mut ids);
        if ids.len() > 1 && add_special && self.add_bos() && ids[1] == ids[0] {
            ids.remove(0);
        }
        if add_special && self.add_eos {
            ids.extend(self.eos);
        }
        ids
    }

    /// Positions, ascending, at which `text` spells tokens that only [`Special::Parse`] finds.
    fn spelled(&self, text: &str) -> Vec<usize> {
        self.specials.spelled(text)
    }

    /// Encodes `text` so that no control token covers any position in `plain`, which is sorted.
    fn encode_but(&self, text: &str, special: Special, plain: &[usize], ids: &mut Vec<u32>) {
        let mut after_special = true;
        for fragment in self.specials.partition(text, special, plain) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(ref range) => self.encode_plain(&text[range.clone()], after_special, ids),
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
    }

    fn encode_plain(&self, text: &str, after_special: bool, ids: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::ByteLevel(bpe) => bpe.encode(text, ids),
            Encoder::Ranked(bpe) => bpe.encode(&text.replace(' ', "▁"), ids),
            Encoder::Words(pieces) => pieces.encode(text, ids),
            Encoder::Scored(bpe) => {
                let prefix = if self.add_space_prefix && after_special { "▁" } else { "" };
                bpe.encode(&(prefix.to_owned() + &text.replace(' ', "▁")), ids);
            }
        }
    }

    /// Bytes of a whole text. SentencePiece: without the space that encoding added in front. WordPiece: words
    /// separated by spaces. Control tokens are omitted unless `show_special`; ids outside the vocabulary are
    /// ignored.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        ids.iter().for_each(|&id| bytes.extend_from_slice(self.shown_bytes(id, show_special)));
        match bytes.strip_prefix(b" ") {
            Some(rest) if self.strips_space => rest.to_vec(),
            _ => bytes,
        }
    }

    /// Bytes of a token: its spelling for a control token, nothing for an id outside the vocabulary. The
    /// bytes of one token need not be valid UTF-8; [`StreamDecoder`] assembles characters.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    /// Bytes of a token in a text: like [`token_bytes`](Self::token_bytes), but empty for a control token
    /// unless `show_special`.
    pub fn shown_bytes(&self, id: u32, show_special: bool) -> &[u8] {
        if show_special || !self.is_special(id) { self.token_bytes(id) } else { &[] }
    }

    /// Id of the token spelled `text` in the vocabulary: `<|eot_id|>`, `Ġthe`.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::ByteLevel(bpe) | Encoder::Ranked(bpe) => bpe.id(text),
            Encoder::Scored(bpe) => bpe.id(text),
            Encoder::Words(pieces) => pieces.id(text),
        }
    }

    /// Minimum number of tokens of a text of `n_bytes`, from the longest token. It is 0 for WordPiece, where
    /// white space is dropped and an unknown word of any length is one token. White space that a control
    /// token strips is not considered.
    pub fn min_tokens(&self, n_bytes: usize) -> usize {
        match &self.encoder {
            Encoder::Words(_) => 0,
            Encoder::ByteLevel(_) | Encoder::Ranked(_) | Encoder::Scored(_) => n_bytes / self.longest.max(1),
        }
    }

    /// Number of tokens. The model's output head may be larger.
    pub fn n_vocab(&self) -> usize {
        self.pieces.len()
    }

    /// True if a token controls the model and is not written out.
    pub fn is_special(&self, id: u32) -> bool {
        self.hidden.contains(&id)
    }

    /// True if a token ends a generation: EOS, end of turn, and other spellings known to do so.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.contains(&id)
    }

    /// Tokens that end a generation, in ascending order.
    pub fn eog(&self) -> impl Iterator<Item = u32> {
        self.eog.iter().copied()
    }

    /// Beginning of a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// End of a turn.
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// Token at the start of an encoder's text (`[CLS]`), if the file specifies it. For a WordPiece
    /// vocabulary it is also [`bos`](Self::bos).
    pub fn cls(&self) -> Option<u32> {
        self.cls
    }

    /// Separator after each of an encoder's texts (`[SEP]`), if the file specifies it. For a WordPiece
    /// vocabulary it is also [`eos`](Self::eos).
    pub fn sep(&self) -> Option<u32> {
        self.sep
    }

    /// True if [`Tokenizer::encode`] with `add_special` begins with BOS.
    pub fn add_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }

    /// Pre-tokenizer; `None` for a SentencePiece or WordPiece vocabulary.
    pub fn pre(&self) -> Option<PreTokenizer> {
        self.pre
    }

    /// Warnings about values of the vocabulary that were assumed or repaired, one sentence each, to be shown
    /// once.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// Marks tokens spelled like control tokens as such, and returns the tokens that end a generation.
fn mark_control_tokens(vocab: &mut Vocab) -> BTreeSet<u32> {
    let mut eog: BTreeSet<u32> = vocab.eos.into_iter().chain(vocab.ends.iter().copied()).collect();
    let mut by_turn_order = [None; CONTROL_SPELLINGS.len()];
    for id in 0..vocab.tokens.len() {
        let spelling = vocab.tokens[id].as_str();
        let Some(at) = CONTROL_SPELLINGS.iter().position(|(text, _)| *text == spelling) else { continue };
        vocab.kinds[id] = TokenKind::Control;
        by_turn_order[at] = Some(id as u32);
    }
    for (found, (_, ends)) in by_turn_order.iter().zip(CONTROL_SPELLINGS) {
        let Some(id) = *found else { continue };
        if *ends == Ends::Turn && vocab.eot.is_none() {
            vocab.eot = Some(id);
        }
        if *ends != Ends::Nothing {
            eog.insert(id);
        }
    }
    eog.extend(vocab.eot);
    // If a vocabulary has tokens that end a message without ending the turn, `<|end|>` only ends a part of
    // one.
    let has = |text| vocab.find(text).is_some();
    let goes_on = (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>"));
    if goes_on && let Some(end) = vocab.find("<|end|>") {
        eog.remove(&end);
    }
    eog
}

fn special_tokens(vocab: &Vocab) -> SpecialTokens {
    // Files do not specify which added tokens strip the whitespace after them; phi-3's do, except for three.
    let strips = ["phi-3", "phi3"].iter().any(|name| vocab.model_name.contains(name));
    let tokens = (0u32..).zip(vocab.tokens.iter().zip(&vocab.kinds)).filter_map(|(id, (text, kind))| {
        let on_request = match kind {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            _ => return None,
        };
        let strip_right = strips && !["<unk>", "<s>", "<|endoftext|>"].contains(&text.as_str());
        Some(SpecialToken { id, text: text.clone(), on_request, strip_right })
    });
    SpecialTokens::new(tokens.collect())
}

fn pre_tokenizer(vocab: &mut Vocab, wanted: Option<PreTokenizer>) -> Result<PreTokenizer, TokenizerError> {
    if let Some(pre) = wanted {
        return Ok(pre);
    }
    if let Some(name) = vocab.pre.as_deref() {
        return name.parse();
    }
    let like_llama3 = ["<|begin_of_text|>", "<|eot_id|>"].iter().any(|text| vocab.find(text).is_some());
    let (name, why) = if like_llama3 {
        ("llama-bpe", "the vocabulary looks like Llama 3's")
    } else {
        ("default", "as llama.cpp does")
    };
    vocab.notices.push(format!(
        "the file specifies no pre-tokenizer (tokenizer.ggml.pre): using `{name}` ({why}), \
         unless another is chosen"
    ));
    name.parse()
}
