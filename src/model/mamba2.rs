//! Mamba-2 and Mamba Codestral: each layer is a Mamba-2 recurrence. There is no attention, so a sequence has
//! a state but no KV cache.

use super::mixer::MambaLayers;
use super::{Architecture, Builder, ModelError};

/// Mamba-2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["mamba2"], build, per_layer: true };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (n_layers, dim) = (m.hyper().n_layers, m.hyper().dim);
    let mamba = MambaLayers::read(m, 1.0)?;
    let x = m.embed(1.0)?;
    for layer in 0..n_layers {
        let (label, out) = mamba.push(m, layer, x)?;
        m.push(label, out);
    }
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(x, norm, 1.0, None)
}
