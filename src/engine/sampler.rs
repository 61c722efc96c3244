//! Sampling of the next token: logit changes (bias, penalties) first, then
//! [`program::sampling`](sterna_program::sampling); on the backend if it supports both.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll};

use super::constraint::{Constraint, ConstraintError};
use sterna_program::sampling::{Scratch, pick};
use sterna_program::{Sampling, TokenChange};

/// Options of sampling. The defaults are the same as in llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 or below always picks the largest.
    pub temperature: f32,
    /// Keeps the `top_k` largest; 0 keeps all.
    pub top_k: u32,
    /// Locally typical sampling; 1 keeps all.
    pub typical_p: f32,
    /// Nucleus sampling; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least `min_p` times the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of every recent token; 0 does nothing.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a recent token once per occurrence; 0 does nothing.
    pub frequency_penalty: f32,
    /// Number of recent tokens, including the prompt; 0 disables penalties.
    pub repeat_last_n: usize,
    /// Token ids and the values added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed; `None` draws a random one.
    pub seed: Option<u64>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            typical_p: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplerOptions {
    /// Options that always pick the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, seed: Some(0), ..Self::default() }
    }
}

/// A sampling option outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{option}: want {want}, got {got}")]
pub struct SamplerError {
    /// Its path, such as `SamplerOptions::top_p`.
    pub option: &'static str,
    /// The range.
    pub want: &'static str,
    /// The value.
    pub got: f32,
}

/// Samples the tokens of one sequence, and tracks its recent tokens.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    seed: u64,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
    scratch: Scratch,
    constraint: Option<Box<dyn Constraint>>,
    /// Tokens that are forbidden at positions before the given one.
    forbidden: Option<(Vec<u32>, usize)>,
}

impl Sampler {
    /// A sampler that has seen no token.
    ///
    /// # Errors
    /// [`SamplerError`] for the first option outside its range.
    pub fn new(options: SamplerOptions) -> Result<Self, SamplerError> {
        check(&options)?;
        let seed = options.seed.unwrap_or_else(random_seed);
        let (recent, counts, scratch) = (VecDeque::new(), HashMap::new(), Scratch::new(0));
        Ok(Self { options, seed, recent, counts, scratch, constraint: None, forbidden: None })
    }

    /// Restricts the sampler to tokens that `constraint` allows.
    pub fn constrained(mut self, constraint: Box<dyn Constraint>) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// Forbids `tokens` at positions before `position`.
    pub fn forbidding(mut self, tokens: Vec<u32>, position: usize) -> Self {
        self.forbidden = Some((tokens, position));
        self
    }

    /// The seed: the given one, or else the random one that was drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Maximum number of logits per row that bias and penalties change; unlimited if there is a constraint.
    pub fn most_changes(&self) -> usize {
        if self.constraint.is_some() {
            return usize::MAX;
        }
        let recent = if self.penalises() { self.options.repeat_last_n } else { 0 };
        let forbidden = self.forbidden.as_ref().map_or(0, |(tokens, _)| tokens.len());
        recent.saturating_add(forbidden + self.options.logit_bias.len())
    }

    /// Appends the changes to the logits of output row `output`, which follow the token at `position - 1`;
    /// each token occurs once. If the row `is_ahead`, that token is not known yet and is not counted.
    pub(super) fn changes(&self, position: usize, is_ahead: bool, output: u32, to: &mut Vec<TokenChange>) {
        let change = |token, count, bias| TokenChange { output, token, count, bias };
        // It will replace the oldest one.
        let is_full = is_ahead && self.recent.len() == self.options.repeat_last_n;
        let oldest = self.recent.front().filter(|_| is_full);
        let first = to.len();
        for (&token, &count) in &self.counts {
            to.push(change(token, count - u32::from(oldest == Some(&token)), 0.0));
        }
        to.extend(self.forbidden_at(position).map(|token| change(token, 0, f32::NEG_INFINITY)));
        to.extend(self.options.logit_bias.iter().map(|&(token, bias)| change(token, 0, bias)));
        to[first..].sort_unstable_by_key(|change| change.token);
        let mut kept = first;
        for i in first..to.len() {
            let next = to[i];
            match to[first..kept].last_mut().filter(|last| last.token == next.token) {
                Some(last) => (last.count, last.bias) = (last.count + next.count, last.bias + next.bias),
                None => {
                    to[kept] = next;
                    kept += 1;
                }
            }
        }
        to.truncate(kept);
    }

