//! Normalisation of one row.

use sterna_cpu_kernels::real::RealKernels;
use sterna_program::NormKind;

/// A norm with its weights.
#[derive(Clone, Copy)]
pub struct RowNorm<'a> {
    pub kind: NormKind,
    /// `[dim]`.
    pub weight: &'a [f32],
    /// `[dim]`.
    pub bias: Option<&'a [f32]>,
    pub eps: f32,
}

/// Writes the normalised `x` to `out`, or `x` itself without a norm.
pub fn norm_or_copy(k: &RealKernels, norm: Option<RowNorm<'_>>, x: &[f32], out: &mut [f32]) {
    match norm {
        Some(norm) => norm.apply(k, x, out),
        None => out.copy_from_slice(x),
    }
}

impl RowNorm<'_> {
    /// Normalises `x` into `out`, both `[dim]`.
    ///
    /// The mean and the mean square are summed in f64, so they are the same on every instruction set: int8
    /// quantisation often follows, where a difference of one unit in the last place can flip the rounding.
    pub fn apply(&self, k: &RealKernels, x: &[f32], out: &mut [f32]) {
        let (mean, factor) = self.mean_and_factor(k, x);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
            *out = (x - mean) * factor * weight;
        }
        self.add_bias(out);
    }

    /// Normalises `x` in place.
    pub fn apply_in_place(&self, k: &RealKernels, x: &mut [f32]) {
        let (mean, factor) = self.mean_and_factor(k, x);
        for (x, weight) in x.iter_mut().zip(self.weight) {
            *x = (*x - mean) * factor * weight;
        }
        self.add_bias(x);
    }

    /// Adds the normalised `x` to `out`, both `[dim]`.
    pub fn add(&self, k: &RealKernels, x: &[f32], out: &mut [f32]) {
        let (mean, factor) = self.mean_and_factor(k, x);
        for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
            let bias = self.bias.map_or(0.0, |bias| bias[i]);
            *out += (x - mean) * factor * self.weight[i] + bias;
        }
    }

    fn mean_and_factor(&self, k: &RealKernels, x: &[f32]) -> (f32, f32) {
        let len = x.len() as f64;
        let mean = match self.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => (k.sum)(x) / len,
        };
        let mean_square = (k.sum_squares)(x, mean) / len;
        (mean as f32, (1.0 / (mean_square + f64::from(self.eps)).sqrt()) as f32)
    }

    fn add_bias(&self, out: &mut [f32]) {
        if let Some(bias) = self.bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
    }
}
