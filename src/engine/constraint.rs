//! Constraints on a sequence: a set of tokens for every position, decided outside the engine.
//!
//! The engine knows no grammar. It asks a [`Constraint`] for the tokens that may come next when it picks one
//! on the host, and tells it which one was picked. What is not constrained is not slowed: the row of a
//! sequence without a constraint is picked as before.

use std::fmt::Debug;

/// A set of token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32` is set if the token may come.
    words: Vec<u32>,
}

impl TokenMask {
    /// A set whose token `id` is bit `id % 32` of word `id / 32`; tokens beyond the words are not in it.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// True if `token` is in the set.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Makes the logits, `[n_vocab]`, of all tokens that are not in the set minus infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut words = self.words.iter().copied();
        for logits in logits.chunks_mut(32) {
            match words.next().unwrap_or(0) {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

impl FromIterator<u32> for TokenMask {
    fn from_iter<T: IntoIterator<Item = u32>>(tokens: T) -> Self {
        let mut words = Vec::new();
        for token in tokens {
            let at = token as usize / 32;
            words.resize(words.len().max(at + 1), 0);
            words[at] |= 1 << (token % 32);
        }
        Self { words }
    }
}

/// The texts that are allowed. Sequences share it; each [starts](Self::start) at its own beginning.
pub trait Grammar: Debug + Send + Sync {
    /// The state of a sequence that has said nothing.
    fn start(&self) -> Box<dyn Constraint>;
}

/// The tokens that one sequence may say next, after those that it has said.
pub trait Constraint: Debug + Send {
    /// The tokens that may come next, never none. Tokens that end a text are among them where the text may
    /// end.
    ///
    /// # Errors
    /// [`ConstraintError::Failed`].
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError>;

    /// Goes on behind a token. The next mask can be begun here, so that it is made while the model runs.
    ///
    /// # Errors
    /// [`ConstraintError::Failed`], for a token that is not in the mask too.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// True if the text is complete and nothing can follow: the sequence ends here.
    fn is_done(&self) -> bool;
}

/// Reason why a constrained sequence cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The constraint cannot say what may come next.
    #[error("the grammar cannot be followed: {0}")]
    Failed(String),
    /// No token that may come next can be picked.
    #[error(
        "the sampler can pick none of the tokens that the grammar allows: SamplerOptions::logit_bias or \
         ignoring the end of the text excludes all of them, or their logits are minus infinity"
    )]
    NoToken,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_not_in_the_mask_becomes_minus_infinity(
            tokens in proptest::collection::btree_set(0u32..200, 0..150),
            n_vocab in 1usize..200,
        ) {
            let mask: TokenMask = tokens.iter().copied().collect();
            let mut logits: Vec<f32> = (0..n_vocab).map(|id| id as f32).collect();
            mask.apply(&mut logits);
            for (id, logit) in logits.iter().enumerate() {
                let allowed = tokens.contains(&(id as u32));
                prop_assert_eq!(mask.allows(id as u32), allowed);
                prop_assert_eq!(*logit, if allowed { id as f32 } else { f32::NEG_INFINITY });
            }
        }
    }

    #[test]
    fn tokens_beyond_the_words_are_not_allowed() {
        let mask = TokenMask::from_words(vec![u32::MAX]);
        let mut logits = vec![1.0; 40];
        mask.apply(&mut logits);
        assert!(mask.allows(31) && !mask.allows(32) && !mask.allows(u32::MAX));
        assert_eq!(logits.iter().filter(|logit| **logit == 1.0).count(), 32);
    }
}
