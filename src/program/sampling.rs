//! Sampling of a token from logits: the definition of the `Sample` stage, used by the CPU backend and by the
//! engine when it samples on the host.
//!
//! The filters run in llama.cpp's order: top-k, typical, top-p, min-p, temperature, draw. Each uses the
//! probabilities of the tokens that are left, at temperature 1.

use std::cmp::Ordering;

/// Sampling parameters of one row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 or below picks the largest logit (the lowest id among equals).
    pub temperature: f32,
    /// Keeps the `top_k` largest; 0 keeps all.
    pub top_k: u32,
    /// Locally typical sampling: keeps the most typical tokens up to this mass; 1 keeps all.
    pub typical_p: f32,
    /// Keeps the smallest set of largest tokens with at least this mass; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least `min_p` times the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Index of the random number: the position of the token to sample.
    pub counter: u64,
    /// Divides positive and multiplies negative logits of recent tokens; 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of every recent token; 0 does nothing.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a recent token once per occurrence; 0 does nothing.
    pub frequency_penalty: f32,
}

/// A change of a token's logit before sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenChange {
    /// Output row.
    pub output: u32,
    /// Token id; `n_vocab` or above changes nothing.
    pub token: u32,
    /// Number of occurrences of the token among the recent ones.
    pub count: u32,
    /// Added to its logit; minus infinity forbids the token.
    pub bias: f32,
}

impl Sampling {
    /// Always the largest logit.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        typical_p: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        counter: 0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
    };

    /// True if it picks the largest logit, regardless of the other filters. A NaN temperature is treated as
    /// greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature <= 0.0 || self.top_k == 1
    }

    /// The changed logit: with the bias, and with penalties if the token occurred.
    pub fn changed(&self, logit: f32, count: u32, bias: f32) -> f32 {
        let logit = logit + bias;
        if count == 0 {
            return logit;
        }
        let logit = if logit <= 0.0 { logit * self.repeat_penalty } else { logit / self.repeat_penalty };
        logit - (count as f32 * self.frequency_penalty + self.presence_penalty)
    }
}

/// Candidates of one row; allocated once, so that sampling does not allocate.
#[derive(Debug)]
pub struct Scratch {
    candidates: Vec<Candidate>,
}

impl Scratch {
    /// Reserves space for rows of up to `n_vocab` logits.
    pub fn new(n_vocab: usize) -> Self {
        Self { candidates: Vec::with_capacity(n_vocab) }
    }

    /// Uses memory of the caller.
    pub fn within(candidates: Vec<Candidate>) -> Self {
        Self { candidates }
    }
}

/// A token that may be sampled.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    logit: f32,
    /// Probability, or a filter's score, among the remaining candidates.
    p: f32,
    id: u32,
}

/// Samples one token id. A NaN logit is treated as minus infinity; if all are, returns 0.
///
/// # Panics
/// If `logits` is empty.
pub fn pick(logits: &[f32], s: &Sampling, scratch: &mut Scratch) -> u32 {
    let best = argmax(logits);
    let max = logits[best as usize];
    // With an infinite maximum there is no distribution to draw from.
    if !max.is_finite() || s.is_greedy() {
        return best;
    }

    let kept = &mut scratch.candidates;
    kept.clear();
    let n = logits.len();
    let top_k = if s.top_k == 0 { n } else { (s.top_k as usize).min(n) };
    if top_k < n {
        largest(logits, top_k, kept);
    } else {
        kept.extend(logits.iter().enumerate().map(|(id, &logit)| candidate(id, logit)));
    }
    if s.typical_p < 1.0 {
        keep_typical(kept, max, s.typical_p);
    }
    if s.top_p < 1.0 {
        keep_top_p(kept, s.top_p);
    }
    if s.min_p > 0.0 {
        let least = max_logit(kept) + s.min_p.min(1.0).ln();
        kept.retain(|c| c.logit >= least);
    }

    let max = max_logit(kept);
    let mut total = 0.0f64;
    for c in kept.iter_mut() {
        c.p = ((c.logit - max) / s.temperature).exp();
        total += f64::from(c.p);
    }
    let mut left = uniform(s.seed, s.counter) * total;
    for c in kept.iter() {
        left -= f64::from(c.p);
        if left < 0.0 {
            return c.id;
        }
    }
    // Rounding can leave a little of the mass; it belongs to the last candidate with a nonzero probability.
    kept.iter().rev().find(|c| c.p > 0.0).map_or(best, |c| c.id)
}

/// Id of the largest logit, the lowest one among equals; NaN is never the largest.
///
/// # Panics
/// If `logits` is empty.
pub fn argmax(logits: &[f32]) -> u32 {
    assert!(!logits.is_empty(), "no logits to pick from");
    // Eight independent running maxima let the compiler vectorise; the id is found afterwards.
    let mut lanes = [f32::NEG_INFINITY; 8];
    let chunks = logits.chunks_exact(8);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let max =
        lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max });
    logits.iter().position(|&logit| logit == max).unwrap_or(0) as u32
}

