//! A sequence of a batch, and what its request asked for.

use std::sync::Arc;

use super::prefix::NodeId;
use crate::pages::PageKinds;
use crate::pool::Pool;
use crate::runner::Ask;
use crate::sequence::Sequence;
use crate::speculate::Speculator;
use crate::{Decoder, GenerateOptions, LogProbs, Stats};
use sterna_host::clock::Instant;

/// Names a sequence of a batch. Later sequences have larger ones, and none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// A request to a batch.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Options of the generation. A set `cancel` ends the sequence with the next step.
    pub options: GenerateOptions,
    /// Sequences that go on from the prompt, which is computed once. Each has a seed of its own: the given
    /// one plus its index.
    pub n: usize,
    /// Larger goes first; sequences of equal priority share.
    pub priority: i32,
    /// Prompts find each other's pages if their salts are equal.
    pub salt: Arc<str>,
    /// True if its pages may be found by others, and others' by it.
    pub cache_prompt: bool,
    /// Log-probabilities of the prompt's tokens, and of this many of the most likely ones in the place of
    /// each. All of the prompt is computed then, in steps of at most
    /// [`EngineOptions::outputs`](crate::EngineOptions::outputs) rows.
    pub score_prompt: Option<usize>,
    /// Asks for the vector of the prompt, or its score, in place of text
    /// ([`Batch::take_vector`](super::Batch::take_vector)).
    pub pooled: Option<Pooled>,
}

/// A text whose vector or score is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pooled {
    /// Number of the token that the second of two texts begins with, for models that tell them apart.
    pub second: Option<usize>,
}

impl Request {
    /// The vector of a text, or its score: ends with [`StopReason::Limit`](crate::StopReason::Limit) without
    /// a token.
    pub fn pooled(prompt: Vec<u32>, pooled: Pooled) -> Self {
        Self { pooled: Some(pooled), cache_prompt: false, ..Self::new(prompt, GenerateOptions::default()) }
    }

    /// One sequence of ordinary priority.
    pub fn new(prompt: Vec<u32>, options: GenerateOptions) -> Self {
        Self {
            prompt,
            options,
            n: 1,
            priority: 0,
            salt: Arc::from(""),
            cache_prompt: true,
            score_prompt: None,
            pooled: None,
        }
    }
}

/// The status of a sequence of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceStatus {
    /// Its name.
    pub id: SeqId,
    /// Its slot, below [`EngineOptions::n_seqs`](crate::EngineOptions::n_seqs); `None` while it
    /// waits.
    pub slot: Option<u32>,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Its tokens that are in the KV cache.
    pub n_cached: usize,
    /// Counts and times.
    pub stats: Stats,
}

/// The pages of a sequence that waits, in memory of the host.
#[derive(Debug)]
pub(super) struct SwappedOut {
    /// Number of positions whose keys and values these are.
    pub positions: usize,
    /// Kinds of the pages, an entry per page of the sequence.
    pub kinds: Vec<PageKinds>,
    /// The pages, those of the same positions together.
    pub bytes: Vec<u8>,
}

/// A sequence of a batch.
#[derive(Debug)]
pub(super) struct Task {
    pub id: SeqId,
    pub seq: Sequence,
    pub decoder: Decoder,
    pub options: GenerateOptions,
    pub speculator: Option<Speculator>,
    pub priority: i32,
    pub salt: Arc<str>,
    pub cache_prompt: bool,
    pub n_prompt: usize,
    /// Number of top tokens beside each scored token of the prompt; `None` if it is not scored.
    pub score_prompt: Option<usize>,
    /// Rows of the prompt that count for its vector, if that is what was asked for.
    pub pool: Option<Pool>,
    /// Scores of the prompt's second token and those behind it, as far as they are known.
    pub scores: Vec<LogProbs>,
    /// The nodes of its first pages in the prefix cache.
    pub nodes: Vec<NodeId>,
    /// The sequence whose prompt it goes on from, until it does or that one is gone.
    pub fork_of: Option<SeqId>,
    /// True if the host has still to pick the token behind what is in the cache.
    pub host_picks: bool,
    /// Grows whenever it runs: who has the smallest is next.
    pub turn: u64,
    pub is_cancelled: bool,
    /// True if it keeps what it has and runs nothing.
    pub is_paused: bool,
    /// Its pages in memory of the host, while it waits.
    pub swapped_out: Option<SwappedOut>,
    pub stats: Stats,
    /// When it was added.
    pub added: Instant,
    /// When its first token was picked.
    pub first: Option<Instant>,
}

impl Task {
    /// True if it has a slot.
    pub fn is_running(&self) -> bool {
        self.seq.slot.is_some()
    }

    /// True if all of its prompt is in the cache.
    pub fn has_prompt(&self) -> bool {
        self.is_running() && self.seq.cached >= self.n_prompt
    }

    /// True if rows of its prompt can run.
    pub fn prefills(&self) -> bool {
        let last = if self.pool.is_some() { 0 } else { 1 + self.seq.again };
        self.is_running() && !self.is_paused && self.seq.missing() > last
    }

    /// True if its next row is the only one that it can run, besides those that run again: a token that was
    /// picked, or is being picked.
    pub fn decodes(&self) -> bool {
        let is_last = self.pool.is_none() && self.seq.missing() <= 1 + self.seq.again;
        self.is_running() && !self.is_paused && !self.host_picks && is_last
    }

    /// True if rows that it is about to run are scored: all of its prompt but the last.
    pub fn is_scored(&self) -> bool {
        self.score_prompt.is_some() && self.seq.cached + 1 < self.n_prompt
    }

    /// Takes the logits behind position `at` of the prompt.
    pub fn score(&mut self, at: usize, logits: &[f32]) {
        // A prompt whose pages were taken is computed again.
        if let (Some(n_top), true) = (self.score_prompt, self.scores.len() == at) {
            self.scores.push(LogProbs::of(logits, self.seq.tokens[at + 1], n_top));
        }
    }

    /// True if it is of a larger claim than `other`: priority, then age.
    pub fn goes_before(&self, other: &Self) -> bool {
        (other.priority, self.id) < (self.priority, other.id)
    }
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceRows {
    /// Index of the task.
    pub task: usize,
    pub n: usize,
    pub ask: Ask,
    pub is_prompt: bool,
}
