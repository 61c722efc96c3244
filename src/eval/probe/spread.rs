//! Statistics of a layer's keys or values that are relevant for a codec: heavy tails, channels with an
//! offset, long vectors at the start.

use crate::score::Mean;

/// Positions at the start of a text that may be attention sinks.
const SINKS: usize = 4;

/// Figures of keys or values of a layer, each a mean over KV heads and texts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread {
    /// Excess kurtosis of all elements of a head: 0 for a normal distribution, more for heavy tails. Rotation
    /// reduces it to nearly 0.
    pub kurtosis: Mean,
    /// The largest magnitude of a channel's mean, in standard deviations of that channel. Codecs
    /// with a window subtract the mean of each page from keys.
    pub channel_mean: Mean,
    /// Mean length of the first four vectors, relative to the median length.
    pub sink_norm: Mean,
}

impl Spread {
    /// Adds the vectors of a text, `[n, n_kv_heads * head_dim]`.
    ///
    /// # Panics
    /// If there are no vectors.
    pub fn add(&mut self, vectors: &[f32], n_kv_heads: usize, head_dim: usize) {
        let cols = n_kv_heads * head_dim;
        for head in 0..n_kv_heads {
            let vectors: Vec<&[f32]> =
                vectors.chunks_exact(cols).map(|row| &row[head * head_dim..][..head_dim]).collect();
            self.kurtosis.add(kurtosis(vectors.iter().copied().flatten()));
            let channels = (0..head_dim).map(|i| {
                let (mean, variance) = moments(vectors.iter().map(|x| &x[i]));
                if mean == 0.0 { 0.0 } else { mean.abs() / variance.sqrt() }
            });
            self.channel_mean.add(channels.fold(0.0, f64::max));
            let norm = |x: &&[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let mut norms: Vec<f64> = vectors.iter().map(norm).collect();
            let sinks = norms.iter().take(SINKS);
            let mean = sinks.clone().sum::<f64>() / sinks.len() as f64;
            norms.sort_by(f64::total_cmp);
            let median = norms[norms.len() / 2];
            self.sink_norm.add(if median > 0.0 { mean / median } else { 1.0 });
        }
    }
}

/// Mean and variance.
fn moments<'a>(x: impl Iterator<Item = &'a f32> + Clone) -> (f64, f64) {
    let n = x.clone().count() as f64;
    let mean = x.clone().map(|x| f64::from(*x)).sum::<f64>() / n;
    (mean, x.map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n)
}

/// Fourth moment over the square of the variance, less 3; 0 if all elements are equal.
fn kurtosis<'a>(x: impl Iterator<Item = &'a f32> + Clone) -> f64 {
    let (mean, variance) = moments(x.clone());
    let n = x.clone().count() as f64;
    let fourth = x.map(|x| (f64::from(*x) - mean).powi(4)).sum::<f64>() / n;
    if variance > 0.0 { fourth / (variance * variance) - 3.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_by_hand() {
        // Two heads of two channels, five positions. Head 0 alternates 1 and -1; head 1 has a long first
        // vector.
        let rows = [
            [1.0, -1.0, 30.0, 40.0],
            [-1.0, 1.0, 3.0, 4.0],
            [1.0, -1.0, 3.0, 4.0],
            [-1.0, 1.0, 3.0, 4.0],
            [0.0, 0.0, 3.0, 4.0],
        ];
        let mut spread = Spread::default();
        spread.add(&rows.concat()[..], 2, 2);
        assert_eq!(spread.kurtosis.n(), 2);
        // Eight of ten elements are +-1: fourth moment and variance 0.8.
        let first = 0.8 / 0.64 - 3.0;
        let second: [f32; 10] = [30.0, 40.0, 3.0, 4.0, 3.0, 4.0, 3.0, 4.0, 3.0, 4.0];
        let second = kurtosis(second.iter());
        assert!((spread.kurtosis.mean() - (first + second) / 2.0).abs() < 1e-12);
        // Head 0 has means of 0; head 1 has 8.4 with a deviation of 10.8 in its first channel, and 4/3 of
        // both in its second.
        assert!((spread.channel_mean.mean() - 8.4 / 10.8 / 2.0).abs() < 1e-12, "{spread:?}");
        // Norms: sqrt(2) four times with median sqrt(2); 50, 5, 5, 5 with median 5.
        assert!((spread.sink_norm.mean() - (1.0 + 65.0 / 20.0) / 2.0).abs() < 1e-12);
    }
}
