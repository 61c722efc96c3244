//! Configuration of models with two kinds of layers, local and global ones, whose heads may differ (Gemma 4),
//! or not (Gemma 3n).

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::ConvertError;
use super::config::Config;
use sterna_gguf::{Array, Value, ValueType};

/// Layers of two kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Layered {
    /// True for layers with a sliding window, one per layer.
    slides: Vec<bool>,
    /// Head length, and KV heads of global layers.
    global: (usize, usize),
    /// True if the heads of both kinds are of the same length, for architectures without a key for it.
    alike: bool,
    /// Number of layers with a cache of their own; the later ones read those.
    n_own: usize,
    /// True if layers without a cache of their own have feed-forward networks of twice the width.
    doubles: bool,
    /// Width of the embedding per layer, or 0.
    pub layer_input: usize,
}

impl Layered {
    /// Reads the configuration of `n_layers` layers, of which local ones have `n_kv_heads` KV heads of
    /// `head_dim`, and every `period`-th is global unless the configuration says otherwise. If the model is
    /// an `assistant`, no layer has a cache of its own, and there is no embedding per layer.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid.
    pub fn read(
        config: &Config,
        [n_layers, n_kv_heads, head_dim]: [usize; 3],
        period: usize,
        assistant: bool,
    ) -> Result<Self, ConvertError> {
        // Gemma 4's has a default.
        let global_dim = config.count(&["global_head_dim"])?;
        let alike = global_dim.is_none();
        let slides = kinds(config, n_layers, period, alike)?;
        let of_globals = of_globals(config, &slides)?;
        let global_dim = of_globals.map_or(global_dim, |[head_dim, _]| head_dim);
        let head_dim = global_dim.unwrap_or(head_dim);
        let shares_values = config.bool(&["attention_k_eq_v"]) == Some(true);
        let global_heads = match of_globals {
            Some([_, n_kv_heads]) => n_kv_heads,
            None => config.count(&["num_global_key_value_heads"])?.filter(|_| shares_values),
        };
        const SHARED: &str = "num_kv_shared_layers";
        let shared = config.get(&[SHARED]).map_or(Some(0), Json::as_u64).map(|shared| shared as usize);
        let n_own = shared.and_then(|shared| n_layers.checked_sub(shared)).filter(|own| *own > 0);
        let n_own = if assistant { Some(0) } else { n_own };
        let want = format!("a number below the {n_layers} layers");
        let n_own = n_own.ok_or_else(|| config.wrong(SHARED, &want, config.get(&[SHARED])))?;
        const INPUT: &str = "hidden_size_per_layer_input";
        let has_none = config.get(&[INPUT]).is_some_and(|width| width.as_u64() == Some(0));
        Ok(Self {
            slides,
            global: (head_dim, global_heads.unwrap_or(n_kv_heads)),
            alike,
            n_own,
            doubles: config.bool(&["use_double_wide_mlp"]) == Some(true),
            layer_input: if has_none || assistant { 0 } else { config.require(&[INPUT])? },
        })
    }

    /// Head length and KV heads of a layer, if it is global.
    pub fn global(&self, layer: usize) -> Option<(usize, usize)> {
        if self.slides[layer] { None } else { Some(self.global) }
    }

    /// Factor on the width of a layer's feed-forward network.
    pub fn widens(&self, layer: usize) -> usize {
        if self.doubles && layer >= self.n_own { 2 } else { 1 }
    }

    /// True if a layer has no keys and values of its own, whatever the checkpoint contains.
    pub fn reads_another(&self, layer: usize) -> bool {
        layer >= self.n_own
    }

    /// Head length of global layers.
    pub fn global_dim(&self) -> usize {
        self.global.0
    }

