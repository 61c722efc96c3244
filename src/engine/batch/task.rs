//! A sequence of a batch, and the options of its request.

use std::sync::Arc;

use super::prefix::NodeId;
use crate::decoder::Decoder;
use crate::logprobs::LogProbs;
use crate::options::GenerateOptions;
use crate::pages::PageKinds;
use crate::pool::Pool;
use crate::runner::Ask;
use crate::sequence::Sequence;
use crate::speculate::Speculator;
use crate::stats::Stats;
use crate::vision::picture::PlacedImage;
use sterna_host::clock::Instant;
use sterna_program::AdapterScale;

/// Id of a sequence in a batch. Ids increase and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// A request to a batch.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Options of the generation. A set `cancel` ends the sequence with the next step.
    pub options: GenerateOptions,
    /// Number of sequences that continue the prompt, which is computed once. The seed of each is the given
    /// seed plus its index.
    pub n: usize,
    /// Sequences of higher priority go first; equal priorities share the steps.
    pub priority: i32,
    /// Prompts share cached pages only if their salts are equal.
    pub salt: Arc<str>,
    /// True if the request uses the prefix cache: reads it and adds its pages.
    pub cache_prompt: bool,
    /// Requests the log-probabilities of the prompt's tokens, and of this number of most likely tokens at
    /// each position. The whole prompt is then computed, in steps of at most
    /// [`EngineOptions::outputs`](crate::EngineOptions::outputs) rows.
    pub score_prompt: Option<usize>,
    /// Requests the embedding or score of the prompt instead of generated text
    /// ([`Batch::take_vector`](super::Batch::take_vector)).
    pub pooled: Option<Pooled>,
    /// LoRA adapters of the request; `None` is the engine's default
    /// ([`Engine::default_adapters`](crate::Engine::default_adapters)).
    pub adapters: Option<Vec<AdapterScale>>,
    /// The images among the tokens of the prompt, in order.
    pub images: Vec<PlacedImage>,
}

/// Options of a request for an embedding or score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pooled {
    /// Index of the first token of the second text, for models that distinguish two texts.
    pub second: Option<usize>,
}

impl Request {
    /// A request for an embedding or score: ends with [`StopReason::Limit`](crate::StopReason::Limit) without
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
            adapters: None,
            images: Vec::new(),
        }
    }
}

/// The status of a sequence of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceStatus {
    /// Its id.
    pub id: SeqId,
    /// Its slot, below [`EngineOptions::n_seqs`](crate::EngineOptions::n_seqs); `None` while it waits.
    pub slot: Option<u32>,
    /// Number of prompt tokens.
    pub n_prompt: usize,
    /// Number of its tokens that are in the KV cache.
    pub n_cached: usize,
    /// Counters and times.
    pub stats: Stats,
}

/// The pages of a waiting sequence, swapped out to host memory.
#[derive(Debug)]
pub(super) struct SwappedOut {
    /// Number of positions that the pages cover.
    pub positions: usize,
    /// Kinds of the pages; one entry per page of the sequence.
    pub kinds: Vec<PageKinds>,
    /// Contents of the pages, grouped by position.
    pub bytes: Vec<u8>,
}

/// The next token of a sequence whose constraint is not ready.
#[derive(Debug)]
pub(super) enum Late {
    /// The logits, `[n_vocab]`, that it will be picked from.
    Mask(Vec<f32>),
    /// The token, which the constraint has not followed yet; and its logits, if they are reported.
    Token(u32, Option<Vec<f32>>),
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
    /// Number of top tokens per scored prompt token; `None` if the prompt is not scored.
    pub score_prompt: Option<usize>,
    /// Pooled rows of the prompt, if the request is for an embedding or score.
    pub pool: Option<Pool>,
    /// Scores of the prompt from its second token on, as far as they are known.
    pub scores: Vec<LogProbs>,
    /// Number of each of its images in the keys of the prefix cache; empty if its prompt is not cached.
    pub image_keys: Vec<u32>,
    /// The nodes of its first pages in the prefix cache.
    pub nodes: Vec<NodeId>,
    /// The sequence whose prompt it forks, until the fork is done or that sequence is gone.
    pub fork_of: Option<SeqId>,
    /// True if the host still has to sample the token after the cached ones.
    pub host_picks: bool,
    /// Set if this token waits for the constraint.
    pub late: Option<Late>,
    /// Counter value of its last run: the sequence with the smallest one is next.
    pub turn: u64,
    pub is_cancelled: bool,
    /// True if it is paused: it runs nothing, and keeps its slot and pages.
    pub is_paused: bool,
    /// Its swapped-out pages, while it waits.
    pub swapped_out: Option<SwappedOut>,
    pub stats: Stats,
    /// Time at which it was added.
    pub added: Instant,
    /// Time at which its first token was sampled.
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
        self.is_running() && !self.is_paused && self.late.is_none() && self.seq.missing() > last
    }

    /// True if it has only one row to run, besides repeated rows: a token that was sampled, or is being
    /// sampled.
    pub fn decodes(&self) -> bool {
        let is_last = self.pool.is_none() && self.seq.missing() <= 1 + self.seq.again;
        self.is_running() && !self.is_paused && !self.host_picks && is_last
    }

    /// Forgets the logits that wait for a mask: the row runs again. A token that the constraint follows
    /// stays.
    pub fn forget_logits(&mut self) {
        if !matches!(self.late, Some(Late::Token(..))) {
            (self.host_picks, self.late) = (false, None);
        }
    }

    /// True if the rows that it runs next are scored: all of the prompt but the last.
    pub fn is_scored(&self) -> bool {
        self.score_prompt.is_some() && self.seq.cached + 1 < self.n_prompt
    }

    /// Scores the token after position `at` of the prompt with the logits of `at`.
    pub fn score(&mut self, at: usize, logits: &[f32]) {
        // The prompt of a preempted sequence runs twice; positions that are scored already are skipped.
        if let (Some(n_top), true) = (self.score_prompt, self.scores.len() == at) {
            self.scores.push(LogProbs::of(logits, self.seq.tokens[at + 1], n_top));
        }
    }

    /// True if it is scheduled before `other`: higher priority, or equal priority and older.
    pub fn is_scheduled_before(&self, other: &Self) -> bool {
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
