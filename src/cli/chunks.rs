//! Flags for a text that is split into chunks of tokens.

use std::path::PathBuf;

use clap::Args;

use super::{CliError, input, names};
use crate::engine::Engine;
use crate::eval::Chunks;
use crate::tokenizer::{Special, Tokenizer};

/// A text and its chunking.
#[derive(Args, Debug)]
pub struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT")]
    file: PathBuf,
    /// Tokens per chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: u32,
    /// Parse special tokens that are spelled out in the text
    #[arg(long, alias = "parse-special")]
    special: bool,
    /// Maximum number of chunks to score
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
}

impl TextArgs {
    /// Tokens per chunk.
    pub fn n_ctx(&self) -> usize {
        self.ctx_size as usize
    }

    /// Reads the text unchanged.
    ///
    /// # Errors
    /// If it cannot be read or is not UTF-8.
    pub fn read(&self) -> Result<String, CliError> {
        input::verbatim(Some(&self.file), "")
    }

    /// Path of the text as messages show it.
    pub fn name(&self) -> String {
        self.file.display().to_string()
    }

    /// Tokenizes the text into at least two whole chunks, and prints the tokenizer's notices.
    ///
    /// # Errors
    /// If the model has no tokenizer or the text is shorter than two chunks.
    pub fn chunked(&self, text: &str, engine: &Engine) -> Result<Chunks, CliError> {
        let tokenizer = engine.tokenizer()?;
        tokenizer.notices().iter().for_each(|notice| names::note("note", notice));
        self.cut(text, tokenizer, engine.hyper().n_vocab, 2)
    }

    /// Tokenizes the text into at least `least` whole chunks, for a model with a vocabulary of `n_vocab`.
    ///
    /// # Errors
    /// If the text is shorter.
    pub fn cut(
        &self,
        text: &str,
        tokenizer: &Tokenizer,
        n_vocab: usize,
        least: usize,
    ) -> Result<Chunks, CliError> {
        let special = if self.special { Special::Parse } else { Special::AsText };
        let (mut tokens, n_ctx) = (tokenizer.encode(text, special, true), self.n_ctx());
        if tokens.len() < least * n_ctx {
            let wanted = if least == 1 { "one chunk" } else { "two chunks" };
            return Err(format!(
                "the text has {} tokens, less than {wanted} of {n_ctx}; use a smaller --ctx-size for shorter \
                 chunks",
                tokens.len()
            )
            .into());
        }
        let n_chunks = (tokens.len() / n_ctx).min(self.chunks.unwrap_or(usize::MAX)).max(1);
        tokens.truncate(n_chunks * n_ctx);
        Ok(Chunks { n_ctx, n_vocab, tokens })
    }
}
