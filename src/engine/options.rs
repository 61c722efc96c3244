//! Options of one generation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::constraint::Grammar;
use super::error::Error;
use super::sampler::{Sampler, SamplerOptions};
use super::speculate::Speculation;
use sterna_tokenizer::Tokenizer;

/// Options of a generation.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Options of sampling.
    pub sampler: SamplerOptions,
    /// Maximum number of tokens to generate; `None` is as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Generation ends before any of these strings; they may span tokens and are not shown. A stop string
    /// that is the text of a control token also ends it at that token.
    pub stop: Vec<String>,
    /// True if the stop string that was found is shown, too.
    pub show_stop: bool,
    /// Additional tokens that end the text, like the model's end-of-text tokens.
    pub stop_tokens: Vec<u32>,
    /// Minimum number of tokens: before that, neither tokens nor stop strings end the text.
    pub min_tokens: usize,
    /// Forbids end-of-text and end-of-turn tokens.
    pub ignore_eos: bool,
    /// Continues after an end-of-text token instead of ending there: for measurements.
    pub past_eos: bool,
    /// Also shows control tokens as text.
    pub show_special: bool,
    /// Number of most likely tokens whose log-probabilities are returned besides the sampled token's; `None`
    /// returns no log-probabilities, which saves reading a row of logits per token.
    pub logprobs: Option<usize>,
    /// Grammar of the allowed texts; `None` allows all. The host then samples the tokens from the allowed
    /// ones, and the sequence ends where nothing can follow.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Source of drafts for speculative decoding; a step of the model verifies several drafted tokens. `None`
    /// disables it. The text is the same. [`EngineOptions::drafts`](super::EngineOptions::drafts) limits the
    /// drafts.
    pub speculation: Option<Arc<dyn Speculation>>,
    /// Checked between steps; `true` ends the generation.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl GenerateOptions {
    /// The sampler for these options, for tokens after the first `n_before`.
    pub(super) fn sampler(&self, tokenizer: &Tokenizer, n_before: usize) -> Result<Sampler, Error> {
        let mut options = self.sampler.clone();
        if self.ignore_eos {
            options.logit_bias.extend(tokenizer.eog().map(|id| (id, f32::NEG_INFINITY)));
        }
        let mut sampler = Sampler::new(options)?;
        if self.min_tokens > 0 {
            let ends = tokenizer.eog().chain(self.stop_tokens.iter().copied()).collect();
            sampler = sampler.forbidding(ends, n_before.saturating_add(self.min_tokens));
        }
        Ok(match &self.grammar {
            Some(grammar) => sampler.constrained(grammar.start()),
            None => sampler,
        })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}
