//! Speculative decoding: likely next tokens are drafted cheaply, and one step of the model verifies several.
//!
//! Each row of such a step samples its own token, from its own logits and with the random number of its
//! position. A drafted token is accepted if the row before it sampled the same token. So the text is the same
//! as without drafts, whatever they are, and for random sampling this is rejection sampling: a drafted token
//! is accepted with the probability that the model gives it. A [`Drafter`] does not know the target model;
//! [`Speculator`] decides how many of its tokens are worth a row.

mod ngram;

use std::fmt::Debug;
use std::time::Duration;

use sterna_program::sampling::uniform;

use super::error::Error;
use super::stats::Stats;

pub use self::ngram::NgramLookup;

/// A method of drafting. Sequences share it; each [starts](Self::start) its own drafter.
pub trait Speculation: Debug + Send + Sync {
    /// Creates the drafter of a sequence.
    ///
    /// # Errors
    /// Any error of the method.
    fn start(&self) -> Result<Box<dyn Drafter>, Error>;

    /// Time of an additional row in a step, relative to a step of one row; `None` measures it.
    fn row_cost(&self) -> Option<f64> {
        None
    }

    /// Minimum number of tokens per draft, at least 1: shorter drafts are discarded.
    fn least(&self) -> usize {
        1
    }

    /// Options of drafts by the model's own MTP block. The engine makes these itself, without
    /// [`Drafter::draft`].
    fn mtp(&self) -> Option<MtpDrafts> {
        None
    }

    /// Probability with which a session accepts a drafted token, regardless of the model: to measure the time
    /// of drafts on a model with random weights. The text is meaningless then.
    fn acceptance(&self) -> Option<f64> {
        None
    }
}

/// Drafts by the model's own MTP block ([`EngineOptions::mtp`](super::EngineOptions::mtp)): the most likely
/// tokens, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct MtpDrafts {
    /// Maximum number of tokens per draft.
    pub max: usize,
    /// Minimum number of tokens per draft; shorter drafts are discarded.
    pub min: usize,
    /// Minimum probability of a drafted token; the draft ends before a less likely one.
    pub p_min: f32,
    /// As [`Speculation::row_cost`].
    pub row_cost: Option<f64>,
    /// As [`Speculation::acceptance`].
    pub acceptance: Option<f64>,
}

impl MtpDrafts {
    /// Default of [`max`](Self::max), the same as in llama.cpp.
    pub const MAX: usize = 3;
}

/// Drafts tokens of one sequence.
pub trait Drafter: Debug + Send {
    /// Appends up to `most` likely next tokens after `tokens` to `draft`, or none. From call to call,
    /// `tokens` only grows.
    ///
    /// # Errors
    /// Any error of the drafter. The sequence's next step fails with it.
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) -> Result<(), Error>;

    /// True if it probably has a draft after `tokens` and one more token: only then a device waits for the
    /// host to draft.
    fn is_ready(&mut self, tokens: &[u32]) -> bool;
}

/// Drafts for one sequence, as many tokens as pay off.
#[derive(Debug)]
pub(super) struct Speculator {
    drafter: Box<dyn Drafter>,
    /// Set if the MTP block drafts instead of `drafter`.
    pub mtp: Option<MtpDrafts>,
    row_cost: Option<f64>,
    /// As [`Speculation::least`].
    least: usize,
    /// Acceptance probability of a drafted token, as a moving average.
    hits: f64,
    /// Number of tokens that `hits` has seen.
    n_seen: usize,
    /// Steps since the last draft.
    idle: usize,
    /// True if the last draft was as short as a probe and was accepted: the next step drafts, too.
    is_promising: bool,
}

impl Speculator {
    /// Least weight of the newest token in `hits`. The first ones weigh more: `hits` begins as an average of
    /// one token.
    const NEWEST: f64 = 1.0 / 8.0;
    /// If drafts do not pay off, a probe, the shortest draft, is made after at least this number of steps.
    const PROBE: usize = 16;
    /// The pause is also at least the cost of a row times this.
    const PROBE_COSTS: f64 = 128.0;

    pub fn start(speculation: &dyn Speculation) -> Result<Self, Error> {
        Ok(Self {
            drafter: speculation.start()?,
            mtp: speculation.mtp(),
            row_cost: speculation.row_cost(),
            least: speculation.least(),
            hits: 0.7,
            n_seen: 0,
            idle: 0,
            is_promising: false,
        })
    }

