//! A text in chunks of tokens, split as in llama-perplexity.

use sterna_tokenizer::Tokenizer;

/// A text as whole chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// The text, whole chunks: `[n_chunks * n_ctx]`.
    pub tokens: Vec<u32>,
}

impl Chunks {
    /// Number of scored positions per chunk: those of the second half that have a next token.
    pub fn scored(&self) -> usize {
        self.n_ctx - 1 - self.n_ctx / 2
    }

    /// Number of chunks.
    pub fn n_chunks(&self) -> usize {
        self.tokens.len() / self.n_ctx
    }

    /// The chunks, `[n_ctx]` each.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.tokens.chunks_exact(self.n_ctx)
    }
}

/// A chunk as fed to the model: BOS replaces its first token if the model requires one.
pub fn as_fed(tokenizer: &Tokenizer, chunk: &[u32]) -> Vec<u32> {
    let mut fed = chunk.to_vec();
    if tokenizer.add_bos() {
        fed[0] = tokenizer.bos().expect("a vocabulary that adds BOS has one");
    }
    fed
}