/// True if no token can be sampled sensibly: a logit is NaN or infinite, or all are minus infinity (single
/// ones may be). Either the model or the backend is broken then.
pub fn is_broken(logits: &[f32]) -> bool {
    let (mut broken, mut numbers) = (0, 0);
    for &logit in logits {
        broken |= u32::from(logit.is_nan()) | u32::from(logit == f32::INFINITY);
        numbers |= u32::from(logit > f32::NEG_INFINITY);
    }
    broken != 0 || numbers == 0
}

/// The `counter`-th number of a seeded generator, in [0, 1): two rounds of the splitmix64 finaliser. Random
/// access: no number depends on the ones before it.
pub fn uniform(seed: u64, counter: u64) -> f64 {
    fn mix(mut z: u64) -> u64 {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    (mix(mix(seed) ^ counter) >> 11) as f64 / (1u64 << 53) as f64
}

fn candidate(id: usize, logit: f32) -> Candidate {
    Candidate { logit: if logit.is_nan() { f32::NEG_INFINITY } else { logit }, p: 0.0, id: id as u32 }
}

/// Larger logits first, lower ids first among equals: a total order, so that results do not depend on the
/// sort algorithm.
fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Collects the `k` largest logits, sorted.
fn largest(logits: &[f32], k: usize, kept: &mut Vec<Candidate>) {
    // Most logits are below the k-th largest seen so far, so they cost one comparison.
    let room = (4 * k).clamp(k + 1, logits.len().max(k + 1));
    let mut least = f32::NEG_INFINITY;
    kept.extend(logits.iter().take(k).enumerate().map(|(id, &logit)| candidate(id, logit)));
    for (id, &logit) in logits.iter().enumerate().skip(k) {
        if logit > least {
            kept.push(candidate(id, logit));
            if kept.len() == room {
                kept.select_nth_unstable_by(k - 1, by_logit);
                kept.truncate(k);
                least = kept[k - 1].logit;
            }
        }
    }
    kept.sort_unstable_by(by_logit);
    kept.truncate(k);
}

fn max_logit(kept: &[Candidate]) -> f32 {
    kept.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit))
}

fn softmax(kept: &mut [Candidate]) {
    let max = max_logit(kept);
    let mut total = 0.0f64;
    for c in kept.iter_mut() {
        c.p = (c.logit - max).exp();
        total += f64::from(c.p);
    }
    for c in kept.iter_mut() {
        c.p = (f64::from(c.p) / total) as f32;
    }
}

/// Locally typical sampling (Meister et al. 2022): keeps the tokens whose surprise is nearest the entropy.
fn keep_typical(kept: &mut Vec<Candidate>, max: f32, mass: f32) {
    softmax(kept);
    kept.retain(|c| c.p > 0.0);
    let log_total = kept.iter().find(|c| c.logit == max).map_or(0.0, |c| -c.p.ln());
    let entropy: f64 = kept.iter().map(|c| f64::from(c.p) * f64::from(max + log_total - c.logit)).sum();
    let off = |c: &Candidate| (max + log_total - c.logit - entropy as f32).abs();
    kept.sort_unstable_by(|a, b| off(a).total_cmp(&off(b)).then(a.id.cmp(&b.id)));
    let n = mass_prefix(kept, mass);
    kept.truncate(n);
    kept.sort_unstable_by(by_logit);
}

/// Nucleus sampling: keeps the largest tokens that together reach `mass`.
fn keep_top_p(kept: &mut Vec<Candidate>, mass: f32) {
    softmax(kept);
    // The tokens below this threshold together have less than 1 - mass, so the nucleus is reached without
    // them, and less is left to sort.
    let least = (1.0 - mass) / kept.len() as f32;
    kept.retain(|c| c.p >= least);
    kept.sort_unstable_by(by_logit);
    let n = mass_prefix(kept, mass);
    kept.truncate(n);
}

