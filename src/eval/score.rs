//! Log-likelihood of a text from logits, and divergence between two sets of logits.

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    n: u64,
    sum: f64,
    sum_of_squares: f64,
}

impl Mean {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.n += 1;
        self.sum += value;
        self.sum_of_squares += value * value;
    }

    /// Number of values.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.n == 0 { 0.0 } else { self.sum / self.n as f64 }
    }

    /// Standard error of the mean: `sqrt((E[x^2] - E[x]^2) / (n - 1))`, as in llama-perplexity.
    pub fn std_error(&self) -> f64 {
        if self.n < 2 {
            return 0.0;
        }
        let n = self.n as f64;
        let variance = (self.sum_of_squares / n - self.mean().powi(2)).max(0.0);
        (variance / (n - 1.0)).sqrt()
    }
}

/// Writes the natural log-probabilities of `logits` to `out`, which has the same length.
///
/// # Panics
/// If the lengths differ.
pub fn log_softmax(logits: &[f32], out: &mut [f32]) {
    assert_eq!(logits.len(), out.len());
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let log_sum = sum.ln();
    for (out, &logit) in out.iter_mut().zip(logits) {
        *out = (f64::from(logit - max) - log_sum) as f32;
    }
}

/// Kullback-Leibler divergence of `other` from `base`, both natural log-probabilities.
pub fn kl_divergence(base: &[f32], other: &[f32]) -> f64 {
    base.iter().zip(other).map(|(&b, &o)| f64::from(b).exp() * (f64::from(b) - f64::from(o))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_and_its_error() {
        let mut mean = Mean::default();
        [1.0, 2.0, 3.0, 6.0].into_iter().for_each(|value| mean.add(value));
        assert_eq!((mean.n(), mean.mean()), (4, 3.0));
        // Variance (4 + 1 + 0 + 9) / 4 = 3.5, over n - 1 = 3.
        assert!((mean.std_error() - (3.5f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn log_probabilities_and_their_divergence() {
        let (mut even, mut odd) = ([0.0; 2], [0.0; 2]);
        log_softmax(&[1000.0, 1000.0], &mut even);
        log_softmax(&[0.0, 3f32.ln()], &mut odd);
        assert!((even[0] - 0.5f32.ln()).abs() < 1e-6);
        assert!((odd[1] - 0.75f32.ln()).abs() < 1e-6);
        assert_eq!(kl_divergence(&even, &even), 0.0);
        // 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4)
        let want = 0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln();
        assert!((kl_divergence(&even, &odd) - want).abs() < 1e-6);
    }
}
