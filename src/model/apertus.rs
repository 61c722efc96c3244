//! Apertus: Llama's form with norms over each query and key head, RoPE over the halves of a head, and a
//! feed-forward network without a gate, whose activation function xIELU has numbers of its own in each layer.

use super::llama::{Variant, decoder};
use super::{Architecture, Builder, ModelError};
use sterna_gguf::Value;
use sterna_program::{Act, QkNorm, RopeStyle, Xielu};

/// Apertus.
pub static ARCHITECTURE: Architecture = Architecture { names: &["apertus"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (rope, qk_norm) = (RopeStyle::Halves, Some(QkNorm::Heads));
    let acts = &acts(m)?;
    decoder(m, &Variant { rope, qk_norm, gated: false, acts, ..Variant::PLAIN })
}

/// The activation functions of all layers. Files store the inverse softplus of two of their numbers, and the
/// keys do not begin with the architecture.
fn acts(m: &Builder<'_>) -> Result<Vec<Act>, ModelError> {
    let n_layers = m.hyper().n_layers;
    let read = |key: &str| -> Result<Vec<f32>, ModelError> {
        let found = m.metadata().get(key);
        let all: Option<Vec<f32>> = match found {
            Some(Value::Array(array)) => array.f32s().map(Iterator::collect),
            _ => found.and_then(Value::as_f32).map(|number| vec![number; n_layers]),
        };
        all.filter(|all| all.len() == n_layers && all.iter().all(|x| x.is_finite())).ok_or_else(|| {
            let want = format!("a number, or {n_layers} of them");
            let got = if found.is_some() { "another value" } else { "none" };
            ModelError::Metadata { key: key.to_owned(), want, got: got.to_owned() }
        })
    };
    let [positive, negative, beta, eps] =
        ["xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"].map(read);
    let (positive, negative, beta, eps) = (positive?, negative?, beta?, eps?);
    let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
    let act = |layer: usize| {
        let beta = beta[layer];
        Act::Xielu(Xielu {
            positive: softplus(positive[layer]),
            negative: beta + softplus(negative[layer]),
            beta,
            eps: eps[layer],
        })
    };
    Ok((0..n_layers).map(act).collect())
}
