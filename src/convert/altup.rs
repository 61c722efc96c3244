//! Configuration of Gemma 3n's residual streams: LAuReL, the table of embeddings per layer, cutoffs of gates.

use serde_json::Value as Json;

use super::ConvertError;
use super::config::Config;
use sterna_gguf::{Array, Value};

/// Number of residual streams.
pub const STREAMS: usize = 4;

/// Sizes of a model with alternating updates.
#[derive(Clone, Debug, PartialEq)]
pub struct AltUp {
    /// Width between the two matrices of LAuReL.
    pub rank: usize,
    /// Rows of the table of embeddings per layer; other tokens have none.
    pub vocab: Option<usize>,
    /// Cutoff of each layer's gate in standard deviations; minus infinity for none.
    cutoffs: Vec<f32>,
}

impl AltUp {
    /// Reads the configuration of `n_layers` layers.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid.
    pub fn read(config: &Config, n_layers: usize) -> Result<Self, ConvertError> {
        const SHARES: &str = "activation_sparsity_pattern";
        // transformers' default: the first ten layers.
        let usual = |layer: usize| if layer < 10 { 0.95 } else { 0.0 };
        let found = config.get(&[SHARES]);
        let shares: Option<Vec<f64>> = match found {
            None => Some((0..n_layers).map(usual).collect()),
            Some(Json::Array(all)) => all.iter().map(Json::as_f64).collect(),
            Some(one) => one.as_f64().map(|share| vec![share; n_layers]),
        };
        let is_valid = |shares: &Vec<f64>| {
            shares.len() == n_layers && shares.iter().all(|share| (0.0..=0.9999).contains(share))
        };
        let shares = shares.filter(is_valid).ok_or_else(|| {
            config.wrong(SHARES, &format!("a share from 0 to 0.9999 for each of {n_layers} layers"), found)
        })?;
        Ok(Self {
            rank: config.require(&["laurel_rank"])?,
            vocab: config.count(&["vocab_size_per_layer_input"])?,
            cutoffs: shares.into_iter().map(quantile).collect(),
        })
    }

    /// Writes the keys with the architecture's prefix.
    pub fn write(&self, mut set: impl FnMut(&str, Value)) {
        set("altup.num_inputs", Value::U32(STREAMS as u32));
        set("altup.active_idx", Value::U32(0));
        set("activation_sparsity_scale", Array::from_f32s(self.cutoffs.iter().copied()).into());
    }
}

/// The number of standard deviations below which this share of a normal distribution is.
fn quantile(share: f64) -> f32 {
    if share == 0.0 {
        return f32::NEG_INFINITY;
    }
    let (mut low, mut high) = (-6.0, 6.0);
    // Each step halves the interval: 60 are beyond the precision of f64.
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal(middle) < share { low = middle } else { high = middle }
    }
    ((low + high) / 2.0) as f32
}

/// The share of a normal distribution below `x`: `1 / 2 + density(x) (x + x^3 / 3 + x^5 / (3 * 5) + ..)`.
fn normal(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of the normal distribution.
    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (share, want) in
            [(0.95, 1.644_853_6), (0.5, 0.0), (0.9, 1.281_551_6), (0.999, 3.090_232_3), (0.1, -1.281_551_6)]
        {
            assert!((quantile(share) - want).abs() < 1e-6, "{share}: {}", quantile(share));
        }
        assert_eq!(quantile(0.0), f32::NEG_INFINITY);
    }
}
