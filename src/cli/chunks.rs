//! Flags for a text that is split into chunks of tokens.

use std::path::PathBuf;

use clap::Args;

use super::args::unescape;
use super::{CliError, input, names};
use crate::engine::Engine;
use crate::eval::Chunks;
use crate::tokenizer::{Special, Tokenizer};

/// Reads the value of `--chunks`.
fn n_chunks(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(n @ 1..) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        _ => Err("want 1 or more, or -1 for all".to_owned()),
    }
}

/// A text and its chunking.
#[derive(Args, Debug)]
pub struct TextArgs {
    /// File with the text
    #[arg(short, long, value_name = "FILE", required_unless_present = "prompt")]
    file: Option<PathBuf>,
    /// The text itself
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Do not process escapes such as \n and \t in -p
    #[arg(long)]
    no_escape: bool,
    /// Tokens per chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: u32,
    /// Parse special tokens that are spelled out in the text
    #[arg(long, alias = "parse-special")]
    special: bool,
    /// Maximum number of chunks to score; -1 is all of them
    #[arg(long, value_name = "N", value_parser = n_chunks)]
    chunks: Option<usize>,
}

impl TextArgs {
    /// Tokens per chunk.
    pub fn n_ctx(&self) -> usize {
        self.ctx_size as usize
    }

    /// Reads the text; a file is used unchanged.
    ///
    /// # Errors
    /// If it cannot be read or is not UTF-8.
    pub fn read(&self) -> Result<String, CliError> {
        match &self.prompt {
            Some(text) if self.no_escape => Ok(text.clone()),
            Some(text) => Ok(unescape(text)),
            None => input::verbatim(self.file.as_deref(), ""),
        }
    }

    /// Path of the text; empty for a text on the command line.
    pub fn name(&self) -> String {
        self.file.as_ref().map_or_else(String::new, |path| path.display().to_string())
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
        let n_chunks = (tokens.len() / n_ctx).min(self.chunks.unwrap_or(usize::MAX));
        tokens.truncate(n_chunks * n_ctx);
        Ok(Chunks { n_ctx, n_vocab, tokens })
    }
}
