//! Flags of a text that is cut into chunks of tokens.

use std::path::PathBuf;

use clap::Args;

use super::{CliError, flags};
use crate::engine::Engine;
use crate::eval::Chunks;
use crate::tokenizer::Special;

/// Which text, and how it is cut.
#[derive(Args, Debug)]
pub struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT")]
    file: PathBuf,
    /// Tokens of a chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: u32,
    /// Read special tokens that are spelled out in the text as tokens
    #[arg(long)]
    special: bool,
    /// Most chunks to score
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
}

impl TextArgs {
    /// Tokens of a chunk.
    pub fn n_ctx(&self) -> usize {
        self.ctx_size as usize
    }

    /// The text.
    ///
    /// # Errors
    /// Where it cannot be read, or is not UTF-8.
    pub fn read(&self) -> Result<String, CliError> {
        let fail = |err: &dyn std::fmt::Display| format!("{}: {err}", self.file.display());
        let bytes = std::fs::read(&self.file).map_err(|err| fail(&err))?;
        Ok(String::from_utf8(bytes).map_err(|err| fail(&err))?)
    }

    /// The text as whole chunks of tokens; says what the tokenizer has to say.
    ///
    /// # Errors
    /// Where the model has no tokenizer, or the text is shorter than two chunks.
    pub fn chunked(&self, text: &str, engine: &Engine) -> Result<Chunks, CliError> {
        let tokenizer = engine.tokenizer()?;
        tokenizer.notices().iter().for_each(|notice| flags::note("note", notice));
        let special = if self.special { Special::Parse } else { Special::AsText };
        let (mut tokens, n_ctx) = (tokenizer.encode(text, special, true), self.n_ctx());
        if tokens.len() < 2 * n_ctx {
            return Err(format!(
                "the text has {} tokens; at least two chunks of {n_ctx} are needed (--ctx-size sets their \
                 length)",
                tokens.len()
            )
            .into());
        }
        let n_chunks = (tokens.len() / n_ctx).min(self.chunks.unwrap_or(usize::MAX)).max(1);
        tokens.truncate(n_chunks * n_ctx);
        Ok(Chunks { n_ctx, n_vocab: engine.hyper().n_vocab, tokens })
    }
}