    /// Number of drafted tokens that maximises throughput. With a sequence's own row, `n` of them give
    /// `1 + hits + hits^2 + ...` tokens in the time `1 + n * cost`.
    fn most(&self, cost: &RowCost, n_seqs: usize) -> usize {
        if self.row_cost.is_none() && !cost.is_known() {
            return 0;
        }
        let is_measured = self.row_cost.is_none() && cost.is_measured;
        let cost = cost.with_others(self.row_cost, n_seqs);
        let (mut n, mut tokens, mut time, mut holds) = (0, 1.0, 1.0, self.hits);
        while holds * time > cost * tokens && n < 1 << 10 {
            (n, tokens, time, holds) = (n + 1, tokens + holds, time + cost, holds * self.hits);
        }
        match n {
            0 if self.is_promising || self.idle >= self.pause(cost, n_seqs) => self.least,
            0 => 0,
            // The first draft shows what a row costs.
            _ if is_measured && self.n_seen == 0 => self.least,
            n => n,
        }
    }

    /// Number of steps between two probes.
    fn pause(&self, cost: f64, n_seqs: usize) -> usize {
        Self::PROBE.max((Self::PROBE_COSTS * cost / n_seqs as f64) as usize)
    }

    /// True if the sequence, one of `n_seqs` in its step, should wait for its next token and draft after it.
    pub fn waits(&mut self, tokens: &[u32], cost: &RowCost, n_seqs: usize) -> bool {
        self.idle += 1;
        self.most(cost, n_seqs) > 0 && self.drafter.is_ready(tokens)
    }

    /// Drafts up to `most` tokens after `tokens`, fewer if they do not pay off in a step of `n_seqs`
    /// sequences.
    pub fn draft(
        &mut self,
        tokens: &[u32],
        most: usize,
        cost: &RowCost,
        n_seqs: usize,
        draft: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let most = self.wanted(most, cost, n_seqs);
        draft.clear();
        if most > 0 {
            self.drafter.draft(tokens, most, draft)?;
            draft.truncate(most);
        }
        self.drafted(draft.len());
        Ok(())
    }

    /// Number of tokens to draft now: `most`, or fewer if they do not pay off in a step of `n_seqs`
    /// sequences.
    pub fn wanted(&mut self, most: usize, cost: &RowCost, n_seqs: usize) -> usize {
        self.idle += 1;
        most.min(self.mtp.map_or(most, |mtp| mtp.max)).min(self.most(cost, n_seqs))
    }

    /// Records that `n` tokens were drafted.
    pub fn drafted(&mut self, n: usize) {
        if n > 0 {
            self.idle = 0;
        }
    }

    /// Records the result of a step: `n_held` of `n_drafted` tokens were accepted.
    pub fn verified(&mut self, n_drafted: usize, n_held: usize) {
        for held in std::iter::repeat_n(1.0, n_held).chain((n_held < n_drafted).then_some(0.0)) {
            self.n_seen += 1;
            self.hits += Self::NEWEST.max(1.0 / (self.n_seen + 1) as f64) * (held - self.hits);
        }
        if n_drafted > 0 {
            self.is_promising = n_drafted == self.least && n_held == n_drafted;
        }
    }
}

/// Time of an additional row in a step, relative to the step. Measured on the CPU, where it depends on the
/// model and the threads.
#[derive(Clone, Debug)]
pub(super) struct RowCost {
    is_measured: bool,
    share: f64,
    /// Seconds of a step without drafts.
    plain: Option<f64>,
    /// Steps with drafts since the last step without.
    n_drafting: usize,
    /// Number of steps that `share` has seen.
    n_seen: usize,
}

impl RowCost {
    /// Least weight of the newest step. The first ones weigh more: `share` begins as an average of one step.
    const NEWEST: f64 = 0.25;
    /// Number of steps with drafts after which a step without drafts is measured again.
    const MAX_DRAFTING: usize = 64;

    /// On a device a few rows take little more time than one. Drafting there must not depend on a clock,
    /// because sums depend on the number of rows.
    pub fn new(is_device: bool) -> Self {
        let share = if is_device { 0.05 } else { 0.1 };
        Self { is_measured: !is_device, share, plain: None, n_drafting: 0, n_seen: 0 }
    }

    /// False if a step without drafts has to be measured first.
    fn is_known(&self) -> bool {
        !self.is_measured || self.plain.is_some() && self.n_drafting < Self::MAX_DRAFTING
    }

    /// The cost in a step of `n_seqs` sequences, only one of which gains from its drafts. `known` is relative
    /// to a step of one row; the measured cost is relative to the current step.
    fn with_others(&self, known: Option<f64>, n_seqs: usize) -> f64 {
        let n = n_seqs.max(1) as f64;
        match known.or_else(|| (!self.is_measured).then_some(self.share)) {
            Some(share) => n * share / (1.0 + share * (n - 1.0)),
            None => n * self.share,
        }
    }

