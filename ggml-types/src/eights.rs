//! Arithmetic on eight elements at a time, which compilers turn into vector instructions, for searches that
//! pass over a block many times.

use wide::f32x8;

/// Adding and subtracting 1.5 x 2^23 rounds to an integer, ties to even. The first x86-64 processors have no
/// rounding instruction.
const ROUNDING: f32 = 12_582_912.0;

/// Sums of `terms` over values and their weights, a multiple of eight elements. They are added one after the
/// other, as in the kernels that encode a KV cache on a device.
pub(crate) fn sums<const N: usize>(
    values: &[f32],
    weights: &[f32],
    terms: impl Fn(f32x8, f32x8) -> [f32x8; N],
) -> [f32; N] {
    let mut all = [0.0; N];
    let (values, rest) = values.as_chunks();
    debug_assert!(rest.is_empty(), "whole eights");
    for (values, weights) in values.iter().zip(weights.as_chunks().0) {
        let terms = terms(f32x8::new(*values), f32x8::new(*weights)).map(f32x8::to_array);
        for lane in 0..8 {
            for (all, terms) in all.iter_mut().zip(&terms) {
                *all += terms[lane];
            }
        }
    }
    all
}

/// The nearest integers (ties to even) in `low..=high`, both of which are integers below 2^22 in magnitude.
pub(crate) fn nearest_within(values: f32x8, low: f32, high: f32) -> f32x8 {
    values.fast_max(f32x8::splat(low)).fast_min(f32x8::splat(high)) + ROUNDING - ROUNDING
}

/// The same for one number.
pub(crate) fn nearest_one_within(value: f32, low: f32, high: f32) -> f32 {
    value.max(low).min(high) + ROUNDING - ROUNDING
}

/// `value` where `values` are larger than `limit`, 0 elsewhere.
pub(crate) fn where_above(values: f32x8, limit: f32, value: f32) -> f32x8 {
    values.simd_gt(f32x8::splat(limit)) & f32x8::splat(value)
}

#[cfg(test)]
mod tests {
    use wide::f32x8;

    use super::{nearest_one_within, nearest_within, sums, where_above};

    #[test]
    fn rounding_is_that_of_the_library() {
        let mut values: Vec<f32> = (-1200..1200).map(|eighths| eighths as f32 / 8.0).collect();
        values.extend([0.499_999_97, 2.500_000_2, 1e30, -1e30, f32::INFINITY, f32::MIN_POSITIVE]);
        for value in values {
            let want = value.round_ties_even().clamp(-128.0, 127.0);
            assert_eq!(nearest_within(f32x8::splat(value), -128.0, 127.0).to_array(), [want; 8], "{value}");
            assert_eq!(nearest_one_within(value, -128.0, 127.0), want, "{value}");
        }
    }

    #[test]
    fn sums_are_over_all_elements() {
        let values: [f32; 32] = std::array::from_fn(|at| at as f32 - 7.0);
        let weights: [f32; 32] = std::array::from_fn(|at| (at % 3) as f32);
        let [sum, above] = sums(&values, &weights, |value, weight| {
            [weight * (value * value - 2.0), where_above(value, 1.0, 3.0) + 1.0]
        });
        let each = values.iter().zip(&weights);
        let want: f32 = each.map(|(value, weight)| weight * (value * value - 2.0)).sum();
        let n_above = values.iter().filter(|value| **value > 1.0).count();
        assert_eq!((sum, above), (want, 32.0 + 3.0 * n_above as f32));
    }
}
