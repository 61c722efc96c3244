//! Search for the scale with which small signed integers fit a block best.

use crate::eights::{nearest_one_within, nearest_within, sums};

/// Searches a `scale` for which `scale * q[i]`, with `q[i]` in `-limit..limit`, has a small weighted squared
/// error against `values[i]`. Starts where the value of largest magnitude becomes `-limit`, and tries 18
/// neighbours of that. 0 if all values are (nearly) 0.
pub(crate) fn best_scale(values: &[f32], weights: &[f32], limit: i32) -> f32 {
    let extreme = values.iter().fold(0f32, |max, &value| if value.abs() > max.abs() { value } else { max });
    if extreme.abs() < 1e-15 {
        return 0.0;
    }
    let (mut scale, mut best) = (0.0, 0.0);
    // Zero first: the plain choice wins a tie.
    for step in [0].into_iter().chain(-9..0).chain(1..10) {
        let inverse = -(limit as f32 + 0.1 * step as f32) / extreme;
        let [sum_xq, sum_qq] = sums(values, weights, |value, weight| {
            let q = nearest_within(value * inverse, -limit as f32, (limit - 1) as f32);
            [weight * (value * q), weight * (q * q)]
        });
        // The fit explains sum_xq^2 / sum_qq of the sum of squares.
        if sum_qq > 0.0 && sum_xq * sum_xq > best * sum_qq {
            scale = sum_xq / sum_qq;
            best = scale * sum_xq;
        }
    }
    scale
}

/// The nearest integer (ties to even) to `value * inverse` in `-limit..limit`.
pub(crate) fn quantise(value: f32, inverse: f32, limit: i32) -> i32 {
    nearest_one_within(value * inverse, -limit as f32, (limit - 1) as f32) as i32
}
