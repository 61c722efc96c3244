//! Search for the scales and minimums that fit values best: value = scale x code - minimum.

use half::f16;

use crate::block::{absmax, f16_rounding, fitted_f16, reciprocal};
use crate::eights::{nearest_one_within, nearest_within, sums};

/// Elements of a block of groups.
const BLOCK: usize = 256;

/// A block of `N` groups, whose scales and minimums are small integers times one f16 each.
pub(crate) struct Fit<const N: usize> {
    /// Scale of the scales, and of the minimums.
    pub of_scales: f16,
    pub of_mins: f16,
    /// Scale and minimum of each group.
    pub groups: [(u8, u8); N],
    pub codes: [u8; BLOCK],
}

impl<const N: usize> Fit<N> {
    /// Fits codes of 0 to `levels`, and scales and minimums of 0 to `most`.
    pub fn of(values: &[f32], weights: &[f32], levels: u8, most: f32) -> Self {
        let group_elems = BLOCK / N;
        let mut found = [(0.0, 0.0); N];
        let groups = || values.chunks_exact(group_elems).zip(weights.chunks_exact(group_elems));
        for (found, (group, weights)) in found.iter_mut().zip(groups()) {
            *found = best_affine(group, weights, levels);
        }
        let (largest_scale, largest_min) =
            found.iter().fold((0f32, 0f32), |(scale, min), of| (scale.max(of.0), min.max(of.1)));
        let plain = absmax(values) / most;
        let [of_scales, of_mins] =
            [largest_scale, largest_min].map(|largest| fitted_f16(largest / most, plain));
        let mut fit = Self { of_scales, of_mins, groups: [(0, 0); N], codes: [0; BLOCK] };
        let [of_scales, of_mins] = [of_scales, of_mins].map(f16::to_f32);
        let near = |value: f32, unit: f32| {
            let nearest = (value * reciprocal(unit)).round().min(most);
            [nearest, nearest - 1.0, nearest + 1.0]
                .into_iter()
                .filter(move |near| (0.0..=most).contains(near))
        };
        for (group, ((values, weights), (scale, min))) in groups().zip(found).enumerate() {
            // Rounded together they may fit better than each rounded on its own.
            let (mut best, mut least) = ((0.0, 0.0), f32::INFINITY);
            for scale in near(scale, of_scales) {
                for min in near(min, of_mins) {
                    let off = error(values, weights, levels, of_scales * scale, of_mins * min);
                    if off < least {
                        (best, least) = ((scale, min), off);
                    }
                }
            }
            fit.groups[group] = (best.0 as u8, best.1 as u8);
            let (inverse, min) = (reciprocal(of_scales * best.0), of_mins * best.1);
            for (code, value) in fit.codes[group * group_elems..].iter_mut().zip(values) {
                *code = code_of(value + min, inverse, levels);
            }
        }
        fit
    }
}

/// One group with an f16 scale and an f16 offset of either sign: both, and the codes. The better of the
/// least-squares fit and the plain range.
pub(crate) fn fit_group<const N: usize>(values: &[f32], weights: &[f32], levels: u8) -> (f16, f16, [u8; N]) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let plain = ((high - low) / f32::from(levels), -low);
    let fits =
        [plain, best_affine(values, weights, levels)].map(|(scale, min)| [scale, min].map(f16::from_f32));
    let errors = fits.map(|[scale, min]| error(values, weights, levels, scale.to_f32(), min.to_f32()));
    let [scale, min] = if errors[1] < errors[0] { fits[1] } else { fits[0] };
    let inverse = reciprocal(scale.to_f32());
    let mut codes = [0; N];
    for (code, value) in codes.iter_mut().zip(values) {
        *code = code_of(value + min.to_f32(), inverse, levels);
    }
    (scale, -min, codes)
}

/// Bound on the error of [`fit_group`].
pub(crate) fn group_error_bound(absmax: f32, levels: u8) -> f32 {
    // The plain range puts all 32 values within half a step, and the fit's sum of squares is no larger. So
    // one value may be off by at most sqrt(32) = 5.7 half steps. An f16 is rounded for each step, and once
    // for the offset.
    let levels = f32::from(levels);
    let step = 2.0 * absmax / levels;
    3.0 * step + 6.0 * (levels * f16_rounding(2.0 * step) + f16_rounding(absmax))
}

/// The nearest code, for a value `above` the minimum.
pub(crate) fn code_of(above: f32, inverse: f32, levels: u8) -> u8 {
    nearest_one_within(above * inverse, 0.0, f32::from(levels)) as u8
}

/// Weighted sums over the codes of values, for a given scale and minimum.
struct Look {
    q: f32,
    qq: f32,
    /// Sum of products of value and code.
    xq: f32,
    /// Sum of squared errors.
    off: f32,
}

impl Look {
    fn at(values: &[f32], weights: &[f32], levels: u8, (scale, min): (f32, f32)) -> Self {
        let (inverse, levels) = (reciprocal(scale), f32::from(levels));
        let [q, qq, xq, off] = sums(values, weights, |value, weight| {
            let q = nearest_within((value + min) * inverse, 0.0, levels);
            let off = q * scale - min - value;
            [weight * q, weight * (q * q), weight * (value * q), weight * (off * off)]
        });
        Self { q, qq, xq, off }
    }

    /// The least-squares fit to these codes, if there is one; `n` is the sum of the weights, and `x` the
    /// weighted sum of the values.
    fn fit(&self, n: f32, x: f32) -> Option<(f32, f32)> {
        let determinant = n * self.qq - self.q * self.q;
        if determinant <= 0.0 {
            return None;
        }
        let scale = (n * self.xq - x * self.q) / determinant;
        let min = -(self.qq * x - self.q * self.xq) / determinant;
        let (scale, min) = if min < 0.0 { (self.xq / self.qq, 0.0) } else { (scale, min) };
        (scale > 0.0).then_some((scale, min))
    }
}

/// The weighted sum of squared errors of values that are stored with a scale and a minimum.
pub(crate) fn error(values: &[f32], weights: &[f32], levels: u8, scale: f32, min: f32) -> f32 {
    Look::at(values, weights, levels, (scale, min)).off
}

/// A scale and a minimum, both at least 0, for which the weighted squared error of `scale x code - minimum`
/// is small: the best of some initial scales and of the least-squares fits to the codes that each gives.
fn best_affine(values: &[f32], weights: &[f32], levels: u8) -> (f32, f32) {
    let low = values.iter().fold(0f32, |low, value| low.min(*value));
    let high = values.iter().fold(0f32, |high, value| high.max(*value));
    let range = high - low;
    if range <= 0.0 || !range.is_finite() {
        return (0.0, -low);
    }
    let plain = (range / f32::from(levels), -low);
    let (mut best, mut least) = (plain, error(values, weights, levels, plain.0, plain.1));
    let [n, x] = sums(values, weights, |value, weight| [weight, weight * value]);
    for step in -10..=20 {
        let start = (range / (f32::from(levels) + 0.1 * step as f32), -low);
        let mut look = Look::at(values, weights, levels, start);
        // Each fit changes the codes, and these give another fit.
        for _ in 0..2 {
            let Some(fit) = look.fit(n, x) else { break };
            look = Look::at(values, weights, levels, fit);
            if look.off < least {
                (best, least) = (fit, look.off);
            }
        }
    }
    best
}
