//! Constraints on a sequence: a set of allowed tokens per position, decided outside the engine.
//!
//! The engine has no grammar code. It asks a [`Constraint`] for the allowed tokens when it samples on the
//! host, and tells it which token was sampled. Sequences without a constraint are not slowed down. A set may
//! be computed on another thread: a batch then runs other sequences until it is ready.

use std::fmt::Debug;
use std::task::{Context, Poll};
use std::time::Duration;

/// A set of token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32` is set if the token is allowed.
    words: Vec<u32>,
}

impl TokenMask {
    /// A set in which token `id` is bit `id % 32` of word `id / 32`; tokens beyond the words are not in it.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// True if `token` is in the set.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Sets the logits, `[n_vocab]`, of all tokens that are not in the set to minus infinity.
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

/// A set of allowed texts. Sequences share it; each [starts](Self::start) at its own beginning.
pub trait Grammar: Debug + Send + Sync {
    /// The state at the beginning of a text.
    fn start(&self) -> Box<dyn Constraint>;
}

/// State of one sequence in a grammar: the tokens that may follow its tokens so far.
pub trait Constraint: Debug + Send {
    /// Ready if [`mask`](Self::mask) returns without waiting. Otherwise the context's waker is woken once it
    /// does.
    fn poll_mask(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// [`accept`](Self::accept) without waiting: if it is pending, the caller polls again with the same
    /// token.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    fn poll_accept(&mut self, token: u32, _: &mut Context<'_>) -> Poll<Result<(), ConstraintError>> {
        Poll::Ready(self.accept(token))
    }

    /// The tokens that may come next, at least one. Includes end-of-text tokens where the text may end.
    ///
    /// # Errors
    /// [`ConstraintError::Failed`], [`ConstraintError::TooSlow`].
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError>;

    /// Advances by a token. The next mask can be computed from here on, while the model runs.
    ///
    /// # Errors
    /// [`ConstraintError::Failed`], also for a token that is not in the mask; [`ConstraintError::TooSlow`].
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// True if the text is complete and nothing can follow: the sequence ends here.
    fn is_done(&self) -> bool;
}

/// Reason why a constrained sequence cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The constraint cannot compute the next mask.
    #[error("the grammar cannot be followed: {0}")]
    Failed(String),
    /// The constraint takes too long to compute the next mask.
    #[error(
        "the grammar cannot be followed: the tokens that may come next take more than {} s to find; a \
         grammar in which fewer rules match the same text is faster",
        .0.as_secs_f32()
    )]
    TooSlow(Duration),
    /// None of the allowed tokens can be sampled.
    #[error(
        "the sampler can pick none of the tokens that the grammar allows: a bias or \
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