    /// Records the time of a step with `n_drafted` drafted rows.
    pub fn add(&mut self, n_drafted: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        let newer = |old: f64, new: f64, weight: f64| old + weight * (new - old);
        match (n_drafted, self.plain) {
            (0, plain) => {
                self.plain = Some(plain.map_or(seconds, |plain| newer(plain, seconds, Self::NEWEST)));
                self.n_drafting = 0;
            }
            (n, Some(plain)) if self.is_measured => {
                let share = (seconds - plain) / (n as f64 * plain.max(1e-9));
                self.n_seen += 1;
                // Outliers are limited: a draft model may have had to catch up, or other programs may have
                // been running.
                let most = if self.n_seen == 1 { 0.5 } else { 2.0 * self.share + 0.02 };
                let weight = Self::NEWEST.max(1.0 / (self.n_seen + 1) as f64);
                self.share = newer(self.share, share.clamp(0.01, most), weight);
                self.n_drafting += 1;
            }
            _ => {}
        }
    }
}

/// Drafts for a sequence that runs alone.
#[derive(Debug)]
pub(super) struct OwnDrafts {
    pub speculator: Speculator,
    pub cost: RowCost,
    /// Counters of drafts only.
    pub stats: Stats,
    /// As [`Speculation::acceptance`], and the number of tokens that it has decided.
    acceptance: Option<(f64, u64)>,
}

impl OwnDrafts {
    pub fn start(speculation: &dyn Speculation, is_device: bool) -> Result<Self, Error> {
        let speculator = Speculator::start(speculation)?;
        let acceptance = speculation.acceptance().map(|p| (p, 0));
        Ok(Self { speculator, cost: RowCost::new(is_device), stats: Stats::default(), acceptance })
    }

    /// The token to continue with after the model picked `picked` where `drafted` was drafted, if acceptance
    /// does not depend on the model.
    pub fn forced(&mut self, picked: u32, drafted: u32) -> u32 {
        let Some((p, n)) = &mut self.acceptance else { return picked };
        *n += 1;
        match uniform(0, *n) < *p {
            true => drafted,
            false if picked != drafted => picked,
            false => u32::from(drafted == 0),
        }
    }

    /// As [`Speculator::waits`].
    pub fn waits(&mut self, tokens: &[u32]) -> bool {
        self.speculator.waits(tokens, &self.cost, 1)
    }

