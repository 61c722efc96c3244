//! Final norm and output head, for the rows whose logits are requested.

use super::cx::{Cx, two};
use crate::BackendError;
use sterna_program::Logits;

/// Elements of one task when the soft cap is applied.
const CHUNK: usize = 8192;

pub fn run(cx: &mut Cx<'_>, s: &Logits) -> Result<(), BackendError> {
    let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
    let outputs = cx.outputs;
    if outputs.is_empty() {
        return Ok(());
    }
    let k = cx.k.real;
    let norm = cx.weights.norm(norm);
    let (x, logits) = two(cx.bufs, x, logits);
    let (x_cols, x) = (x.cols, x.rows(cx.step.rows.len()));
    let input = |i: usize, out: &mut [f32]| norm.apply(k, &x[outputs[i] * x_cols..][..x_cols], out);
    let logits = logits.rows_mut(outputs.len());
    cx.layers.run_some(outputs.len(), |i| outputs[i], input, false, [(w, &mut *logits)])?;
    if let Some(cap) = soft_cap {
        cx.pool.chunks_mut(logits, CHUNK, |_, logits| {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        });
    }
    Ok(())
}
