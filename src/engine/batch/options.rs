//! Options and counters of a batch.

use std::time::Duration;

use super::prefix::PrefixStats;
use crate::stats::AcceptedAt;

/// Options of a batch: how it schedules its steps. The size of a step, the number of sequences and the page
/// pool are set in [`EngineOptions`](crate::EngineOptions).
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Maximum number of prompt rows in one step; `None` is all rows of a step.
    pub chunk: Option<usize>,
    /// Target time of a step while sequences decode: prompts get as many rows as fit. `None` is 200 ms on the
    /// CPU and 25 ms on a device.
    pub step_time: Option<Duration>,
    /// True if decoding waits while prompts are computed. Raises the total throughput, but the output of
    /// running sequences pauses.
    pub prompts_first: bool,
    /// True if full pages are kept for later prompts that begin with the same tokens.
    pub prefix_cache: bool,
    /// Bytes of host memory for the pages of preempted sequences. Pages that fit are copied back later
    /// instead of recomputed. 0 disables swapping.
    pub host_bytes: usize,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { chunk: None, step_time: None, prompts_first: false, prefix_cache: true, host_bytes: 0 }
    }
}

/// Counters and current state of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Steps run.
    pub steps: u64,
    /// Prompt rows run, including recomputed ones.
    pub prompt_rows: u64,
    /// Rows of decoding sequences, without drafted tokens.
    pub decode_rows: u64,
    /// Drafts verified; each belongs to one sequence.
    pub drafts: u64,
    /// Tokens of these drafts. Each is a row, too.
    pub drafted_tokens: u64,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: u64,
    /// The same by position in the draft.
    pub accepted_at: AcceptedAt,
    /// Number of times a sequence was preempted.
    pub preemptions: u64,
    /// Preempted sequences that were swapped out to host memory.
    pub swapped_out: u64,
    /// Sequences that were swapped in again.
    pub swapped_in: u64,
    /// Counters of the prefix cache.
    pub prefix: PrefixStats,
    /// Sequences that hold pages.
    pub running: usize,
    /// Running sequences that are paused ([`Batch::pause`](super::Batch::pause)): other sequences take their
    /// pages when they need them.
    pub resting: usize,
    /// Sequences that wait for pages.
    pub waiting: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Pages that neither a sequence nor the prefix cache uses.
    pub free_pages: usize,
    /// Slots for recurrent states; 0 if the model has none.
    pub states: usize,
    /// Slots for recurrent states that neither a sequence nor the prefix cache uses.
    pub free_states: usize,
}
