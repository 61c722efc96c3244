//! Configuration of models some of whose layers have a short convolution instead of attention.

use serde_json::Value as Json;

use super::ConvertError;
use super::config::Config;
use sterna_gguf::{Array, Value};

/// The layers without attention, and the convolution that they have.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// True for a layer without attention.
    pub layers: Vec<bool>,
    /// Kernel size of the convolution.
    pub taps: usize,
    /// Width of the feed-forward network, if the configuration's is adjusted.
    pub ffn: Option<usize>,
}

impl Recurrent {
    /// Reads the configuration of LFM2.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid, or has a value that GGUF cannot express.
    pub fn lfm2(config: &Config) -> Result<Self, ConvertError> {
        if config.bool(&["conv_bias"]) == Some(true) {
            return Err(config.wrong("conv_bias", "false", config.get(&["conv_bias"])));
        }
        let n_layers = config.require(&["num_hidden_layers"])?;
        Ok(Self {
            layers: layers(config, n_layers)?,
            taps: config.require(&["conv_L_cache"])?,
            ffn: Some(lfm2_ffn(config)?),
        })
    }

    /// Likewise, with experts; the width of the other networks is not adjusted.
    ///
    /// # Errors
    /// As [`lfm2`](Self::lfm2).
    pub fn lfm2moe(config: &Config) -> Result<Self, ConvertError> {
        Ok(Self { ffn: None, ..Self::lfm2(config)? })
    }

    /// Writes the keys with the architecture's prefix.
    pub fn write(&self, n_kv_heads: usize, vocab: usize, mut set: impl FnMut(&str, Value)) {
        let kv_heads = self.layers.iter().map(|recurs| if *recurs { 0 } else { n_kv_heads as i32 });
        set("attention.head_count_kv", Value::Array(Array::from_i32s(kv_heads)));
        set("vocab_size", Value::U32(vocab as u32));
        set("shortconv.l_cache", Value::U32(self.taps as u32));
    }
}

/// The layers without attention, from their types or, in older configurations, a list of the others.
fn layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, ConvertError> {
    const TYPES: &str = "layer_types";
    const ATTENTION: &str = "full_attn_idxs";
    if let Some(list) = config.get(&[TYPES]) {
        let recurs = |kind: &Json| match kind.as_str() {
            Some("conv") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let all: Option<Vec<bool>> = list.as_array().and_then(|kinds| kinds.iter().map(recurs).collect());
        return all.filter(|all| all.len() == n_layers).ok_or_else(|| {
            config.wrong(TYPES, &format!("conv or full_attention for each of {n_layers} layers"), Some(list))
        });
    }
    let list = config.get(&[ATTENTION]);
    let numbers = list.and_then(Json::as_array).map(|list| list.iter().map(Json::as_u64).collect::<Vec<_>>());
    let numbers = numbers.filter(|list| list.iter().all(|at| at.is_some_and(|at| at < n_layers as u64)));
    let numbers = numbers.ok_or_else(|| config.wrong(ATTENTION, "numbers of layers", list))?;
    Ok((0..n_layers as u64).map(|layer| !numbers.contains(&Some(layer))).collect())
}

/// The width of LFM2's feed-forward network: two thirds of the configuration's, times a factor, rounded up.
fn lfm2_ffn(config: &Config) -> Result<usize, ConvertError> {
    let ffn = config.require(&["block_ff_dim", "intermediate_size"])?;
    if config.bool(&["block_auto_adjust_ff_dim"]) == Some(false) {
        return Ok(ffn);
    }
    let multiple = config.count(&["block_multiple_of"])?.unwrap_or(256);
    let factor = config.positive(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
    Ok((((2 * ffn / 3) as f64 * factor) as usize).next_multiple_of(multiple))
}
