//! Configuration of multi-head latent attention (MLA), whose heads share one latent vector per position.

use super::ConvertError;
use super::config::{Config, RopeScaling};
use sterna_gguf::Value;

/// Lengths of vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// Latent vector of queries, if there is one.
    pub q_rank: Option<usize>,
    /// Latent vector of keys and values.
    pub rank: usize,
    /// Elements of a key that are not rotated, and those that are.
    pub plain: usize,
    /// Elements of queries and keys that RoPE rotates; all heads share the key's.
    pub rotated: usize,
    /// Value of a head.
    pub value: usize,
    /// Factor on the logarithm of YaRN's extension in the scale of scores.
    log: Option<f64>,
}

impl Latent {
    /// Reads the configuration.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid, or has a value that GGUF cannot express.
    pub fn read(config: &Config) -> Result<Self, ConvertError> {
        const INTERLEAVED: &str = "rope_interleave";
        if config.bool(&[INTERLEAVED]) == Some(false) {
            return Err(config.wrong(INTERLEAVED, "true", config.get(&[INTERLEAVED])));
        }
        const MAGNITUDE: &str = "mscale_all_dim";
        let log = match config.rope()?.scaling {
            RopeScaling::Yarn { attention, .. } => {
                // Readers scale scores, and neither queries nor keys.
                if attention.is_none_or(|attention| (attention - 1.0).abs() > 1e-6) {
                    return Err(config.wrong(MAGNITUDE, "the value of `mscale`", None));
                }
                config.rope_numbers(&[(MAGNITUDE, MAGNITUDE)]).next().map(|(log, _)| 0.1 * log)
            }
            _ => None,
        };
        Ok(Self {
            q_rank: config.count(&["q_lora_rank"])?,
            rank: config.require(&["kv_lora_rank"])?,
            plain: config.require(&["qk_nope_head_dim"])?,
            rotated: config.require(&["qk_rope_head_dim"])?,
            value: config.require(&["v_head_dim"])?,
            log,
        })
    }

    /// Length of a head's query.
    pub fn key(&self) -> usize {
        self.plain + self.rotated
    }

    /// Writes the keys with the architecture's prefix. Lengths of keys and values are those of the absorbed
    /// form, in which all heads have the latent vector as their key, and its first elements as their value.
    pub fn write(&self, mut set: impl FnMut(&str, Value)) {
        let count = |n: usize| Value::U32(n as u32);
        if let Some(rank) = self.q_rank {
            set("attention.q_lora_rank", count(rank));
        }
        set("attention.kv_lora_rank", count(self.rank));
        set("attention.head_count_kv", count(1));
        set("attention.key_length", count(self.rank + self.rotated));
        set("attention.value_length", count(self.rank));
        set("attention.key_length_mla", count(self.key()));
        set("attention.value_length_mla", count(self.value));
        set("rope.dimension_count", count(self.rotated));
        if let Some(log) = self.log {
            set("rope.scaling.yarn_log_multiplier", Value::F32(log as f32));
        }
    }
}
