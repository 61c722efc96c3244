//! A value and the maximum error of an f32 implementation.

/// Distance between neighbouring f32 values at 1; an operation rounds by at most half of it.
pub const EPS: f64 = f32::EPSILON as f64;

/// Error of a sum of up to some ten thousand products, relative to the sum of their magnitudes. The worst
/// case is proportional to their number, but roundings behave like random ones: they grow with its square
/// root, as do the partial sums, so the error is about one EPS times that sum for any length.
pub const SUM: f64 = 8.0 * EPS;

/// A value with a bound on the error of its f32 computation.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    pub v: f64,
    pub err: f64,
}

impl Near {
    /// A value that all implementations compute exactly.
    pub fn exact(v: f64) -> Self {
        Self { v, err: 0.0 }
    }

    /// Limited to bounds, which moves no two values further apart.
    pub fn clamped(self, [lower, upper]: [f32; 2]) -> Self {
        Self { v: self.v.clamp(lower.into(), upper.into()), ..self }
    }

    pub fn plus(self, other: Self) -> Self {
        let v = self.v + other.v;
        Self { v, err: self.err + other.err + EPS * v.abs() }
    }

    pub fn times(self, other: Self) -> Self {
        let v = self.v * other.v;
        let err = self.err * other.v.abs() + self.v.abs() * other.err + self.err * other.err;
        Self { v, err: err + EPS * v.abs() }
    }

    /// The value after storing it in a KV cache.
    pub fn stored_by(self, codec: &str) -> Self {
        let rounding = match codec {
            "f32" => 0.0,
            // Half of the distance between neighbouring f16 values: relative, and absolute for subnormal
            // ones.
            "f16" | "f16 in vectors" => (self.v.abs() + self.err) / 2048.0 + 2.0_f64.powi(-25),
            _ => panic!("no error bound for KV codec {codec}"),
        };
        Self { err: self.err + rounding, ..self }
    }

    /// True if `got` is within the bound. NaN requires NaN.
    pub fn is(&self, got: f32) -> bool {
        if self.v.is_nan() {
            return got.is_nan();
        }
        // The last term is for values below the normal f32 range.
        (f64::from(got) - self.v).abs() <= self.err + 1e-37
    }
}
