//! Statistics of a generation.

use std::time::Duration;

/// Number of drafts whose token at each position was accepted, from the first token on. Later positions than
/// the last are counted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedAt(pub [u64; 16]);

impl AcceptedAt {
    /// Counts an accepted token at a position of its draft.
    pub(super) fn add(&mut self, at: usize) {
        self.0[at.min(self.0.len() - 1)] += 1;
    }

    /// Adds the counts of other drafts.
    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, n)| *sum += n);
    }
}

/// Counters and times of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache or shared with another sequence of the same request.
    pub cached_tokens: usize,
    /// Time from the start until the first token was sampled.
    pub prompt_time: Duration,
    /// Sampled tokens, including the first.
    pub generated_tokens: usize,
    /// Steps that verified drafted tokens.
    pub drafts: usize,
    /// Drafted tokens.
    pub drafted_tokens: usize,
    /// Accepted draft tokens: each is a generated token that needed no step of its own.
    pub accepted_tokens: usize,
    /// The same by position in the draft.
    pub accepted_at: AcceptedAt,
    /// Time from the first token until the last.
    pub generate_time: Duration,
    /// Bytes read by the steps after the prompt: weights and KV cache. In a batch every sequence counts the
    /// weights, although a step reads them once.
    pub generate_bytes: u64,
}

impl Stats {
    /// Adds the statistics of another generation.
    pub fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.prompt_time += other.prompt_time;
        self.generated_tokens += other.generated_tokens;
        self.drafts += other.drafts;
        self.drafted_tokens += other.drafted_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.accepted_at.add_all(&other.accepted_at);
        self.generate_time += other.generate_time;
        self.generate_bytes += other.generate_bytes;
    }

    /// Tokens per second of the prompt.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens as f64, self.prompt_time)
    }

    /// Tokens per second after the prompt. The first token results from the prompt and is not counted.
    pub fn generate_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1) as f64, self.generate_time)
    }

    /// Bytes per second read by the steps after the prompt.
    pub fn generate_bandwidth(&self) -> f64 {
        rate(self.generate_bytes as f64, self.generate_time)
    }

    /// Time from the start until the first token was sampled.
    pub fn time_to_first_token(&self) -> Duration {
        self.prompt_time
    }
}

fn rate(amount: f64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { amount / time.as_secs_f64() }
}
