//! Configuration of hybrids: the layers with a gated delta net, its heads, and the rotated part of attention
//! heads.

use serde_json::Value as Json;

use super::ConvertError;
use super::arch::Architecture;
use super::config::Config;
use sterna_gguf::{Array, Value, ValueType};

/// Kernel size of the convolution in every known model.
pub const TAPS: usize = 4;
/// Interval of attention layers, if the configuration does not give it.
const PERIOD: usize = 4;
/// Rotated share of a head, and the pairs for time, height and width, from transformers' class.
const ROTATED: f64 = 0.25;
const SECTIONS: [usize; 3] = [11, 11, 10];

/// Heads of a model's delta nets, and the layers that have one.
#[derive(Clone, Debug, PartialEq)]
pub struct Hybrid {
    /// Heads of queries and of keys.
    pub n_key_heads: usize,
    /// Heads of values, a multiple of the key heads.
    pub n_heads: usize,
    /// Length of each head.
    pub head_dim: usize,
    /// True for layers with a delta net, if the configuration lists them.
    listed: Option<Vec<bool>>,
    /// Interval of attention layers, if it does not.
    period: usize,
    /// Rotated elements of a head.
    rotated: usize,
    /// Its pairs for time, height and width, in files that are also for images.
    sections: Option<[usize; 3]>,
}

impl Hybrid {
    /// Reads the configuration. `head_dim` is that of attention.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid, or has a value that GGUF cannot express.
    pub fn read(
        config: &Config,
        arch: &Architecture,
        n_layers: usize,
        head_dim: usize,
    ) -> Result<Self, ConvertError> {
        let n_key_heads = config.require(&["linear_num_key_heads"])?;
        let n_heads = config.require(&["linear_num_value_heads"])?;
        let (keys, values) = ("linear_key_head_dim", "linear_value_head_dim");
        let (key_dim, value_dim) = (config.require(&[keys])?, config.require(&[values])?);
        let taps = config.require(&["linear_conv_kernel_dim"])?;
        let wrong = |key: &str, want: String| Err(config.wrong(key, &want, config.get(&[key])));
        if !n_heads.is_multiple_of(n_key_heads) {
            return wrong("linear_num_value_heads", format!("a multiple of the {n_key_heads} key heads"));
        }
        if value_dim != key_dim {
            return wrong(values, format!("{key_dim}, as `{keys}`: GGUF has one key for both"));
        }
        if taps != TAPS {
            return wrong("linear_conv_kernel_dim", TAPS.to_string());
        }
        let (rotated, sections) = rope(config, head_dim)?;
        Ok(Self {
            n_key_heads,
            n_heads,
            head_dim: key_dim,
            listed: listed(config, n_layers)?,
            period: config.count(&["full_attention_interval"])?.unwrap_or(PERIOD),
            rotated,
            sections: arch.sections.then_some(sections),
        })
    }

    /// True if this layer has a delta net instead of attention.
    pub fn has_delta(&self, layer: usize) -> bool {
        match &self.listed {
            Some(listed) => listed[layer],
            None => !(layer + 1).is_multiple_of(self.period),
        }
    }

    /// Rows of queries and keys together.
    pub fn keys(&self) -> usize {
        2 * self.n_key_heads * self.head_dim
    }

    /// Writes the keys with the architecture's prefix. An MTP block has attention.
    pub fn write(&self, has_mtp: bool, mut set: impl FnMut(&str, Value)) {
        let count = |n: usize| Value::U32(n as u32);
        set("ssm.conv_kernel", count(TAPS));
        set("ssm.state_size", count(self.head_dim));
        set("ssm.group_count", count(self.n_key_heads));
        set("ssm.time_step_rank", count(self.n_heads));
        set("ssm.inner_size", count(self.n_heads * self.head_dim));
        if let Some(listed) = &self.listed {
            let blocks = listed.iter().copied().chain(has_mtp.then_some(false));
            let values: Vec<Value> = blocks.map(Value::Bool).collect();
            let listed = Array::from_values(ValueType::Bool, &values);
            set("attention.recurrent_layers", Value::Array(listed));
        }
        set("full_attention_interval", count(self.period));
        set("rope.dimension_count", count(self.rotated));
        if let Some(sections) = self.sections {
            // GGUF has a fourth section, which these models do not use.
            let sections = sections.iter().chain([&0]).map(|n| *n as i32);
            set("rope.dimension_sections", Value::Array(Array::from_i32s(sections)));
        }
    }
}

/// Layers with a delta net, if they are listed.
fn listed(config: &Config, n_layers: usize) -> Result<Option<Vec<bool>>, ConvertError> {
    const KEY: &str = "layer_types";
    let Some(list) = config.get(&[KEY]) else { return Ok(None) };
    let kinds = list.as_array().filter(|kinds| kinds.len() == n_layers).ok_or_else(|| {
        let found = list.as_array().map(|kinds| Json::from(kinds.len()));
        config.wrong(KEY, &format!("{n_layers} kinds, one per layer"), found.as_ref().or(Some(list)))
    })?;
    let has_delta = |kind: &Json| match kind.as_str() {
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(config.wrong(KEY, "linear_attention or full_attention", Some(kind))),
    };
    kinds.iter().map(has_delta).collect::<Result<_, _>>().map(Some)
}

/// Rotated elements of a head, and the pairs of each section.
fn rope(config: &Config, head_dim: usize) -> Result<(usize, [usize; 3]), ConvertError> {
    const SHARE: &str = "partial_rotary_factor";
    const PAIRS: &str = "mrope_section";
    let of = |key: &str| {
        let rope = config.get(&["rope_parameters", "rope_scaling"]);
        rope.and_then(|rope| rope.get(key)).filter(|value| !value.is_null()).or_else(|| config.get(&[key]))
    };
    let share = match of(SHARE) {
        None => ROTATED,
        Some(found) => match found.as_f64().filter(|share| (0.0..=1.0).contains(share)) {
            Some(share) => share,
            None => return Err(config.wrong(SHARE, "a number from 0 to 1", Some(found))),
        },
    };
    let rotated = (head_dim as f64 * share) as usize;
    if rotated == 0 || !rotated.is_multiple_of(2) {
        let want = format!("an even share, not 0, of heads of {head_dim}");
        return Err(config.wrong(SHARE, &want, of(SHARE)));
    }
    let sections = match of(PAIRS) {
        None => SECTIONS,
        Some(found) => {
            let numbers: Option<Vec<usize>> = found.as_array().and_then(|list| {
                let number = |n: &Json| n.as_u64().filter(|n| *n <= head_dim as u64).map(|n| n as usize);
                list.iter().map(number).collect()
            });
            let sections = numbers.and_then(|numbers| <[usize; 3]>::try_from(numbers).ok());
            sections.ok_or_else(|| config.wrong(PAIRS, "three numbers of pairs", Some(found)))?
        }
    };
    // Pair `i` belongs to section `i % 3`; readers of GGUF do not rotate a pair that is in no section.
    match (0..rotated / 2).find(|pair| *pair >= 3 * sections[pair % 3]) {
        None => Ok((rotated, sections)),
        Some(pair) => {
            let want = format!("sections that cover all {} pairs, including pair {pair}", rotated / 2);
            Err(config.wrong(PAIRS, &want, of(PAIRS)))
        }
    }
}
