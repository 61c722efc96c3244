//! Flags of embeddings: pooling and normalisation.

use clap::Args;

use crate::engine::Pooling;

/// Pooling and normalisation of embeddings.
#[derive(Args, Clone, Debug)]
pub struct PoolingArgs {
    /// How token vectors are pooled into one: none (a vector per token), mean, cls (the first one), last, or
    /// rank (a score) [default: as in the file; else mean for encoders and last for other models]
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    #[arg(alias = "LLAMA_ARG_POOLING")]
    pub pooling: Option<Pooling>,
    /// Norm by which vectors are scaled: -1 none, 0 largest magnitude (to 32760), 1 sum of magnitudes, 2
    /// Euclidean, otherwise the p-norm
    #[arg(long, value_name = "P", default_value_t = 2, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..=64))]
    pub embd_normalize: i32,
}

/// Reads the value of `--pooling`.
fn pooling(name: &str) -> Result<Pooling, String> {
    let found = Pooling::ALL.into_iter().find(|pooling| pooling.name() == name);
    found.ok_or_else(|| format!("want one of {}", Pooling::ALL.map(Pooling::name).join(", ")))
}
