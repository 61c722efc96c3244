//! Input texts of embedding and reranking models: a query and a document as one sequence, and truncation to
//! the context.

use super::batch::Pooled;
use super::error::Error;
use super::handle::Engine;
use sterna_tokenizer::{Special, Tokenizer};

/// Key of the template that a decoder reranks with; it contains `{query}` and `{document}` (Qwen3-Reranker).
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// Key for an additional separator between query and document, after the end of the query (XLM-RoBERTa).
const ADD_SEP: &str = "tokenizer.ggml.add_sep_token";

/// The format of a query and a document for a model.
pub struct Pairs<'e> {
    tokenizer: &'e Tokenizer,
    template: Option<&'e str>,
    has_sep: bool,
}

impl Engine {
    /// The model's format of a query and a document.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::Gguf`] for a template that is not a string.
    pub fn pairs(&self) -> Result<Pairs<'_>, Error> {
        let metadata = self.gguf().metadata();
        // In WordPiece, the end token is the separator.
        let is_wordpiece = metadata.str("tokenizer.ggml.model")? == Some("bert");
        Ok(Pairs {
            tokenizer: self.tokenizer()?,
            template: metadata.str(TEMPLATE)?,
            has_sep: !is_wordpiece && metadata.bool(ADD_SEP)?.unwrap_or(false),
        })
    }
}

impl Pairs<'_> {
    /// The tokens of a query and a document: `[CLS] query [SEP] document [SEP]`, with the vocabulary's BOS
    /// and EOS tokens, or the file's template. With `most`, the document is truncated so that the pair has at
    /// most `most` tokens; a longer query is kept. Control tokens in the texts are treated as text.
    pub fn encode(&self, query: &str, document: &str, most: Option<usize>) -> (Vec<u32>, Pooled) {
        match self.template {
            Some(template) => (self.filled(template, query, document, most), Pooled::default()),
            None => self.joined(query, document, most),
        }
    }

    fn joined(&self, query: &str, document: &str, most: Option<usize>) -> (Vec<u32>, Pooled) {
        let tokenizer = self.tokenizer;
        let mut tokens = Vec::new();
        if tokenizer.add_bos() {
            tokens.extend(tokenizer.bos());
        }
        tokens.extend(tokenizer.encode(query, Special::AsText, false));
        let eos = tokenizer.eos();
        tokens.extend(eos);
        tokens.extend(eos.filter(|_| self.has_sep));
        let second = tokens.len();
        tokens.extend(tokenizer.encode(document, Special::AsText, false));
        if let Some(most) = most {
            tokens.truncate(most.saturating_sub(usize::from(eos.is_some())).max(second));
        }
        tokens.extend(eos);
        (tokens, Pooled { second: Some(second) })
    }

    fn filled(&self, template: &str, query: &str, document: &str, most: Option<usize>) -> Vec<u32> {
        let fill = |document: &str| {
            self.tokenizer.encode_filled(template, &[("{query}", query), ("{document}", document)])
        };
        let mut tokens = fill(document);
        let Some(most) = most.filter(|most| tokens.len() > *most) else { return tokens };
        let mut left = self.tokenizer.encode(document, Special::AsText, false);
        // The truncated text may have different tokens at its end than before.
        while tokens.len() > most && !left.is_empty() {
            left.truncate(left.len().saturating_sub(tokens.len() - most));
            let text = self.tokenizer.decode(&left, true);
            let whole = String::from_utf8_lossy(&text);
            tokens = fill(whole.trim_end_matches(char::REPLACEMENT_CHARACTER));
        }
        tokens
    }
}

/// Truncates a text to `most` tokens, at least one. Keeps EOS at its end.
pub fn cut(tokens: &mut Vec<u32>, most: usize, tokenizer: &Tokenizer) {
    let most = most.max(1);
    if tokens.len() > most {
        let end = tokens.last().copied().filter(|end| tokenizer.eos() == Some(*end));
        tokens.truncate(most - usize::from(end.is_some()));
        tokens.extend(end);
    }
}
