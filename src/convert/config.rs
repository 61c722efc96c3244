//! `config.json`, with the keys of transformers 4 and 5.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::ConvertError;

/// No count of a real model is larger.
const MAX_COUNT: u64 = 1 << 30;

/// Configuration of a language model; of a multimodal model, its text part.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    /// The whole file.
    whole: Json,
    /// `text_config` if it exists, or else the whole file.
    text: Json,
    /// Defaults for keys that a configuration of this architecture may omit.
    defaults: &'static [(&'static str, f64)],
}

/// Storage of a checkpoint's linear weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// `quant_method`.
    pub method: String,
    /// `linear_class` of BitNet; `bitlinear` if not given.
    pub linear_class: String,
    /// True if the weights are masters that are rounded when the model is loaded.
    pub online: Option<bool>,
    /// Modules whose weights are not quantised, by parts of their names.
    pub spared: Vec<String>,
}

/// The rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// Base in the layers with a sliding window, if they have their own.
    pub local_base: Option<f64>,
    /// Scaling of frequencies.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// The base grows with the position, beyond the trained context.
    Dynamic,
    /// Positions divided by a factor.
    Linear(f64),
    /// YaRN.
    Yarn {
        /// Factor by which the context was extended.
        factor: f64,
        /// Context before the extension.
        original: u32,
        /// Scale of queries and keys, replacing YaRN's default.
        attention: Option<f64>,
    },
    /// The base grows with this factor and the length of a head (Hunyuan).
    Alpha(f64),
    /// Only this share of the pairs rotates, with the frequencies that it has among all (Gemma 4).
    Partial(f64),
    /// Llama 3.1: divisors of the frequencies, by wavelength.
    Llama3 {
        /// Divisor for the longest waves.
        factor: f64,
        /// Wavelengths above `original / low` are long.
        low: f64,
        /// Wavelengths below `original / high` are short.
        high: f64,
        /// Context before the extension.
        original: f64,
    },
    /// Divisors of the frequencies, from two tables (Phi-3).
    Long {
        /// For contexts up to the original one.
        short: Vec<f32>,
        /// For longer contexts.
        long: Vec<f32>,
        /// Context before the extension.
        original: u32,
        /// Scale of queries and keys.
        attention: f64,
    },
}

impl Config {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// [`ConvertError::File`] if it is missing or not a JSON object.
    pub fn read(folder: &Path) -> Result<Self, ConvertError> {
        let path = folder.join("config.json");
        let whole = super::read_json(&path)?;
        if !whole.is_object() {
            return Err(ConvertError::file(&path, "want a JSON object"));
        }
        // The second is the name of speculators.
        let nested = ["text_config", "transformer_layer_config"].iter().find_map(|key| whole.get(*key));
        let text = nested.filter(|text| text.is_object()).unwrap_or(&whole).clone();
        Ok(Self { path, whole, text, defaults: &[] })
    }

