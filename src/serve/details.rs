//! A model in few words, as ollama's clients and llama-server's list of models have it.

use serde_json::{Value, json};

use super::model::Served;

/// Details of a model, as far as its file has been read.
pub fn details(served: Option<&Served>) -> Value {
    let family = served.map(|served| served.engine.hyper().architecture.as_str());
    let mut details = json!({
        "parent_model": "",
        "format": "gguf",
        "family": family.unwrap_or_default(),
        "families": family.as_slice(),
        "parameter_size": served.map(|served| in_letters(served.n_params())).unwrap_or_default(),
        "quantization_level": served.map(|served| served.quantization.as_str()).unwrap_or_default(),
    });
    if let Some(served) = served {
        details["context_length"] = served.n_ctx().into();
    }
    details
}

/// A number of weights as ollama writes it: `3.2B`, `494.03M`, `960K`.
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
