//! BitNet's rule: from real weights to -scale, 0 and scale.

/// The rule for one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Absmean {
    /// The common magnitude of a tensor that is already ternary, which is preserved to the bit. For any
    /// other, mean |w| computed as `w.double().abs().mean().float()` in PyTorch; 0 if all weights are zero.
    pub scale: f32,
}

impl Absmean {
    /// `clamp(round(w / scale), -1, 1) x scale`: division in f32, ties to even, as `(w / scale).round()` in
    /// PyTorch.
    pub fn round(self, weight: f32) -> f32 {
        match self.scale {
            0.0 => 0.0,
            scale => (weight / scale).round_ties_even().clamp(-1.0, 1.0) * scale,
        }
    }
}

/// Statistics of some of a tensor's weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeightStats {
    n: usize,
    sum: f64,
    magnitudes: Magnitudes,
}

/// Number of different |w|, ignoring zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Magnitudes {
    #[default]
    None,
    One(f32),
    Many,
}

impl WeightStats {
    /// Statistics of the weights of one row, in order.
    pub fn of(row: &[f32]) -> Self {
        let (mut sum, mut magnitudes) = (0.0, Magnitudes::None);
        for magnitude in row.iter().map(|weight| weight.abs()) {
            sum += f64::from(magnitude);
            if magnitude != 0.0 {
                magnitudes = magnitudes.and(Magnitudes::One(magnitude));
            }
        }
        Self { n: row.len(), sum, magnitudes }
    }

    /// Statistics of these weights followed by those of `next`.
    pub fn and(self, next: Self) -> Self {
        Self {
            n: self.n + next.n,
            sum: self.sum + next.sum,
            magnitudes: self.magnitudes.and(next.magnitudes),
        }
    }

    /// The rule for a tensor with these weights.
    pub fn absmean(&self) -> Absmean {
        let scale = match self.magnitudes {
            Magnitudes::None => 0.0,
            Magnitudes::One(scale) => scale,
            Magnitudes::Many => (self.sum / self.n as f64) as f32,
        };
        Absmean { scale }
    }
}

impl Magnitudes {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, other) => other,
            (this, Self::None) => this,
            (this, other) if this == other => this,
            _ => Self::Many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(weights: &[f32]) -> Vec<f32> {
        let rule =
            weights.chunks(3).map(WeightStats::of).fold(WeightStats::default(), WeightStats::and).absmean();
        weights.iter().map(|weight| rule.round(*weight)).collect()
    }

    #[test]
    fn real_weights_round_at_half_the_mean() {
        // Mean 4 / 8 = 0.5. Half of it rounds to the even 0, one and a half rounds to 2, clamped to 1.
        let weights = [0.25, -0.25, 0.75, -0.75, 0.2500001, -0.2500001, 0.0, 1.5];
        assert_eq!(rounded(&weights), [0.0, 0.0, 0.5, -0.5, 0.5, -0.5, 0.0, 0.5]);
    }

    #[test]
    fn ternary_weights_keep_their_bits() {
        // Their mean differs from their magnitude.
        let weights = [0.0, -0.37, 0.37, 0.0, 0.0, 0.37, -0.37];
        assert_eq!(rounded(&weights), weights);
        assert_eq!(rounded(&[0.0, -0.0, 0.0]), [0.0; 3]);
        // Weights so small that their mean is 0.
        let least = f32::from_bits(1);
        assert_eq!(rounded(&[least, 2.0 * least, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), [0.0; 8]);
    }
}
