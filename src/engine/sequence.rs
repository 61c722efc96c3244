//! The data of one sequence: its tokens, its cached positions, and queued work that runs ahead of the host.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sampler::{Sampler, SamplerError, SamplerOptions};
use super::vision::picture::PlacedImage;
use sterna_program::{AdapterScale, Sampling};

/// One sequence. Independent of any backend: [`Runner`](super::runner::Runner) runs it.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Tokens fed or to be fed to the model, in order.
    pub tokens: Vec<u32>,
    /// Number of positions whose keys and values are in the cache, or are written by a queued run. One more
    /// than the number of tokens if the sequence runs ahead: the last position belongs to the token that the
    /// previous queued run samples.
    pub cached: usize,
    /// Its slot in the page table; `None` while it holds no pages.
    pub slot: Option<u32>,
    pub sampler: Sampler,
    /// Sampling parameters of queued tokens that the host has not read yet, oldest first; at most two.
    pub queued: Vec<Sampling>,
    /// The last sampled token that was read, if it is not in [`tokens`](Self::tokens) yet. `queued` continues
    /// after it.
    pub picked: Option<u32>,
    /// Drafted tokens after [`tokens`](Self::tokens), to be verified by a step.
    pub draft: Vec<u32>,
    /// Tokens sampled after `picked` in the same step, oldest first, each with its logits if these are kept.
    pub ahead: VecDeque<(u32, Vec<f32>)>,
    /// Number of tokens after [`cached`](Self::cached) that have run but must run again in the next step,
    /// because a recurrent state cannot be cut back.
    pub again: usize,
    /// Position of the second of two texts, for models with token types.
    pub second: Option<u32>,
    /// LoRA adapters of all its rows.
    pub adapters: Arc<[AdapterScale]>,
    /// The images among [`tokens`](Self::tokens), in order.
    pub images: Vec<PlacedImage>,
}

impl Sequence {
    /// A sequence without tokens.
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
            adapters: Arc::default(),
            images: Vec::new(),
        }
    }

    /// A sequence without tokens, with greedy sampling.
    pub fn greedy() -> Result<Self, SamplerError> {
        Ok(Self::new(Sampler::new(SamplerOptions::greedy())?))
    }

    /// Number of tokens whose keys and values are missing.
    pub fn missing(&self) -> usize {
        self.tokens.len().saturating_sub(self.cached)
    }

    /// The tokens that are not placeholders of images.
    pub fn text(&self) -> impl Iterator<Item = u32> {
        let is_text = |at: usize| !self.images.iter().any(|image| (image.at..image.end()).contains(&at));
        self.tokens.iter().enumerate().filter(move |(at, _)| is_text(*at)).map(|(_, token)| *token)
    }

    /// Number of its next rows, at most `n`, that end in no image. If an image begins at once, all its rows,
    /// if these are at most `room`, and 0 otherwise.
    pub fn whole_rows(&self, n: usize, room: usize) -> usize {
        let end = self.cached + n;
        match self.images.iter().find(|image| image.at < end && end < image.end()) {
            None => n,
            Some(image) if image.at > self.cached => image.at - self.cached,
            Some(image) => Some(image.end() - self.cached).filter(|rows| *rows <= room).unwrap_or(0),
        }
    }

    /// Drops the tokens from `position` on, and an image that this would cut as a whole.
    pub fn truncate(&mut self, position: usize) {
        let cut = self.images.iter().find(|image| image.at < position && position < image.end());
        let position = cut.map_or(position, |image| image.at);
        self.images.retain(|image| image.end() <= position);
        self.tokens.truncate(position);
        self.cached = self.cached.min(position);
    }

    /// The token at a position, including drafted tokens.
    pub fn token(&self, at: usize) -> Option<u32> {
        self.tokens.get(at).or_else(|| self.draft.get(at - self.tokens.len())).copied()
    }

    /// Sampling parameters of the token after the last cached position.
    pub fn sampling(&self) -> Sampling {
        self.sampler.sampling(self.cached)
    }

    /// Appends `tokens` if the run that computes them, and samples the next one with the current sampler, is
    /// already queued. Otherwise returns `false` and changes nothing.
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

    /// Appends `tokens` if they are the last sampled token, and returns the next token that the same step
    /// sampled, with its logits. Returns `None` and changes nothing if there is no such token.
    pub fn take_ahead(&mut self, tokens: &[u32]) -> Option<(u32, Vec<f32>)> {
        let picked = self.picked.filter(|picked| *tokens == [*picked])?;
        let next = self.ahead.pop_front()?;
        self.tokens.push(picked);
        self.picked = Some(next.0);
        Some(next)
    }

    /// Drops queued work and drafts. Their keys and values are after the last token, where the next run
    /// overwrites them.
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
