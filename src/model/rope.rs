//! Rotary frequencies from a file's metadata: plain, per-pair factors, linear and YaRN scaling.

use std::f64::consts::PI;
use std::sync::Arc;

use super::hyper::{RopeHyper, RopeScaling};
use sterna_program::{Rope, RopeStyle};

/// The rotary embedding for `hyper`; `factors`, `[pairs]`, divide the frequencies.
pub fn rope(hyper: &RopeHyper, style: RopeStyle, factors: Option<&[f32]>) -> Rope {
    let pairs = hyper.dims / 2;
    let plain = |pair: usize| {
        let freq = hyper.freq_base.powf(-2.0 * pair as f64 / hyper.dims as f64);
        factors.map_or(freq, |factors| freq / f64::from(factors[pair]))
    };
    let (inv_freq, magnitude): (Arc<[f64]>, f64) = match hyper.scaling {
        RopeScaling::None => ((0..pairs).map(plain).collect(), 1.0),
        RopeScaling::Linear { factor } => ((0..pairs).map(|pair| plain(pair) / factor).collect(), 1.0),
        RopeScaling::Yarn { factor, original_ctx, attn_factor } => {
            let blend = Ramp::new(hyper.dims, hyper.freq_base, original_ctx);
            let freq = |pair| {
                let keep = blend.keep(pair);
                plain(pair) * (keep + (1.0 - keep) / factor)
            };
            ((0..pairs).map(freq).collect(), attn_factor * (1.0 + 0.1 * factor.ln()))
        }
    };
    Rope { style, inv_freq, magnitude: magnitude as f32, axes: None, ahead: 0 }
}

/// YaRN (Peng et al. 2023, section 3.2): pairs with many rotations within the original context keep their
/// frequency, pairs with less than one rotation are interpolated, with a ramp between the two.
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    /// Numbers of rotations at which the ramp begins and ends, from the paper.
    const BETA_FAST: f64 = 32.0;
    const BETA_SLOW: f64 = 1.0;

    fn new(dims: usize, base: f64, original_ctx: f64) -> Self {
        let pair_of = |turns: f64| dims as f64 * (original_ctx / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let low = pair_of(Self::BETA_FAST).floor().max(0.0);
        let high = pair_of(Self::BETA_SLOW).ceil().min(dims as f64 - 1.0);
        Self { low, high }
    }

    /// Share of the unscaled frequency, 0 to 1.
    fn keep(&self, pair: usize) -> f64 {
        let width = (self.high - self.low).max(0.001);
        1.0 - ((pair as f64 - self.low) / width).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hyper(scaling: RopeScaling) -> RopeHyper {
        RopeHyper { dims: 8, freq_base: 10000.0, scaling }
    }

    #[test]
    fn plain_linear_and_factors() {
        let plain = rope(&hyper(RopeScaling::None), RopeStyle::Halves, None);
        let want = [1.0, 0.1, 0.01, 0.001];
        assert!(plain.inv_freq.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-12));
        let halved = rope(&hyper(RopeScaling::Linear { factor: 2.0 }), RopeStyle::Halves, None);
        assert!((halved.inv_freq[1] - 0.05).abs() < 1e-12);
        let factors = rope(&hyper(RopeScaling::None), RopeStyle::Halves, Some(&[1.0, 1.0, 4.0, 8.0]));
        assert!((factors.inv_freq[2] - 0.0025).abs() < 1e-12 && factors.magnitude == 1.0);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        // With 64 dims, base 10000 and 4096 original positions the ramp runs from pair
        // floor(64 ln(4096 / 64 pi) / 2 ln 10000) = 10 to pair ceil(64 ln(4096 / 2 pi) / 2 ln 10000) = 23.
        let scaling = RopeScaling::Yarn { factor: 4.0, original_ctx: 4096.0, attn_factor: 1.0 };
        let plain = rope(
            &RopeHyper { dims: 64, freq_base: 10000.0, scaling: RopeScaling::None },
            RopeStyle::Halves,
            None,
        );
        let yarn = rope(&RopeHyper { dims: 64, freq_base: 10000.0, scaling }, RopeStyle::Halves, None);
        let ratio = |pair: usize| yarn.inv_freq[pair] / plain.inv_freq[pair];
        assert!((ratio(10) - 1.0).abs() < 1e-12 && ratio(11) < 1.0);
        assert!(ratio(22) > 0.25 && (ratio(23) - 0.25).abs() < 1e-12);
        assert!((f64::from(yarn.magnitude) - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-6);
    }
}
