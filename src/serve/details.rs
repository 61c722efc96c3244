//! Brief details of a model for ollama's clients and llama-server's list of models.

use schemars::JsonSchema;
use serde::Serialize;

use super::model::Served;

/// Details of a model, as far as they are known before it is loaded.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ModelDetails")]
pub struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
    /// Maximum positions of a sequence, for a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

impl Details {
    /// Details of a model, loaded or not.
    pub fn new(served: Option<&Served>) -> Self {
        let family = served.map(|served| served.engine.hyper().architecture.clone());
        Self {
            parent_model: "",
            format: "gguf",
            family: family.clone().unwrap_or_default(),
            families: family.into_iter().collect(),
            parameter_size: served.map(|served| in_letters(served.n_params())).unwrap_or_default(),
            quantization_level: served.map(|served| served.quantization.clone()).unwrap_or_default(),
            context_length: served.map(Served::n_ctx),
        }
    }
}

/// Number of weights in ollama's format: `3.2B`, `494.03M`, `960K`.
fn in_letters(n: usize) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e3 => format!("{:.0}K", n / 1e3),
        _ => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_weights_have_letters() {
        let numbers = [900, 9_600, 494_032_768, 6_200_000, 1_000_000_000, 3_212_749_888];
        let said = ["900", "10K", "494.03M", "6.20M", "1.0B", "3.2B"];
        assert_eq!(numbers.map(in_letters), said);
    }
}
