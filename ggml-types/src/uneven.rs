//! The 16 unevenly spaced values of IQ4_NL and IQ4_XS, dense around 0 as weights are.

use wide::f32x8;

use crate::block::reciprocal;
use crate::eights::{sums, where_above};

/// Value of each index, in ascending order.
pub(crate) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The index of the nearest value.
pub(crate) fn nearest(value: f32) -> u8 {
    // Twice the midpoint between two neighbours is an integer.
    VALUES.windows(2).take_while(|pair| f32::from(pair[0]) + f32::from(pair[1]) < 2.0 * value).count() as u8
}

/// The nearest values themselves, without a branch.
fn nearest_values(values: f32x8) -> f32x8 {
    let pairs = VALUES.windows(2).map(|pair| (f32::from(pair[0]), f32::from(pair[1])));
    pairs.fold(f32x8::splat(VALUES[0].into()), |sum, (a, b)| sum + where_above(values, (a + b) / 2.0, b - a))
}

/// The scale for which `scale * VALUES[i]`, with the best index for each of `values`, has a small weighted
/// squared error: the best least-squares fit from some initial scales that put the value of largest magnitude
/// near either end.
pub(crate) fn best_scale(values: &[f32], weights: &[f32]) -> f32 {
    let extreme = values.iter().fold(0f32, |max, &value| if value.abs() > max.abs() { value } else { max });
    let (mut scale, mut best) = (0.0, 0.0);
    for end in [VALUES[0], VALUES[15]] {
        for step in -14..=14 {
            let inverse = (f32::from(end) + 1.5 * step as f32) * reciprocal(extreme);
            let [sum_xq, sum_qq] = sums(values, weights, |value, weight| {
                let q = nearest_values(value * inverse);
                [weight * (value * q), weight * (q * q)]
            });
            // The fit explains sum_xq^2 / sum_qq of the sum of squares.
            if sum_xq * sum_xq > best * sum_qq {
                scale = sum_xq / sum_qq;
                best = scale * sum_xq;
            }
        }
    }
    scale
}
