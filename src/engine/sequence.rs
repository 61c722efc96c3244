//! One sequence as plain data: its tokens, what of them is in the KV cache, and what runs ahead of the host.

use std::collections::VecDeque;

use super::{Sampler, SamplerError, SamplerOptions};
use sterna_program::Sampling;

/// One sequence. It knows no backend: [`Runner`](super::runner::Runner) runs it.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Tokens that the model has seen or is to see, in order.
    pub tokens: Vec<u32>,
    /// Positions whose keys and values are in the cache, or come there by a run that is queued. One more than
    /// there are tokens if the sequence runs ahead: the last of them belongs to the token that the queued run
    /// before it picks.
    pub cached: usize,
    /// Its slot in the page table; `None` while it holds no pages.
    pub slot: Option<u32>,
    /// Sampler that picks its tokens.
    pub sampler: Sampler,
    /// Sampling of the picks that are queued and whose tokens the host has not read, oldest first; at most
    /// two.
    pub queued: Vec<Sampling>,
    /// The last token that was read of a pick, if [`tokens`](Self::tokens) lacks it. `queued` goes on from
    /// there.
    pub picked: Option<u32>,
    /// Drafted tokens behind [`tokens`](Self::tokens), which a step verifies.
    pub draft: Vec<u32>,
    /// Tokens that were picked behind `picked` by the step that picked that one, oldest first, each with the
    /// logits that it was picked from if these are kept.
    pub ahead: VecDeque<(u32, Vec<f32>)>,
    /// Tokens behind [`cached`](Self::cached) that have run and run again with the next step, because a
    /// recurrent state cannot be cut back.
    pub again: usize,
    /// Position of the second of two texts, for models with token types.
    pub second: Option<u32>,
}

impl Sequence {
    /// A sequence of no tokens.
    pub fn new(sampler: Sampler) -> Self {
        Self {
            tokens: Vec::new(),
            cached: 0,
            slot: None,
            sampler,
            queued: Vec::with_capacity(2),
            picked: None,
            draft: Vec::new(),
            ahead: VecDeque::new(),
            again: 0,
            second: None,
        }
    }

    /// A sequence of no tokens that always picks the most likely one.
    pub fn greedy() -> Result<Self, SamplerError> {
        Ok(Self::new(Sampler::new(SamplerOptions::greedy())?))
    }

    /// Tokens whose keys and values are to be computed.
    pub fn missing(&self) -> usize {
        self.tokens.len().saturating_sub(self.cached)
    }

    /// The token at a position, of the draft behind the others.
    pub fn token(&self, at: usize) -> Option<u32> {
        self.tokens.get(at).or_else(|| self.draft.get(at - self.tokens.len())).copied()
    }

    /// Sampling of the token behind the last position in the cache.
    pub fn sampling(&self) -> Sampling {
        self.sampler.sampling(self.cached)
    }

    /// Appends `tokens` if the run that computes them, and picks the next one as the sampler says, is queued
    /// already. `false`, and nothing is changed, if it is not.
    pub fn try_advance(&mut self, tokens: &[u32]) -> bool {
        let next = self.tokens.len() + 1;
        let is_queued = self.picked.is_some_and(|picked| *tokens == [picked])
            && self.cached == next
            && *self.queued == [self.sampler.sampling(next)];
        if is_queued {
            self.tokens.extend(self.picked.take());
        }
        is_queued
    }

    /// Appends `tokens` if they are the token that was picked last, and returns the one that the same step
    /// picked behind it, with its logits. `None`, and nothing is changed, if it picked no more.
    pub fn take_ahead(&mut self, tokens: &[u32]) -> Option<(u32, Vec<f32>)> {
        let picked = self.picked.filter(|picked| *tokens == [*picked])?;
        let next = self.ahead.pop_front()?;
        self.tokens.push(picked);
        self.picked = Some(next.0);
        Some(next)
    }

    /// Forgets what runs ahead. What it has written lies behind the last token, where the next run overwrites
    /// it.
    pub fn discard_queued(&mut self) {
        self.queued.clear();
        self.picked = None;
        self.draft.clear();
        self.ahead.clear();
        self.cached = self.cached.min(self.tokens.len());
        self.again = self.again.min(self.missing());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead() -> Sequence {
        let mut seq = Sequence::greedy().unwrap();
        seq.tokens.extend([5, 6]);
        (seq.cached, seq.picked) = (3, Some(7));
        seq.queued.push(seq.sampler.sampling(3));
        seq
    }

    #[test]
    fn a_token_that_was_fed_ahead_is_not_computed_again() {
        let mut seq = ahead();
        assert!(seq.try_advance(&[7]));
        assert_eq!((seq.missing(), seq.queued.len()), (0, 1));
    }

    #[test]
    fn other_tokens_or_another_sampler_are_computed() {
        for tokens in [vec![8], vec![], vec![7, 7]] {
            assert!(!ahead().try_advance(&tokens));
        }
        let mut seq = ahead();
        seq.sampler = Sampler::new(SamplerOptions { seed: Some(1), ..SamplerOptions::default() }).unwrap();
        assert!(!seq.try_advance(&[7]));
        seq.discard_queued();
        assert_eq!((seq.cached, seq.queued.len(), seq.picked), (2, 0, None));
    }
}
