//! Statistics of a generation.

use std::time::Duration;

/// Counts and times of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that the prefix cache had, or another sequence with the same prompt.
    pub cached_tokens: usize,
    /// From the start until the first token was picked.
    pub prompt_time: Duration,
    /// Tokens that were picked, the first included.
    pub generated_tokens: usize,
    /// Steps that verified drafted tokens.
    pub drafts: usize,
    /// Tokens that were drafted.
    pub drafted_tokens: usize,
    /// Tokens of these that held: each is a generated token that took no step of its own.
    pub accepted_tokens: usize,
    /// From the first token until the last.
    pub generate_time: Duration,
    /// Bytes that the steps after the prompt read: weights and KV cache. In a batch every sequence counts the
    /// weights, which a step reads once.
    pub generate_bytes: u64,
}

impl Stats {
    /// Adds what another generation took.
    pub fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.prompt_time += other.prompt_time;
        self.generated_tokens += other.generated_tokens;
        self.drafts += other.drafts;
        self.drafted_tokens += other.drafted_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.generate_time += other.generate_time;
        self.generate_bytes += other.generate_bytes;
    }

    /// Tokens a second through the prompt.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens as f64, self.prompt_time)
    }

    /// Tokens a second after the prompt. The first token comes out of the prompt and does not count.
    pub fn generate_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1) as f64, self.generate_time)
    }

    /// Bytes a second that the steps after the prompt read.
    pub fn generate_bandwidth(&self) -> f64 {
        rate(self.generate_bytes as f64, self.generate_time)
    }

    /// From the start until the first token was picked.
    pub fn time_to_first_token(&self) -> Duration {
        self.prompt_time
    }
}

fn rate(amount: f64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { amount / time.as_secs_f64() }
}
