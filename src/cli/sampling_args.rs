//! Sampling flags, with llama.cpp's names.

use clap::Args;

use super::{CliError, names};
use crate::engine::{Engine, SamplerOptions, recommended};

/// Sampling options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling (a model file may recommend other defaults: general.sampling.*)")]
pub struct SamplingArgs {
    /// Temperature; 0 always picks the most likely token [default: 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true, visible_alias = "temperature")]
    #[arg(alias = "LLAMA_ARG_TEMPERATURE")]
    pub temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    #[arg(alias = "LLAMA_ARG_TOP_K")]
    pub top_k: Option<i64>,
    /// Keep the most likely tokens up to this probability; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P")]
    #[arg(alias = "LLAMA_ARG_TOP_P")]
    pub top_p: Option<f32>,
    /// Keep tokens of at least P times the largest probability; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P")]
    #[arg(alias = "LLAMA_ARG_MIN_P")]
    pub min_p: Option<f32>,
    /// Locally typical sampling up to this probability; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = 1.0, alias = "typical-p")]
    pub typical: f32,
    /// Divide the logits of recent tokens by X; 1 disables it [default: 1]
    #[arg(long, value_name = "X")]
    #[arg(alias = "LLAMA_ARG_REPEAT_PENALTY")]
    pub repeat_penalty: Option<f32>,
    /// Subtract X from the logit of every recent token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(alias = "LLAMA_ARG_PRESENCE_PENALTY")]
    pub presence_penalty: f32,
    /// Subtract X from the logit of a recent token for each time it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(alias = "LLAMA_ARG_FREQUENCY_PENALTY")]
    pub frequency_penalty: f32,
    /// Number of recent tokens; 0 is none, -1 the whole context [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i64>,
    /// Seed; the same seed and flags give the same text [default: random]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(alias = "LLAMA_ARG_SEED")]
    pub seed: Option<i64>,
    /// Add to the logit of a token, as in 15043+1.5, 15043-1 or 15043-inf (repeatable)
    #[arg(short, long, value_name = "TOKEN(+/-)BIAS", value_parser = logit_bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,
}

impl SamplingArgs {
    /// Sampler options: flags, then the recommendations in the model's file, then the defaults. Prints a note
    /// for each recommendation that is not supported.
    ///
    /// # Errors
    /// Same as [`Engine::sampler_options`]; a token id beyond the vocabulary.
    pub fn options(&self, engine: &Engine) -> Result<SamplerOptions, CliError> {
        for key in SamplerOptions::not_followed(engine.gguf().metadata()) {
            names::note("note", &format!("the file recommends a sampler that is not supported ({key})"));
        }
        let file = engine.sampler_options()?;
        let n_vocab = engine.hyper().n_vocab;
        if let Some((token, _)) = self.logit_bias.iter().find(|(token, _)| *token as usize >= n_vocab) {
            return Err(format!("--logit-bias: token {token} is not among the model's {n_vocab}").into());
        }
        Ok(SamplerOptions {
            temperature: self.temp.unwrap_or(file.temperature),
            top_k: self.top_k.map_or(file.top_k, recommended::top_k),
            typical_p: self.typical,
            top_p: self.top_p.unwrap_or(file.top_p),
            min_p: self.min_p.unwrap_or(file.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(file.repeat_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self
                .repeat_last_n
                .map_or(file.repeat_last_n, |n| recommended::last_n(n, engine.n_ctx())),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.and_then(|seed| u64::try_from(seed).ok()),
        })
    }
}

/// Reads `TOKEN+BIAS` or `TOKEN-BIAS`.
fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let want = || format!("want a token id, + or -, and a number, as in 15043+1.5; found `{text}`");
    let sign = text.find(['+', '-']).ok_or_else(want)?;
    let token = text[..sign].parse().map_err(|_| want())?;
    let bias = text[sign..].parse().map_err(|_| want())?;
    Ok((token, bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logit_biases_as_they_are_typed() {
        assert_eq!(logit_bias("15043+1.5"), Ok((15043, 1.5)));
        assert_eq!(logit_bias("15043-1"), Ok((15043, -1.0)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for bad in ["", "15043", "+1", "x+1", "1+", "1+y", "é+1"] {
            assert!(logit_bias(bad).is_err(), "{bad}");
        }
    }
}
