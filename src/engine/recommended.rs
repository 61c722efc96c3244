//! Sampling options recommended by a model's file: `general.sampling.*`, compatible with llama.cpp.

use super::sampler::SamplerOptions;
use super::sampler::{SamplerError, check};
use sterna_gguf::{GgufError, Metadata};

/// Keys of samplers that a file may recommend but that are not supported; 0 disables a sampler.
const UNKNOWN: [&str; 3] =
    ["general.sampling.sequence", "general.sampling.xtc_probability", "general.sampling.mirostat"];

/// Options that a file sets, and the names of their keys.
const KEYS: [(&str, &str); 4] = [
    ("SamplerOptions::temperature", "temp"),
    ("SamplerOptions::top_p", "top_p"),
    ("SamplerOptions::min_p", "min_p"),
    ("SamplerOptions::repeat_penalty", "penalty_repeat"),
];

impl SamplerOptions {
    /// The file's recommendations, and defaults for the rest, for a context of `n_ctx` positions.
    ///
    /// # Errors
    /// [`GgufError::WrongType`], also for a number out of range.
    pub fn recommended(metadata: &Metadata, n_ctx: usize) -> Result<Self, GgufError> {
        let default = Self::default();
        let float = |name: &str, default: f32| -> Result<f32, GgufError> {
            Ok(metadata.f32(&format!("general.sampling.{name}"))?.unwrap_or(default))
        };
        let int = |name: &str| metadata.i64(&format!("general.sampling.{name}"));
        let options = Self {
            temperature: float("temp", default.temperature)?,
            top_k: int("top_k")?.map_or(default.top_k, top_k),
            top_p: float("top_p", default.top_p)?,
            min_p: float("min_p", default.min_p)?,
            repeat_penalty: float("penalty_repeat", default.repeat_penalty)?,
            repeat_last_n: last_n(int("penalty_last_n")?.unwrap_or(default.repeat_last_n as i64), n_ctx),
            ..default
        };
        match check(&options) {
            Ok(()) => Ok(options),
            Err(SamplerError { option, want, got }) => {
                let key = KEYS.iter().find(|(of, _)| *of == option).map_or(option, |(_, key)| key);
                let (key, found) = (format!("general.sampling.{key}"), got.to_string());
                Err(GgufError::WrongType { key, want, found })
            }
        }
    }

    /// Keys of the file's recommendations that are not supported.
    pub fn not_followed(metadata: &Metadata) -> impl Iterator<Item = &'static str> {
        let asks = |key: &&str| {
            metadata.get(key).is_some_and(|value| value.as_f32().is_none_or(|number| number != 0.0))
        };
        UNKNOWN.into_iter().filter(asks)
    }
}

/// Number of largest logits to keep: `k`, or 0 for all if it is not positive.
pub fn top_k(k: i64) -> u32 {
    k.clamp(0, u32::MAX.into()) as u32
}

/// Number of recent tokens, in a context of `n_ctx`: `n`, or all if it is negative.
pub fn last_n(n: i64, n_ctx: usize) -> usize {
    usize::try_from(n).map_or(n_ctx, |n| n.min(n_ctx))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_gguf::Value;

    fn metadata(entries: &[(&str, Value)]) -> Metadata {
        let mut metadata = Metadata::default();
        entries
            .iter()
            .for_each(|(name, value)| metadata.set(format!("general.sampling.{name}"), value.clone()));
        metadata
    }

    #[test]
    fn what_a_file_recommends_takes_the_place_of_the_defaults() {
        assert_eq!(SamplerOptions::recommended(&metadata(&[]), 100).unwrap(), SamplerOptions::default());
        let file = metadata(&[
            ("temp", Value::F32(0.5)),
            ("top_k", Value::I32(-1)),
            ("penalty_repeat", Value::F32(1.25)),
            ("penalty_last_n", Value::I32(-1)),
        ]);
        let want = SamplerOptions {
            temperature: 0.5,
            top_k: 0,
            repeat_penalty: 1.25,
            repeat_last_n: 100,
            ..SamplerOptions::default()
        };
        assert_eq!(SamplerOptions::recommended(&file, 100).unwrap(), want);
        let wrong = metadata(&[("min_p", Value::Str("0.1".into()))]);
        let err = SamplerOptions::recommended(&wrong, 100).unwrap_err().to_string();
        assert!(err.contains("general.sampling.min_p"), "{err}");
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_key() {
        for (key, value) in [
            ("temp", f32::NAN),
            ("top_p", 7.0),
            ("min_p", -1.0),
            ("penalty_repeat", 0.0),
            ("temp", f32::INFINITY),
        ] {
            let file = metadata(&[(key, Value::F32(value))]);
            let err = SamplerOptions::recommended(&file, 100).unwrap_err().to_string();
            assert!(err.contains(&format!("`general.sampling.{key}`: want ")), "{err}");
        }
    }

    #[test]
    fn samplers_that_are_not_there_are_named_unless_they_are_off() {
        let file = metadata(&[
            ("sequence", Value::Str("kt".into())),
            ("mirostat", Value::I32(0)),
            ("xtc_probability", Value::F32(0.5)),
        ]);
        let named: Vec<_> = SamplerOptions::not_followed(&file).collect();
        assert_eq!(named, ["general.sampling.sequence", "general.sampling.xtc_probability"]);
    }
}
