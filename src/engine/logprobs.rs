//! Log-probabilities of a row of logits.

/// Natural log-probabilities of the model, before bias, penalties, temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// Log-probability of the sampled token.
    pub picked: f32,
    /// Rank of the sampled token by likelihood: 1 is the most likely, and equal ones share a rank.
    pub rank: usize,
    /// The most likely tokens and their log-probabilities, in descending order; ties by lowest id.
    pub top: Vec<(u32, f32)>,
}

impl LogProbs {
    /// Log-probabilities of `token`, and of the `n_top` most likely tokens, from `logits`, `[n_vocab]`. A NaN
    /// is treated as minus infinity.
    ///
    /// # Panics
    /// If `token` is not in the vocabulary.
    pub fn of(logits: &[f32], token: u32, n_top: usize) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = |&x: &f32| if x.is_nan() { 0.0 } else { f64::from(x - max).exp() };
        let log_sum = logits.iter().map(exp).sum::<f64>().ln();
        let of = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { (f64::from(x - max) - log_sum) as f32 };

        let mut top: Vec<(u32, f32)> = Vec::with_capacity(n_top.min(logits.len()) + 1);
        for (id, &x) in logits.iter().enumerate().filter(|_| n_top > 0) {
            if top.len() < n_top || top.last().is_some_and(|last| x > last.1) {
                let at = top.partition_point(|kept| kept.1 >= x);
                top.insert(at, (id as u32, x));
                top.truncate(n_top);
            }
        }
        top.iter_mut().for_each(|(_, x)| *x = of(*x));
        let own = logits[token as usize];
        let rank = 1 + logits.iter().filter(|x| **x > own).count();
        Self { picked: of(own), rank, top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_the_largest_come_first() {
        let logits = [1.0, 3.0, -2.0, 3.0, 0.5];
        let all = LogProbs::of(&logits, 2, 9);
        let sum: f64 = all.top.iter().map(|(_, x)| f64::from(*x).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(all.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 0, 4, 2]);
        assert_eq!((all.picked, all.rank), (all.top[4].1, 5));
        assert_eq!([0, 1, 3, 4].map(|token| LogProbs::of(&logits, token, 0).rank), [3, 1, 1, 4]);
        assert!((all.top[0].1 - all.picked - 5.0).abs() < 1e-6);
        assert_eq!(LogProbs::of(&logits, 1, 2).top, all.top[..2]);
        assert!(LogProbs::of(&logits, 1, 0).top.is_empty());
    }
}