    /// Tokens that are forbidden at a position.
    fn forbidden_at(&self, position: usize) -> impl Iterator<Item = u32> {
        let forbidden = self.forbidden.iter().filter(move |(_, from)| position < *from);
        forbidden.flat_map(|(tokens, _)| tokens).copied()
    }

    /// True if the constraint has ended: the text is complete and nothing can follow.
    pub fn is_done(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_done())
    }

    /// Ready if [`choose`](Self::choose) does not wait for the constraint.
    pub(super) fn poll_choose(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.constraint.as_mut().map_or(Poll::Ready(()), |constraint| constraint.poll_mask(context))
    }

    /// Advances the constraint by a [chosen](Self::choose) token, without waiting.
    ///
    /// # Errors
    /// [`ConstraintError`].
    pub(super) fn poll_advance(
        &mut self,
        token: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConstraintError>> {
        let constraint = self.constraint.as_mut();
        constraint.map_or(Poll::Ready(Ok(())), |constraint| constraint.poll_accept(token, context))
    }

    /// True if the result depends on recent tokens.
    pub(super) fn penalises(&self) -> bool {
        let o = &self.options;
        o.repeat_last_n > 0
            && (o.repeat_penalty != 1.0 || o.presence_penalty != 0.0 || o.frequency_penalty != 0.0)
    }

    /// Adds a token of the sequence to the recent ones: a prompt token or a sampled one.
    pub fn accept(&mut self, token: u32) {
        if !self.penalises() {
            return;
        }
        if self.recent.len() == self.options.repeat_last_n
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
        self.recent.push_back(token);
        *self.counts.entry(token).or_default() += 1;
    }

    /// Parameters for the backend's `Sample` stage to sample the token at `position`, from logits
    /// [changed](Self::most_changes) in the same way as in [`pick`](Self::pick).
    pub fn sampling(&self, position: usize) -> Sampling {
        let o = &self.options;
        let penalties = match self.penalises() {
            true => (o.repeat_penalty, o.presence_penalty, o.frequency_penalty),
            false => (1.0, 0.0, 0.0),
        };
        let (repeat_penalty, presence_penalty, frequency_penalty) = penalties;
        Sampling {
            temperature: o.temperature,
            top_k: o.top_k,
            typical_p: o.typical_p,
            top_p: o.top_p,
            min_p: o.min_p,
            seed: self.seed,
            counter: position as u64,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
        }
    }

    /// Samples the token at `position` from `logits`, `[n_vocab]`. The constraint, bias and penalties change
    /// the logits in place. Advances the constraint by the token.
    ///
    /// # Errors
    /// [`ConstraintError`], only with a constraint.
    ///
    /// # Panics
    /// If `logits` is empty.
    pub fn pick(&mut self, logits: &mut [f32], position: usize) -> Result<u32, ConstraintError> {
        let token = self.choose(logits, position)?;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        Ok(token)
    }

    /// [`pick`](Self::pick) that does not advance the constraint.
    pub(super) fn choose(&mut self, logits: &mut [f32], position: usize) -> Result<u32, ConstraintError> {
        let Some(mut constraint) = self.constraint.take() else { return Ok(self.pick_any(logits, position)) };
        let chosen = self.choose_allowed(&mut *constraint, logits, position);
        self.constraint = Some(constraint);
        chosen
    }

    fn choose_allowed(
        &mut self,
        constraint: &mut dyn Constraint,
        logits: &mut [f32],
        position: usize,
    ) -> Result<u32, ConstraintError> {
        let mask = constraint.mask()?;
        mask.apply(logits);
        let token = self.pick_any(logits, position);
        // If every logit is minus infinity or NaN, the result is arbitrary.
        match !mask.allows(token) || logits[token as usize] == f32::NEG_INFINITY {
            true => Err(ConstraintError::NoToken),
            false => Ok(token),
        }
    }

    fn pick_any(&mut self, logits: &mut [f32], position: usize) -> u32 {
        let sampling = self.sampling(position);
        let forbidden = self.forbidden_at(position).map(|token| (token, 0, f32::NEG_INFINITY));
        let bias = self.options.logit_bias.iter().map(|&(token, bias)| (token, 0, bias));
        let recent = self.counts.iter().map(|(&token, &count)| (token, count, 0.0));
        for (token, count, bias) in forbidden.chain(bias).chain(recent) {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = sampling.changed(*logit, count, bias);
            }
        }
        pick(logits, &sampling, &mut self.scratch)
    }
}

