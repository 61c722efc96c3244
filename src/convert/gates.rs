//! Configuration of Laguna's attention: heads per layer, and the gate of its output.

use serde_json::Value as Json;

use super::ConvertError;
use super::config::Config;
use sterna_gguf::{Array, Value};

/// Heads and gates.
#[derive(Clone, Debug, PartialEq)]
pub struct Gates {
    /// Query heads of each layer.
    pub heads: Vec<usize>,
    /// True if a gate has one output per head.
    pub of_heads: bool,
    /// Elements of a head that RoPE rotates in layers with a window.
    rotated: usize,
}

impl Gates {
    /// Reads the configuration of `n_layers` layers with heads of `head_dim`, `n_heads` if there is no list.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid, or has a value that GGUF cannot express.
    pub fn read(
        config: &Config,
        n_layers: usize,
        n_heads: usize,
        head_dim: usize,
    ) -> Result<Self, ConvertError> {
        const HEADS: &str = "num_attention_heads_per_layer";
        const GATING: &str = "gating";
        const TYPES: &str = "gating_types";
        let found = config.get(&[HEADS]);
        let heads: Option<Vec<usize>> = match found {
            None => Some(vec![n_heads; n_layers]),
            Some(list) => {
                let count = |n: &Json| n.as_u64().filter(|n| *n > 0).map(|n| n as usize);
                list.as_array().and_then(|list| list.iter().map(count).collect())
            }
        };
        let heads = heads
            .filter(|heads| heads.len() == n_layers)
            .ok_or_else(|| config.wrong(HEADS, &format!("a number for each of {n_layers} layers"), found))?;
        let of_heads = match config.get(&[GATING]) {
            None | Some(Json::Bool(true)) => true,
            Some(gating) => match gating.as_str().map(|gating| gating.replace('_', "-")).as_deref() {
                Some("per-head") => true,
                Some("per-element") => false,
                _ => return Err(config.wrong(GATING, "true, per-head or per-element", Some(gating))),
            },
        };
        let want = if of_heads { "per-head" } else { "per-element" };
        let differs = |kind: &Json| kind.as_str().is_none_or(|kind| kind.replace('_', "-") != want);
        if let Some(kinds) = config.get(&[TYPES])
            && kinds.as_array().is_none_or(|kinds| kinds.iter().any(differs))
        {
            return Err(config.wrong(TYPES, &format!("{want} in all layers, as `{GATING}`"), Some(kinds)));
        }
        let local = config.get(&["rope_parameters"]).and_then(|rope| rope.get("sliding_attention"));
        let share = local.and_then(|rope| rope.get("partial_rotary_factor")).and_then(Json::as_f64);
        Ok(Self { heads, of_heads, rotated: (share.unwrap_or(1.0) * head_dim as f64) as usize })
    }

    /// Writes the keys with the architecture's prefix.
    pub fn write(&self, mut set: impl FnMut(&str, Value)) {
        set("attention.head_count", Array::from_i32s(self.heads.iter().map(|n| *n as i32)).into());
        set("rope.dimension_count_swa", Value::U32(self.rotated as u32));
    }
}