    /// Records a step that took `time` and verified `n_drafted` tokens, of which `n_held` were accepted.
    pub fn count(&mut self, n_drafted: usize, n_held: usize, time: Duration) {
        self.cost.add(n_drafted, time);
        self.speculator.verified(n_drafted, n_held);
        self.stats.drafts += usize::from(n_drafted > 0);
        self.stats.drafted_tokens += n_drafted;
        self.stats.accepted_tokens += n_held;
        (0..n_held).for_each(|at| self.stats.accepted_at.add(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speculator() -> Speculator {
        Speculator::start(&NgramLookup::default()).unwrap()
    }

    #[test]
    fn drafts_grow_while_they_hold_and_stop_where_they_do_not_pay() {
        let (mut own, mut cost) = (speculator(), RowCost::new(false));
        assert_eq!(own.most(&cost, 1), 0, "a step without drafts comes first");
        cost.add(0, Duration::from_millis(10));
        assert_eq!(own.most(&cost, 1), 1, "the first draft is short");
        own.verified(1, 1);
        assert_eq!(own.most(&cost, 1), 7);
        own.verified(30, 30);
        assert!(own.most(&cost, 1) > 10 && own.most(&RowCost::new(true), 1) > own.most(&cost, 1));
        for _ in 0..30 {
            own.verified(3, 0);
        }
        assert_eq!(own.most(&cost, 1), 0);
        own.idle = 19;
        assert_eq!(own.most(&cost, 1), 1, "now and then one is tried");
        (own.idle, own.row_cost) = (0, Some(0.3));
        assert_eq!(own.most(&cost, 1), 0);
        own.verified(1, 1);
        assert_eq!(own.most(&cost, 1), 1, "and one more after a probe that held");
        own.verified(1, 0);
        assert_eq!(own.most(&cost, 1), 0);
    }

    /// Otherwise drafts would never be long enough for a minimum.
    #[test]
    fn first_drafts_and_probes_have_the_minimum_of_tokens() {
        let drafts = MtpDrafts { max: 4, min: 2, p_min: 0.0, row_cost: None, acceptance: None };
        let (mut own, mut cost) = (Speculator::start(&drafts).unwrap(), RowCost::new(false));
        cost.add(0, Duration::from_millis(10));
        assert_eq!(own.most(&cost, 1), 2);
        (0..30).for_each(|_| own.verified(2, 0));
        assert_eq!(own.most(&cost, 1), 0);
        own.idle = 19;
        assert_eq!(own.most(&cost, 1), 2);
    }

    /// Tokens per time of a sequence that generates `n` tokens, relative to one without drafts, where drafts
    /// have up to 3 tokens, a drafted one is accepted with a probability that depends on its position, and a
    /// row with its draft costs `cost` of a step.
    fn speed(n: usize, cost: f64, accepted: impl Fn(usize) -> f64, seed: u64) -> f64 {
        let (mut own, mut cost_of_row) = (speculator(), RowCost::new(false));
        let (mut at, mut time, mut draw) = (0, 0.0, 0);
        while at < n {
            let n_drafted = own.wanted(3.min(n - at - 1), &cost_of_row, 1);
            own.drafted(n_drafted);
            let holds = |i: &usize| {
                draw += 1;
                uniform(seed, draw) < accepted(at + i)
            };
            let n_held = (0..n_drafted).take_while(holds).count();
            let step = 1.0 + cost * n_drafted as f64;
            (at, time) = (at + 1 + n_held, time + step);
            cost_of_row.add(n_drafted, Duration::from_secs_f64(step));
            own.verified(n_drafted, n_held);
        }
        n as f64 / time
    }

    /// The mean over seeds.
    fn mean_speed(n: usize, cost: f64, accepted: impl Fn(usize) -> f64) -> f64 {
        (0..32).map(|seed| speed(n, cost, &accepted, seed)).sum::<f64>() / 32.0
    }

    /// Texts that nothing predicts lose little. 0.25 and 0.45 are the costs of a row and its draft with the
    /// first tokens of a head and with the whole head, for a model of 4B on two cores.
    #[test]
    fn drafts_that_never_hold_cost_little() {
        for (cost, least) in [(0.05, 0.98), (0.1, 0.98), (0.25, 0.98), (0.45, 0.97)] {
            for n in [64, 384] {
                let speed = mean_speed(n, cost, |_| 0.0);
                assert!(speed >= least, "{n} tokens at {cost}: {speed}");
            }
        }
    }

    /// Drafts that hold come near the best fixed length, and a text that becomes predictable is noticed.
    #[test]
    fn drafts_that_hold_pay() {
        for (cost, p) in [(0.05, 0.6), (0.1, 0.6), (0.1, 0.9), (0.25, 0.8), (0.45, 0.8)] {
            let of_length = |n: i32| (1.0 - f64::powi(p, n + 1)) / (1.0 - p) / (1.0 + f64::from(n) * cost);
            let best = (0..=3).map(of_length).fold(0.0, f64::max);
            let speed = mean_speed(384, cost, |_| p);
            assert!(speed >= 0.95 * best, "{p} at {cost}: {speed} of {best}");
        }
        let turns = mean_speed(600, 0.25, |at| if at < 200 { 0.0 } else { 0.9 });
        assert!(turns >= 1.3, "{turns}");
    }

    #[test]
    fn draft_is_shorter_with_many_sequences() {
        let (mut own, cost) = (speculator(), RowCost::new(true));
        own.verified(30, 30);
        let most = [1, 4, 64].map(|n_seqs| own.most(&cost, n_seqs));
        assert!(most[0] > most[1] && most[1] > most[2] && most[2] > 0, "{most:?}");
        // If a row takes as long as a step of one row, nothing is left to gain next to seven others.
        own.row_cost = Some(1.0);
        assert_eq!(own.most(&cost, 8), 0);
    }

    #[test]
    fn rows_cost_what_was_measured() {
        let mut cost = RowCost::new(false);
        for _ in 0..40 {
            cost.add(0, Duration::from_millis(10));
            cost.add(4, Duration::from_millis(14));
        }
        assert!(
            (cost.with_others(None, 1) - 0.1).abs() < 0.01 && (cost.with_others(None, 3) - 0.3).abs() < 0.03
        );
        // One slow step changes little; many do. Occasionally a step runs without drafts.
        cost.add(1, Duration::from_secs(1));
        assert!(cost.with_others(None, 1) < 0.2);
        (0..RowCost::MAX_DRAFTING).for_each(|_| cost.add(1, Duration::from_millis(30)));
        assert!(cost.with_others(None, 1) > 1.9 && !cost.is_known());
        cost.add(0, Duration::from_millis(10));
        assert!(cost.is_known());
    }
}
