//! The residual streams of alternating updates (AltUp): prediction, correction, and equal magnitudes. A
//! stream after the other is computed, in parallel over the rows.

use super::cx::{Cx, two};
use sterna_program::{AltUpCorrect, AltUpPredict, Rescale, STREAMS};

pub fn predict(cx: &mut Cx<'_>, s: &AltUpPredict) {
    let AltUpPredict { c, w, x, active, out, y } = *s;
    let (n, w) = (cx.step.rows.len(), cx.weights.vector(w));
    for (j, (out, w)) in out.into_iter().zip(w.chunks_exact(STREAMS * STREAMS)).enumerate() {
        let [x0, x1, x2, x3] = x;
        let bufs = [out, c, x0, x1, x2, x3].map(|buf| buf.0 as usize);
        let [out, c, x @ ..] = cx.bufs.get_disjoint_mut(bufs).expect("different buffers");
        let (dim, c, x) = (out.cols, c.rows(n), x.map(|x| x.rows(n)));
        cx.pool.chunks_mut(out.rows_mut(n), dim, |row, out| {
            out.copy_from_slice(&x[j][row * dim..][..dim]);
            let m = products(w, &c[row * STREAMS..][..STREAMS]);
            for (m, x) in m.zip(x) {
                out.iter_mut().zip(&x[row * dim..]).for_each(|(out, x)| *out += m * x);
            }
        });
    }
    let (from, y) = two(cx.bufs, out[active], y);
    y.rows_mut(n).copy_from_slice(from.rows(n));
}

pub fn correct(cx: &mut Cx<'_>, s: &AltUpCorrect) {
    let AltUpCorrect { c, w, y, predicted, active, x, factors, scaled } = *s;
    let (n, w) = (cx.step.rows.len(), cx.weights.vector(w));
    for (j, (x, w)) in x.into_iter().zip(w.chunks_exact(STREAMS)).enumerate() {
        let [p0, p1, p2, p3] = predicted;
        let bufs = [x, c, y, p0, p1, p2, p3].map(|buf| buf.0 as usize);
        let [x, c, y, predicted @ ..] = cx.bufs.get_disjoint_mut(bufs).expect("different buffers");
        let (dim, c, y, predicted) = (x.cols, c.rows(n), y.rows(n), predicted.map(|p| p.rows(n)));
        cx.pool.chunks_mut(x.rows_mut(n), dim, |row, x| {
            let m = products(w, &c[row * STREAMS..][..STREAMS]).sum::<f32>();
            let [y, own, active] = [y, predicted[j], predicted[active]].map(|buf| &buf[row * dim..][..dim]);
            for (x, ((y, own), active)) in x.iter_mut().zip(y.iter().zip(own).zip(active)) {
                *x = own + (1.0 + m) * (y - active);
            }
        });
    }
    let (x, scaled) = two(cx.bufs, x[active], scaled);
    let (dim, x, factors) = (x.cols, x.rows(n), cx.weights.vector(factors));
    cx.pool.chunks_mut(scaled.rows_mut(n), dim, |row, scaled| {
        let x = &x[row * dim..];
        scaled.iter_mut().zip(x).zip(factors).for_each(|((scaled, x), factor)| *scaled = factor * x);
    });
}

/// Rows of a matrix of `STREAMS` columns, times the hyperbolic tangent of `c`.
fn products(w: &[f32], c: &[f32]) -> impl Iterator<Item = f32> {
    let c: [f32; STREAMS] = std::array::from_fn(|i| tanh(c[i]));
    w.chunks_exact(STREAMS).map(move |w| w.iter().zip(c).map(|(w, c)| w * c).sum())
}

/// In f64, so that it is the same on every system to the last bit but for the rarest of roundings.
fn tanh(x: f32) -> f32 {
    f64::from(x).tanh() as f32
}

pub fn rescale(cx: &mut Cx<'_>, s: &Rescale) {
    let Rescale { like, y, floor, mean } = *s;
    let (n, k) = (cx.step.rows.len(), cx.k.real);
    for y in y {
        let (like, y) = two(cx.bufs, like, y);
        let (dim, like) = (y.cols, like.rows(n));
        cx.pool.chunks_mut(y.rows_mut(n), dim, |row, y| {
            let mean_square = |x: &[f32]| (k.sum_squares)(x, 0.0) / dim as f64;
            let want = mean_square(&like[row * dim..][..dim]).sqrt();
            let factor = (want / mean_square(y).max(f64::from(floor)).sqrt()) as f32;
            y.iter_mut().for_each(|y| *y *= factor);
        });
    }
    let Some(mean) = mean else { return };
    let [y0, y1, y2] = y;
    let bufs = [mean, like, y0, y1, y2].map(|buf| buf.0 as usize);
    let [mean, streams @ ..] = cx.bufs.get_disjoint_mut(bufs).expect("different buffers");
    let (dim, streams) = (mean.cols, streams.map(|stream| stream.rows(n)));
    cx.pool.chunks_mut(mean.rows_mut(n), dim, |row, mean| {
        for (col, mean) in mean.iter_mut().enumerate() {
            *mean = streams.iter().map(|stream| stream[row * dim + col]).sum::<f32>() / STREAMS as f32;
        }
    });
}
