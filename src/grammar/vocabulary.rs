//! The vocabulary in the parser's form: a trie of the bytes of every token.
//!
//! A control token must not be produced where the grammar requires its spelling as text. So it is entered
//! with the prefix byte 0xFF, which does not occur in UTF-8; a grammar refers to it as `<|its_name|>`.

use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::GrammarError;
use sterna_tokenizer::Tokenizer;

/// Longest token in bytes; the trie stores distances to the parent node in 10 bits. Longer tokens are never
/// chosen.
const MAX_TOKEN_BYTES: usize = 1000;
/// Maximum number of nodes of the trie, a 22-bit count.
const MAX_NODES: usize = (1 << 22) - 2;
/// Maximum number of tokens, a 24-bit count.
const MAX_TOKENS: usize = 0xff_fffe;

/// Bytes of every token, and the tokens that end a text.
#[derive(Debug)]
pub struct Vocabulary {
    /// `[n_vocab]`; empty if the token is never chosen.
    words: Vec<Vec<u8>>,
    ends: Vec<TokenId>,
    /// Text that a grammar forces has one tokenisation, with the longest tokens. Otherwise a model that did
    /// not expect the text would choose one of the tokenisations by chance, often one that it has never seen,
    /// and go on badly. Tests that compare all tokenisations of a text switch it off.
    pub is_canonical: bool,
}

impl Vocabulary {
    /// Copies the required data of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let ends: Vec<TokenId> = tokenizer.eog().collect();
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            let is_special = tokenizer.is_special(id) || tokenizer.is_eog(id);
            let fits = !bytes.is_empty() && bytes.len() <= MAX_TOKEN_BYTES;
            match (fits, is_special) {
                (false, _) => Vec::new(),
                (true, true) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                // Such a token is never part of a text, and would look like a control token.
                (true, false) if bytes.starts_with(&[TokTrie::SPECIAL_TOKEN_MARKER]) => Vec::new(),
                (true, false) => bytes.to_vec(),
            }
        };
        Self { words: (0..tokenizer.n_vocab() as u32).map(word).collect(), ends, is_canonical: true }
    }

    /// Id of the token spelled `name`; control tokens are searched first.
    pub fn find(&self, name: &str) -> Option<TokenId> {
        let special = [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        let at = |wanted: &[u8]| self.words.iter().position(|word| word == wanted);
        at(&special).or_else(|| at(name.as_bytes())).map(|id| id as TokenId)
    }

    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Builds the trie: a tenth of a second for 128 thousand tokens.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if the vocabulary is too large.
    pub fn trie(&self) -> Result<TokEnv, GrammarError> {
        let wrong = |what: String| Err(GrammarError::Vocabulary(what));
        let n_tokens = self.words.len();
        if n_tokens > MAX_TOKENS {
            return wrong(format!("it has {n_tokens} tokens, at most {MAX_TOKENS} are supported"));
        }
        let n_nodes = self.n_nodes();
        if n_nodes > MAX_NODES {
            return wrong(format!("its trie has {n_nodes} nodes, at most {MAX_NODES} are supported"));
        }
        let eos = self.ends.first().copied().unwrap_or(toktrie::INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(n_tokens as u32, eos), &self.words);
        let trie = if self.ends.is_empty() { trie } else { trie.with_eos_tokens(&self.ends) };
        Ok(std::sync::Arc::new(Trie { trie, is_canonical: self.is_canonical }))
    }

    fn n_nodes(&self) -> usize {
        let mut sorted: Vec<&[u8]> = self.words.iter().map(Vec::as_slice).collect();
        sorted.sort_unstable();
        let mut before: &[u8] = &[];
        let mut n_nodes = 1;
        for word in sorted {
            let common = before.iter().zip(word).take_while(|(a, b)| a == b).count();
            // Tokens with the same bytes have separate nodes.
            n_nodes += (word.len() - common).max(usize::from(!word.is_empty()));
            before = word;
        }
        n_nodes
    }
}

struct Trie {
    trie: TokTrie,
    is_canonical: bool,
}

impl TokenizerEnv for Trie {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}
