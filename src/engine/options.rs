//! Options of one generation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Error, Grammar, Sampler, SamplerOptions, Speculation};
use sterna_tokenizer::Tokenizer;

/// Options of a generation.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Options of sampling.
    pub sampler: SamplerOptions,
    /// Most tokens to pick; `None` is as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Generation ends before any of these; they may span tokens and are not shown. One that spells a control
    /// token ends it at that token too.
    pub stop: Vec<String>,
    /// True if the stop string that was met is shown as well.
    pub show_stop: bool,
    /// Tokens that end the text as the model's own end-of-text tokens do.
    pub stop_tokens: Vec<u32>,
    /// Fewest tokens: before that no token ends the text, and stop strings are not looked for.
    pub min_tokens: usize,
    /// Forbid the end-of-text and end-of-turn tokens.
    pub ignore_eos: bool,
    /// Go on after an end-of-text token instead of ending there: for measurements.
    pub past_eos: bool,
    /// Also show control tokens as text.
    pub show_special: bool,
    /// Log-probabilities of each picked token and of this many of the most likely ones; `None` is no
    /// log-probabilities, which spares reading a row of logits a token.
    pub logprobs: Option<usize>,
    /// The texts that are allowed; `None` is any. The host then picks the tokens, each of those that may come
    /// next, and the sequence ends where nothing can follow.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// How tokens are drafted, of which a step of the model verifies several; `None` is not at all. The text
    /// is the same. [`EngineOptions::drafts`](super::EngineOptions::drafts) bounds them.
    pub speculation: Option<Arc<dyn Speculation>>,
    /// Looked at between steps; `true` ends the generation.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl GenerateOptions {
    /// The sampler that these options want behind `n_before` tokens.
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