    /// A nested part of the file as a configuration of its own.
    ///
    /// # Errors
    /// [`ConvertError::File`] if it is missing.
    pub fn part(&self, key: &str, defaults: &'static [(&'static str, f64)]) -> Result<Self, ConvertError> {
        match self.whole.get(key).filter(|part| part.is_object()) {
            Some(part) => Ok(Self { defaults, ..self.other(self.path.clone(), part.clone()) }),
            None => Err(self.wrong(key, "an object", self.whole.get(key))),
        }
    }

    /// The content of another file.
    pub fn other(&self, path: PathBuf, whole: Json) -> Self {
        Self { path, text: whole.clone(), whole, defaults: &[] }
    }

    /// A configuration with the values that decide which GGUF architecture a checkpoint becomes.
    pub fn usual(file: &str) -> Self {
        let whole = serde_json::json!({
            "model_type": file,
            "norm_topk_prob": true,
            "hidden_size": 1,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "n_inner": 1,
        });
        Self { path: PathBuf::new(), text: whole.clone(), whole, defaults: &[] }
    }

    /// The first class in `architectures`.
    ///
    /// # Errors
    /// [`ConvertError::File`] if there is none.
    pub fn class(&self) -> Result<&str, ConvertError> {
        let class = self.whole.get("architectures").and_then(|list| list.get(0)).and_then(Json::as_str);
        class.ok_or_else(|| self.wrong("architectures", "a list with the model's class", None))
    }

    /// Sets the defaults for omitted keys.
    pub fn set_defaults(&mut self, defaults: &'static [(&'static str, f64)]) {
        self.defaults = defaults;
    }

    /// Value of the first of these keys that has one.
    pub fn get(&self, keys: &[&str]) -> Option<&Json> {
        let of = |json: &'_ Json, key: &&str| json.get(*key).is_some_and(|value| !value.is_null());
        let found = keys.iter().find(|key| of(&self.text, key));
        match found {
            Some(key) => self.text.get(*key),
            None => keys.iter().find(|key| of(&self.whole, key)).and_then(|key| self.whole.get(*key)),
        }
    }

    fn number(&self, keys: &[&str]) -> Result<Option<f64>, ConvertError> {
        match self.get(keys) {
            None => Ok(self.defaults.iter().find(|(key, _)| keys.contains(key)).map(|(_, value)| *value)),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(keys[0], "a number", Some(value))),
            },
        }
    }

    /// A count of at least 1 from the first of these keys; or that of a list with the same count for all
    /// layers.
    ///
    /// # Errors
    /// [`ConvertError::File`] for any other value.
    pub fn count(&self, keys: &[&str]) -> Result<Option<usize>, ConvertError> {
        let is_count = |number: f64| number.fract() == 0.0 && (1.0..=MAX_COUNT as f64).contains(&number);
        let list = self.get(keys).and_then(Json::as_array).filter(|list| list.iter().all(|n| *n == list[0]));
        let found = match list.and_then(|list| list.first()?.as_f64()) {
            Some(number) => Some(number),
            None => self.number(keys)?,
        };
        match found {
            None => Ok(None),
            Some(number) if is_count(number) => Ok(Some(number as usize)),
            Some(_) => Err(self.wrong(keys[0], "a whole number from 1 to 2^30", self.get(keys))),
        }
    }

    /// A count; `None` if it is 0 or missing.
    ///
    /// # Errors
    /// [`ConvertError::File`] for any other value.
    pub fn count_or_none(&self, keys: &[&str]) -> Result<Option<usize>, ConvertError> {
        if self.get(keys).and_then(Json::as_f64) == Some(0.0) { Ok(None) } else { self.count(keys) }
    }

    /// A list of `N` numbers above 0, if there is one.
    ///
    /// # Errors
    /// [`ConvertError::File`] for any other value.
    pub fn numbers<const N: usize>(&self, key: &str) -> Result<Option<[f64; N]>, ConvertError> {
        let Some(found) = self.get(&[key]) else { return Ok(None) };
        let number = |value: &Json| value.as_f64().filter(|number| *number > 0.0);
        let numbers: Option<Vec<f64>> = found.as_array().and_then(|list| list.iter().map(number).collect());
        let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
        numbers.map(Some).ok_or_else(|| self.wrong(key, &format!("{N} numbers above 0"), Some(found)))
    }

    /// A required count.
    ///
    /// # Errors
    /// [`ConvertError::File`].
    pub fn require(&self, keys: &[&str]) -> Result<usize, ConvertError> {
        self.count(keys)?.ok_or_else(|| self.wrong(keys[0], "a whole number from 1", None))
    }

    /// A number above 0.
    ///
    /// # Errors
    /// [`ConvertError::File`] for any other value.
    pub fn positive(&self, keys: &[&str]) -> Result<Option<f64>, ConvertError> {
        match self.number(keys)? {
            Some(number) if number <= 0.0 => Err(self.wrong(keys[0], "a number above 0", self.get(keys))),
            number => Ok(number),
        }
    }

    /// True if the head is the embedding. In a multimodal model the head is outside the text part, so the
    /// value of the whole file takes precedence.
    pub fn is_tied(&self) -> Option<bool> {
        const TIED: &str = "tie_word_embeddings";
        self.whole.get(TIED).and_then(Json::as_bool).or_else(|| self.bool(&[TIED]))
    }

    /// A boolean.
    pub fn bool(&self, keys: &[&str]) -> Option<bool> {
        self.get(keys).and_then(Json::as_bool)
    }

    /// A string.
    pub fn str(&self, keys: &[&str]) -> Option<&str> {
        self.get(keys).and_then(Json::as_str)
    }

    /// An error about a key.
    pub fn wrong(&self, key: &str, want: &str, found: Option<&Json>) -> ConvertError {
        let found = found.map_or("none".to_owned(), |value| value.to_string());
        ConvertError::file(&self.path, format!("`{key}`: want {want}, found {found}"))
    }

    /// Content of `quantization_config`, if there is one.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a configuration without a method.
    pub fn quantization(&self) -> Result<Option<Quantization>, ConvertError> {
        let Some(json) = self.get(&["quantization_config"]) else { return Ok(None) };
        let text = |key: &str| json.get(key).and_then(Json::as_str);
        let Some(method) = text("quant_method") else {
            return Err(self.wrong("quantization_config", "an object with `quant_method`", Some(json)));
        };
        let online = match text("quantization_mode") {
            None => None,
            Some("online") => Some(true),
            Some("offline") => Some(false),
            Some(_) => {
                let found = json.get("quantization_mode");
                return Err(self.wrong("quantization_mode", "`online` or `offline`", found));
            }
        };
        let spared = json.get("modules_to_not_convert").and_then(Json::as_array).cloned().unwrap_or_default();
        Ok(Some(Quantization {
            method: method.to_owned(),
            linear_class: text("linear_class").unwrap_or("bitlinear").to_owned(),
            online,
            spared: spared.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
        }))
    }

    /// The rotary embedding, from `rope_theta` and `rope_scaling` or from `rope_parameters`.
    ///
    /// # Errors
    /// [`ConvertError::File`] for invalid values, and for a scaling that no GGUF reader supports.
    pub fn rope(&self) -> Result<Rope, ConvertError> {
        let of_kinds = self.get(&["rope_parameters"]);
        let new = of_kinds.map(|json| json.get("full_attention").unwrap_or(json));
        let local = of_kinds.and_then(|json| json.get("sliding_attention"));
        let old = self.get(&["rope_scaling"]);
        let theta = |json: Option<&Json>| json.and_then(|json| json.get("rope_theta")).and_then(Json::as_f64);
        let base = match theta(new) {
            Some(base) => Some(base),
            None => self.positive(&["rope_theta", "rotary_emb_base"])?,
        };
        let local_base = match theta(local) {
            Some(base) => Some(base),
            None => self.positive(&["rope_local_base_freq"])?,
        };
        let rope =
            Rope { base: base.unwrap_or(10000.0), local_base, scaling: self.rope_scaling(new.or(old))? };
        for base in [Some(rope.base), rope.local_base].into_iter().flatten() {
            if !(base.is_finite() && base > 0.0) {
                return Err(self.wrong("rope_theta", "a number above 0", None));
            }
        }
        Ok(rope)
    }

    /// Pairs of RoPE for time, rows and columns of an image, for heads of this length.
    ///
    /// # Errors
    /// [`ConvertError::File`] if they are missing, or do not have all pairs together.
    pub fn sections(&self, head_dim: usize) -> Result<[usize; 3], ConvertError> {
        const PAIRS: &str = "mrope_section";
        let found = self.get(&["rope_parameters", "rope_scaling"]).and_then(|rope| rope.get(PAIRS));
        let list = found.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let pairs: Vec<usize> = list.iter().filter_map(Json::as_u64).map(|n| n as usize).collect();
        let is_whole = pairs.iter().try_fold(0_usize, |sum, n| sum.checked_add(*n)) == Some(head_dim / 2);
        let sections = <[usize; 3]>::try_from(pairs).ok().filter(|_| is_whole);
        sections.ok_or_else(|| self.wrong(PAIRS, &format!("three numbers, together {}", head_dim / 2), found))
    }

    /// The numbers that the parameters of RoPE have, by their keys there, with the second names given here.
    pub fn rope_numbers<'a>(&'a self, keys: &'a [(&str, &'a str)]) -> impl Iterator<Item = (f64, &'a str)> {
        let json = self.get(&["rope_parameters", "rope_scaling"]);
        keys.iter().filter_map(move |(from, to)| Some((json?.get(*from)?.as_f64()?, *to)))
    }

    /// Number of elements of a head that RoPE rotates.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a share that is not even or not from 0 to 1.
    pub fn rotated(&self, head_dim: usize) -> Result<usize, ConvertError> {
        const SHARE: &str = "partial_rotary_factor";
        let of_kinds = self.get(&["rope_parameters"]);
        let of_rope = of_kinds.map(|rope| rope.get("full_attention").unwrap_or(rope));
        let of_rope = of_rope.and_then(|rope| rope.get(SHARE)).and_then(Json::as_f64);
        // MiniMax M2's number of elements, in place of a share.
        if let Some(rotated) = self.count(&["rotary_dim"])? {
            return match rotated <= head_dim && rotated.is_multiple_of(2) {
                true => Ok(rotated),
                false => {
                    let want = format!("an even number up to {head_dim}");
                    Err(self.wrong("rotary_dim", &want, self.get(&["rotary_dim"])))
                }
            };
        }
        // The second is GPT-NeoX's name.
        let share = of_rope.map_or_else(|| self.number(&[SHARE, "rotary_pct"]), |share| Ok(Some(share)))?;
        let Some(share) = share else { return Ok(head_dim) };
        let rotated = (head_dim as f64 * share) as usize;
        match share <= 1.0 && rotated > 0 && rotated.is_multiple_of(2) {
            true => Ok(rotated),
            false => {
                let want = format!("an even share, not 0, of heads of {head_dim}");
                Err(self.wrong(SHARE, &want, self.get(&[SHARE])))
            }
        }
    }

    /// Divisors of the frequencies in a table of long RoPE.
    fn factors(&self, json: &Json, key: &str) -> Result<Vec<f32>, ConvertError> {
        let positive =
            |value: &Json| value.as_f64().filter(|factor| *factor > 0.0).map(|factor| factor as f32);
        let factors: Option<Vec<f32>> =
            json.get(key).and_then(Json::as_array).and_then(|list| list.iter().map(positive).collect());
        factors.ok_or_else(|| self.wrong(&format!("rope: {key}"), "numbers above 0", json.get(key)))
    }

    fn rope_scaling(&self, json: Option<&Json>) -> Result<RopeScaling, ConvertError> {
        let Some(json) = json else { return Ok(RopeScaling::None) };
        let kind = ["rope_type", "type"].iter().find_map(|key| json.get(*key)).and_then(Json::as_str);
        let number = |key: &str| -> Result<Option<f64>, ConvertError> {
            match json.get(key).filter(|value| !value.is_null()) {
                None => Ok(None),
                Some(value) => match value.as_f64().filter(|number| number.is_finite() && *number > 0.0) {
                    Some(number) => Ok(Some(number)),
                    None => Err(self.wrong(&format!("rope: {key}"), "a number above 0", Some(value))),
                },
            }
        };
        let require = |key: &str| number(key)?.ok_or_else(|| self.wrong(key, "a number above 0", Some(json)));
        let original = match number("original_max_position_embeddings")? {
            Some(original) => original,
            None => self.require(&["max_position_embeddings"])? as f64,
        };
        match kind {
            // The second is Qwen2.5-VL's name for sections of several axes, which scale nothing.
            None | Some("default" | "mrope") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear(require("factor")?)),
            Some("dynamic") => Ok(number("alpha")?.map_or(RopeScaling::Dynamic, RopeScaling::Alpha)),
            Some("proportional") => match number("partial_rotary_factor")?.unwrap_or(1.0) {
                share if share <= 1.0 => Ok(RopeScaling::Partial(share)),
                _ => {
                    let found = json.get("partial_rotary_factor");
                    Err(self.wrong("rope: partial_rotary_factor", "at most 1", found))
                }
            },
            Some("yarn") => {
                for (key, usual) in [("beta_fast", 32.0), ("beta_slow", 1.0)] {
                    if number(key)?.is_some_and(|found| found != usual) {
                        let want = format!("{usual}, the only value that readers of GGUF support");
                        return Err(self.wrong(&format!("rope: {key}"), &want, json.get(key)));
                    }
                }
                let factor = require("factor")?;
                // As transformers: 0 counts as missing, and one of them alone changes nothing.
                let mscale = |key: &str| match json.get(key).and_then(Json::as_f64) {
                    Some(0.0) => Ok(None),
                    _ => number(key),
                };
                let scale = |mscale: f64| if factor > 1.0 { 1.0 + 0.1 * mscale * factor.ln() } else { 1.0 };
                let of_pair = mscale("mscale")?.zip(mscale("mscale_all_dim")?);
                let attention =
                    number("attention_factor")?.or(of_pair.map(|(of, all)| scale(of) / scale(all)));
                Ok(RopeScaling::Yarn { factor, original: original as u32, attention })
            }
            Some("llama3") => {
                let (low, high) = (require("low_freq_factor")?, require("high_freq_factor")?);
                if high <= low {
                    return Err(self.wrong("high_freq_factor", "more than `low_freq_factor`", Some(json)));
                }
                Ok(RopeScaling::Llama3 { factor: require("factor")?, low, high, original })
            }
            // The second is its name in the first configurations of Phi-3.
            Some("longrope" | "su") => {
                const ORIGINAL: &str = "original_max_position_embeddings";
                let original =
                    number(ORIGINAL)?.map_or_else(|| self.positive(&[ORIGINAL]), |n| Ok(Some(n)))?;
                let original = original.ok_or_else(|| self.wrong(ORIGINAL, "a number above 0", None))?;
                let extension = self.require(&["max_position_embeddings"])? as f64 / original;
                let usual = if extension > 1.0 { (1.0 + extension.ln() / original.ln()).sqrt() } else { 1.0 };
                Ok(RopeScaling::Long {
                    short: self.factors(json, "short_factor")?,
                    long: self.factors(json, "long_factor")?,
                    original: original as u32,
                    attention: number("attention_factor")?.unwrap_or(usual),
                })
            }
            Some(_) => {
                let want = "default, linear, yarn, llama3, longrope or proportional";
                Err(self.wrong("rope_scaling", want, Some(json)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(json: Json) -> Config {
        let text = json.get("text_config").unwrap_or(&json).clone();
        Config { path: "config.json".into(), whole: json, text, defaults: &[("rms_norm_eps", 1e-6)] }
    }

    const LN_4: f64 = 2.0 * std::f64::consts::LN_2;

    #[test]
    fn rope_in_the_spellings_of_both_versions() {
        let old = json!({"rope_theta": 5e5, "max_position_embeddings": 4096, "rope_scaling":
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}});
        let new = json!({"max_position_embeddings": 4096, "rope_parameters":
            {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0,
             "original_max_position_embeddings": 1024}});
        let want = RopeScaling::Yarn { factor: 4.0, original: 1024, attention: None };
        for json in [old, new] {
            let rope = config(json).rope().unwrap();
            assert_eq!((rope.base, rope.local_base, rope.scaling), (5e5, None, want.clone()));
        }
        for (fields, want) in [
            (json!({"mscale": 1.0, "mscale_all_dim": 1.0}), Some(1.0)),
            (json!({"mscale": 0.5, "mscale_all_dim": 2.0}), Some((1.0 + 0.05 * LN_4) / (1.0 + 0.2 * LN_4))),
            (json!({"mscale": 0.5, "mscale_all_dim": 2.0, "attention_factor": 1.5}), Some(1.5)),
            (json!({"mscale": 0.707, "mscale_all_dim": 0.0}), None),
            (json!({"mscale": 0.707}), None),
        ] {
            let mut yarn = json!({"type": "yarn", "factor": 4.0});
            yarn.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let json = json!({"max_position_embeddings": 4096, "rope_scaling": yarn});
            let RopeScaling::Yarn { attention, .. } = config(json).rope().unwrap().scaling else { panic!() };
            assert_eq!(attention, want, "{fields}");
        }
        let by_layer = json!({"text_config": {"max_position_embeddings": 512, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}});
        let rope = config(by_layer).rope().unwrap();
        assert_eq!((rope.base, rope.local_base, rope.scaling), (1e6, Some(1e4), RopeScaling::Linear(8.0)));
        let nothing = config(json!({"max_position_embeddings": 512, "rope_scaling": null})).rope().unwrap();
        assert_eq!((nothing.base, nothing.scaling), (10000.0, RopeScaling::None));
        for wrong in [
            json!({"type": "other", "factor": 2.0}),
            json!({"type": "yarn"}),
            json!({"type": "yarn", "factor": 4.0, "beta_fast": 16.0}),
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
        ] {
            let json = json!({"max_position_embeddings": 512, "rope_scaling": wrong});
            assert!(config(json.clone()).rope().is_err(), "{json}");
        }
    }

    #[test]
    fn the_text_part_comes_first_and_defaults_last() {
        let json = json!({"hidden_size": 1, "tie_word_embeddings": true,
            "text_config": {"hidden_size": 8, "num_hidden_layers": null}});
        let config = config(json);
        assert_eq!(config.require(&["hidden_size"]).unwrap(), 8);
        assert_eq!(config.bool(&["tie_word_embeddings"]), Some(true));
        let whole = json!({"tie_word_embeddings": true, "text_config": {"tie_word_embeddings": false}});
        assert_eq!(self::config(whole).is_tied(), Some(true));
        assert_eq!(config.positive(&["rms_norm_eps"]).unwrap(), Some(1e-6));
        assert!(config.require(&["num_hidden_layers"]).is_err());
    }

    #[test]
    fn what_is_said_of_packed_weights() {
        let of = |json: Json| config(json!({ "quantization_config": json })).quantization();
        let found = of(json!({"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}));
        let found = found.unwrap().unwrap();
        assert_eq!((found.linear_class.as_str(), found.online), ("bitlinear", None));
        assert_eq!(found.spared, ["lm_head"]);
        assert!(of(json!({"quant_method": "bitnet", "quantization_mode": "sometimes"})).is_err());
        assert!(of(json!({})).is_err());
    }
}
