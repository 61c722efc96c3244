//! Norm and the first half of the feed-forward network.

use super::cx::{Cx, two};
use super::norm::norm_or_copy;
use crate::BackendError;
use sterna_cpu_kernels::real::{RealKernels, exp};
use sterna_program::FfnIn;

/// Elements of one task when the activation function is applied.
const CHUNK: usize = 8192;

pub fn run(cx: &mut Cx<'_>, s: &FfnIn) -> Result<(), BackendError> {
    let FfnIn { x, ref norm, ref gate, ref up, act, ref share, times, cutoff, h } = *s;
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = norm.as_ref().map(|norm| cx.weights.norm(norm));
    let (x, h, times) = match times {
        None => {
            let (x, h) = two(cx.bufs, x, h);
            (x, h, None)
        }
        Some(times) => {
            let bufs = [x, h, times].map(|buf| buf.0 as usize);
            let [x, h, times] = cx.bufs.get_disjoint_mut(bufs).expect("three buffers");
            (&*x, h, Some(times.rows(n)))
        }
    };
    let (x_cols, x) = (x.cols, x.rows(n));
    let h = h.rows_mut(n);
    let input = |row: usize, out: &mut [f32]| norm_or_copy(k, norm, &x[row * x_cols..][..x_cols], out);
    if let Some(share) = share {
        cx.layers.run(n, input, false, [(share, &mut cx.scratch.share[..n])])?;
    }
    match gate {
        Some(gate) => {
            let g = &mut cx.scratch.product[..h.len()];
            cx.layers.run(n, input, false, [(gate, &mut *g), (up, &mut *h)])?;
            if let Some(cutoff) = cutoff {
                let cols = g.len() / n.max(1);
                cx.pool.chunks_mut(g, cols.max(1), |_, g| cut(k, cutoff, g));
            }
            let g = &*g;
            cx.pool.chunks_mut(h, CHUNK, |i, h| (k.gate)(act, &g[i * CHUNK..][..h.len()], h));
        }
        None => {
            cx.layers.run(n, input, false, [(up, &mut *h)])?;
            cx.pool.chunks_mut(h, CHUNK, |_, h| (k.act)(act, h));
        }
    }
    if share.is_some() {
        let (share, cols) = (&cx.scratch.share[..n], h.len() / n.max(1));
        h.chunks_exact_mut(cols).zip(share).for_each(|(h, share)| {
            let share = 1.0 / (1.0 + exp(-share));
            h.iter_mut().for_each(|h| *h *= share);
        });
    }
    if let Some(times) = times {
        h.iter_mut().zip(times).for_each(|(h, by)| *h *= by);
    }
    Ok(())
}

/// Subtracts from a row its mean and `cutoff` standard deviations, and replaces what is below 0 by 0.
fn cut(k: &RealKernels, cutoff: f32, g: &mut [f32]) {
    let len = g.len() as f64;
    let mean = (k.sum)(g) / len;
    let deviation = ((k.sum_squares)(g, mean) / len).sqrt();
    let bound = (mean + f64::from(cutoff) * deviation) as f32;
    g.iter_mut().for_each(|g| *g = (*g - bound).max(0.0));
}