    /// Writes the keys that a model with one kind of layers does not have. Local layers have `n_kv_heads` KV
    /// heads of `head_dim`, and `ffn` is the width of a feed-forward network.
    pub fn write(&self, [ffn, n_kv_heads, head_dim]: [usize; 3], mut set: impl FnMut(&str, Value)) {
        let n_layers = self.slides.len();
        let count = |n: usize| Value::U32(n as u32);
        let each = |of: &dyn Fn(usize) -> usize| -> Value {
            let all: Vec<usize> = (0..n_layers).map(of).collect();
            match all.iter().all(|n| *n == all[0]) {
                true => count(all[0]),
                false => Array::from_i32s(all.into_iter().map(|n| n as i32)).into(),
            }
        };
        set("feed_forward_length", each(&|layer| ffn * self.widens(layer)));
        set(
            "attention.head_count_kv",
            each(&|layer| self.global(layer).map_or(n_kv_heads, |(_, n_kv_heads)| n_kv_heads)),
        );
        if !self.alike {
            self.write_lengths(head_dim, &mut set);
        }
        set("attention.shared_kv_layers", count(n_layers - self.n_own));
        if self.n_own > 0 {
            set("embedding_length_per_layer_input", count(self.layer_input));
        }
        let slides: Vec<Value> = self.slides.iter().map(|slides| Value::Bool(*slides)).collect();
        set("attention.sliding_window_pattern", Array::from_values(ValueType::Bool, &slides).into());
    }

    fn write_lengths(&self, head_dim: usize, mut set: impl FnMut(&str, Value)) {
        let count = |n: usize| Value::U32(n as u32);
        for (name, local) in [("key_length", "key_length_swa"), ("value_length", "value_length_swa")] {
            set(&format!("attention.{name}"), count(self.global.0));
            set(&format!("attention.{local}"), count(head_dim));
        }
        set("rope.dimension_count", count(self.global.0));
        set("rope.dimension_count_swa", count(head_dim));
    }
}

/// Head length and KV heads of global layers where they differ from those of local ones, if the configuration
/// has them by layer, as transformers 5.24 writes it.
fn of_globals(config: &Config, slides: &[bool]) -> Result<Option<[Option<usize>; 2]>, ConvertError> {
    const KEY: &str = "per_layer_config";
    const KNOWN: [&str; 2] = ["head_dim", "num_key_value_heads"];
    let Some(found) = config.get(&[KEY]) else { return Ok(None) };
    let read = |layers: &serde_json::Map<String, Json>| {
        let numbered = layers.iter().map(|(layer, of)| Some((layer.parse().ok()?, of.as_object()?)));
        let numbered: BTreeMap<usize, _> = numbered.collect::<Option<_>>()?;
        let globals = (0..slides.len()).filter(|layer| !slides[*layer]);
        let first = *numbered.values().next()?;
        let is_alike = numbered.values().all(|of| *of == first);
        let is_known = first.keys().all(|key| KNOWN.contains(&key.as_str()));
        if !(is_alike && is_known && numbered.keys().copied().eq(globals)) {
            return None;
        }
        let number = |key: &str| match first.get(key) {
            None => Some(None),
            Some(n) => n.as_u64().filter(|n| *n > 0).map(|n| Some(n as usize)),
        };
        Some([number(KNOWN[0])?, number(KNOWN[1])?])
    };
    let read = found.as_object().and_then(read);
    let want = "the same head_dim and num_key_value_heads for every layer of full attention";
    read.map(Some).ok_or_else(|| config.wrong(KEY, want, Some(found)))
}

/// True per layer with a sliding window: `layer_types`, or all but every `period`-th layer and, if heads
/// differ, the last one.
fn kinds(config: &Config, n_layers: usize, period: usize, alike: bool) -> Result<Vec<bool>, ConvertError> {
    const TYPES: &str = "layer_types";
    let Some(list) = config.get(&[TYPES]) else {
        let slides = |layer: usize| layer % period != period - 1 && (alike || layer + 1 != n_layers);
        return Ok((0..n_layers).map(slides).collect());
    };
    let slides = |kind: &Json| match kind.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let found: Option<Vec<bool>> =
        list.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(slides).collect();
    found
        .filter(|found| found.len() == n_layers)
        .ok_or_else(|| config.wrong(TYPES, "sliding_attention or full_attention for each layer", Some(list)))
}
