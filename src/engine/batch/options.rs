//! Options of a batch, and its counters.

use std::time::Duration;

use super::prefix::PrefixStats;

/// Options of a batch: how it schedules its steps. The size of a step, the number of sequences and the pool
/// of pages are [`EngineOptions`](crate::EngineOptions).
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Most rows of prompts in one step; `None` is all that the step has.
    pub chunk: Option<usize>,
    /// Time that a step may take while sequences decode: prompts get as many rows as fit. `None` is 200 ms on
    /// the CPU and 25 ms on a device.
    pub step_time: Option<Duration>,
    /// True if sequences that decode wait while prompts are computed: more tokens a second in all, and pauses
    /// for those who read.
    pub prompts_first: bool,
    /// True if full pages are kept, so that later prompts which begin with the same tokens find them.
    pub prefix_cache: bool,
    /// Bytes of the host's memory for pages of sequences that have to wait: what has room there is copied
    /// back and not computed again. 0 is none.
    pub host_bytes: usize,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { chunk: None, step_time: None, prompts_first: false, prefix_cache: true, host_bytes: 0 }
    }
}

/// Counts of a batch, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Steps that ran.
    pub steps: u64,
    /// Rows of prompts that ran, those included that were computed again.
    pub prompt_rows: u64,
    /// Rows of sequences that decode, drafted tokens left out.
    pub decode_rows: u64,
    /// Drafts of single sequences that steps have verified.
    pub drafts: u64,
    /// Tokens of these: rows as well.
    pub drafted_tokens: u64,
    /// Tokens of these that held.
    pub accepted_tokens: u64,
    /// Number of times that a sequence had to give its pages back before its end.
    pub preemptions: u64,
    /// Sequences that were copied to the host's memory then.
    pub swapped_out: u64,
    /// Sequences that were copied back.
    pub swapped_in: u64,
    /// The prefix cache.
    pub prefix: PrefixStats,
    /// Sequences that hold pages.
    pub running: usize,
    /// Sequences of these that rest ([`Batch::pause`](super::Batch::pause)): others get their pages as soon
    /// as they need them.
    pub resting: usize,
    /// Sequences that wait for pages.
    pub waiting: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Pages without a holder, the prefix cache included.
    pub free_pages: usize,
    /// Slots of recurrent states; none if the model has no such states.
    pub states: usize,
    /// Slots of these that neither a sequence nor the prefix cache holds.
    pub free_states: usize,
}