/// Checks that all options are in range.
///
/// # Errors
/// The first option out of range.
pub(super) fn check(o: &SamplerOptions) -> Result<(), SamplerError> {
    let finite = |option, got: f32| match got.is_finite() {
        true => Ok(()),
        false => Err(SamplerError { option, want: "a finite number", got }),
    };
    let share = |option, got: f32| match (0.0..=1.0).contains(&got) {
        true => Ok(()),
        false => Err(SamplerError { option, want: "0 to 1", got }),
    };
    finite("SamplerOptions::temperature", o.temperature)?;
    share("SamplerOptions::typical_p", o.typical_p)?;
    share("SamplerOptions::top_p", o.top_p)?;
    share("SamplerOptions::min_p", o.min_p)?;
    if !(o.repeat_penalty.is_finite() && o.repeat_penalty > 0.0) {
        return Err(SamplerError {
            option: "SamplerOptions::repeat_penalty",
            want: "above 0",
            got: o.repeat_penalty,
        });
    }
    finite("SamplerOptions::presence_penalty", o.presence_penalty)?;
    finite("SamplerOptions::frequency_penalty", o.frequency_penalty)?;
    match o.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
        Some(&(_, got)) => {
            Err(SamplerError { option: "SamplerOptions::logit_bias", want: "a number below infinity", got })
        }
        None => Ok(()),
    }
}

/// Draws 32 bits, short enough to type again, from the platform's source of randomness.
fn random_seed() -> u64 {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("a platform with a source of randomness");
    u32::from_le_bytes(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(change: impl FnOnce(&mut SamplerOptions)) -> Sampler {
        let mut options = SamplerOptions::greedy();
        change(&mut options);
        Sampler::new(options).unwrap()
    }

    #[test]
    fn repeat_penalty_divides_positive_and_multiplies_negative_logits() {
        let mut sampler = greedy(|o| o.repeat_penalty = 2.0);
        [0, 1, 1].into_iter().for_each(|token| sampler.accept(token));
        let mut logits = [4.0, -1.0, 3.0, 0.5];
        assert_eq!(sampler.pick(&mut logits, 0), Ok(2));
        assert_eq!(logits, [2.0, -2.0, 3.0, 0.5]);
    }

    #[test]
    fn frequency_counts_and_presence_does_not() {
        let mut sampler = greedy(|o| {
            o.frequency_penalty = 0.5;
            o.presence_penalty = 0.25;
        });
        [0, 1, 1].into_iter().for_each(|token| sampler.accept(token));
        let mut logits = [1.0, 1.0, 1.0];
        sampler.pick(&mut logits, 0).unwrap();
        assert_eq!(logits, [0.25, -0.25, 1.0]);
    }

    #[test]
    fn only_the_last_n_tokens_are_recent() {
        let mut sampler = greedy(|o| {
            o.presence_penalty = 1.0;
            o.repeat_last_n = 2;
        });
        [0, 1, 2, 2].into_iter().for_each(|token| sampler.accept(token));
        let mut logits = [0.0; 3];
        sampler.pick(&mut logits, 0).unwrap();
        assert_eq!(logits, [0.0, 0.0, -1.0]);
        assert_eq!(sampler.recent.len(), 2);
    }

    #[test]
    fn bias_moves_a_token_and_minus_infinity_forbids_it() {
        let mut sampler = greedy(|o| o.logit_bias = vec![(0, f32::NEG_INFINITY), (2, 5.0), (99, 1.0)]);
        assert_eq!(sampler.most_changes(), 3);
        assert_eq!(sampler.pick(&mut [9.0, 1.0, 0.0], 0), Ok(2));
    }

    #[test]
    fn options_outside_their_range_are_refused_by_name() {
        let bad = |change: fn(&mut SamplerOptions)| {
            let mut options = SamplerOptions::default();
            change(&mut options);
            Sampler::new(options).map(|_| ()).unwrap_err().option
        };
        assert_eq!(bad(|o| o.temperature = f32::NAN), "SamplerOptions::temperature");
        assert_eq!(bad(|o| o.top_p = 1.5), "SamplerOptions::top_p");
        assert_eq!(bad(|o| o.min_p = -0.1), "SamplerOptions::min_p");
        assert_eq!(bad(|o| o.typical_p = f32::INFINITY), "SamplerOptions::typical_p");
        assert_eq!(bad(|o| o.repeat_penalty = 0.0), "SamplerOptions::repeat_penalty");
        assert_eq!(bad(|o| o.logit_bias = vec![(1, f32::NAN)]), "SamplerOptions::logit_bias");
    }

    #[test]
    fn a_plain_sampler_leaves_the_logits_to_the_backend() {
        let sampler = Sampler::new(SamplerOptions::default()).unwrap();
        assert_eq!(sampler.most_changes(), 0);
        assert!(sampler.seed() <= u64::from(u32::MAX));
    }
}