/// Number of candidates that reach `mass`, taken in order: at least one.
fn mass_prefix(kept: &[Candidate], mass: f32) -> usize {
    let mut sum = 0.0f64;
    let reached = kept.iter().position(|c| {
        sum += f64::from(c.p);
        sum >= f64::from(mass)
    });
    reached.map_or(kept.len(), |i| i + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    /// Share of each id in `n` draws.
    fn histogram(logits: &[f32], s: Sampling, n: u64) -> Vec<f64> {
        let mut scratch = Scratch::new(logits.len());
        let mut counts = vec![0.0; logits.len()];
        for counter in 0..n {
            counts[pick(logits, &Sampling { counter, ..s }, &mut scratch) as usize] += 1.0 / n as f64;
        }
        counts
    }

    fn logits_of(p: &[f32]) -> Vec<f32> {
        p.iter().map(|p| p.ln() + 3.0).collect()
    }

    /// Six standard deviations of a binomial share over 20 000 draws are at most 0.0212.
    fn assert_shares(got: &[f64], want: &[f64]) {
        for (id, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((g - w).abs() < 0.0212, "id {id}: drawn {g}, wanted {w}");
            assert!(*w > 0.0 || *g == 0.0, "id {id} was filtered out, but drawn");
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let p = [0.5, 0.25, 0.15, 0.1];
        assert_shares(&histogram(&logits_of(&p), PLAIN, 20_000), &[0.5, 0.25, 0.15, 0.1]);
    }

    #[test]
    fn temperature_sharpens() {
        // Temperature 1/2 squares the probabilities: 0.64 : 0.04 of 0.68.
        let s = Sampling { temperature: 0.5, ..PLAIN };
        assert_shares(&histogram(&logits_of(&[0.8, 0.2]), s, 20_000), &[0.64 / 0.68, 0.04 / 0.68]);
    }

    #[test]
    fn top_k_keeps_the_largest() {
        let s = Sampling { top_k: 2, ..PLAIN };
        assert_shares(
            &histogram(&logits_of(&[0.1, 0.3, 0.2, 0.4]), s, 20_000),
            &[0.0, 3.0 / 7.0, 0.0, 4.0 / 7.0],
        );
    }

    #[test]
    fn top_p_keeps_the_nucleus() {
        let s = Sampling { top_p: 0.65, ..PLAIN };
        assert_shares(
            &histogram(&logits_of(&[0.1, 0.3, 0.2, 0.4]), s, 20_000),
            &[0.0, 3.0 / 7.0, 0.0, 4.0 / 7.0],
        );
    }

    #[test]
    fn min_p_is_relative_to_the_largest() {
        let s = Sampling { min_p: 0.45, ..PLAIN };
        assert_shares(
            &histogram(&logits_of(&[0.15, 0.25, 0.2, 0.4]), s, 20_000),
            &[0.0, 0.25 / 0.85, 0.2 / 0.85, 0.4 / 0.85],
        );
    }

    #[test]
    fn typical_drops_the_obvious_token() {
        // The entropy of (.4, .3, .3) is 1.089 nat: a surprise of 1.204 (0.115 off) is more typical than
        // 0.916 (0.173 off). That of (.6, .1 x 4) is 1.228: 0.511 (0.717 off) beats 2.303 (1.075 off).
        let s = Sampling { typical_p: 0.5, ..PLAIN };
        assert_shares(&histogram(&logits_of(&[0.4, 0.3, 0.3]), s, 20_000), &[0.0, 0.5, 0.5]);
        assert_shares(
            &histogram(&logits_of(&[0.6, 0.1, 0.1, 0.1, 0.1]), s, 2_000),
            &[1.0, 0.0, 0.0, 0.0, 0.0],
        );
    }

    #[test]
    fn broken_logits_are_never_picked() {
        let mut scratch = Scratch::new(4);
        let nan = [f32::NAN, 1.0, f32::NEG_INFINITY, f32::NAN];
        for counter in 0..100 {
            assert_eq!(pick(&nan, &Sampling { counter, ..PLAIN }, &mut scratch), 1);
        }
        assert_eq!(pick(&[f32::NAN; 3], &PLAIN, &mut scratch), 0);
        assert_eq!(pick(&[0.0, f32::INFINITY, 1.0], &PLAIN, &mut scratch), 1);
    }

    #[test]
    fn logits_are_broken_by_nan_and_infinity_and_by_having_no_number() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!([&[0.0, nan][..], &[nan; 9], &[inf, 0.0], &[-inf; 9], &[]].into_iter().all(is_broken));
        assert!(![&[0.0, -inf][..], &[f32::MAX; 9], &[-f32::MAX]].into_iter().any(is_broken));
    }

    #[test]
    fn numbers_are_pinned() {
        // A saved seed must give the same text in later versions.
        let got: Vec<u64> = (0..3).map(|c| (uniform(42, c) * 1e12) as u64).collect();
        assert_eq!(got, [343_291_922_098, 950_438_090_727, 446_587_873_745]);
    }

    proptest! {
        #[test]
        fn argmax_is_the_first_largest(logits in proptest::collection::vec(-3i8..3, 1..70)) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let mut want = 0;
            for (id, &logit) in logits.iter().enumerate() {
                if logit > logits[want] {
                    want = id;
                }
            }
            prop_assert_eq!(argmax(&logits) as usize, want);
        }

        #[test]
        fn top_k_is_what_a_sort_gives(
            logits in proptest::collection::vec(-50i16..50, 2..400),
            k in 1usize..60,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let k = k.min(logits.len() - 1).max(1);
            let mut kept = Vec::new();
            largest(&logits, k, &mut kept);
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let got: Vec<usize> = kept.iter().map(|c| c.id as usize).collect();
            prop_assert_eq!(&got[..], &order[..k]);
        }

        #[test]
        fn picking_never_allocates_more(
            n in 1usize..300,
            top_k in 0u32..40,
            top_p in 0.0f32..1.1,
            typical_p in 0.0f32..1.1,
            min_p in 0.0f32..1.0,
        ) {
            let logits: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() * 8.0).collect();
            let mut scratch = Scratch::new(n);
            let room = scratch.candidates.capacity();
            let s = Sampling { top_k, top_p, typical_p, min_p, ..PLAIN };
            for counter in 0..20 {
                let id = pick(&logits, &Sampling { counter, ..s }, &mut scratch) as usize;
                prop_assert!(id < n);
            }
            prop_assert_eq!(scratch.candidates.capacity(), room);
        }
    }
}
