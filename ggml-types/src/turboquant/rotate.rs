//! A random rotation in `n log n` operations: signs, then the Hadamard matrix.

use std::ops::{Add, Sub};

use crate::QuantError;

/// Seed for the signs of the rotation. All layers and heads use the same signs.
const ROTATION_SEED: u64 = 0x5374_6572_6e61_0001;

/// `y = H D x / sqrt(n)`: `D` has random signs on its diagonal, `H` is the Hadamard matrix in natural order.
/// Orthogonal, so lengths and inner products are preserved.
#[derive(Clone, Debug)]
pub struct Rotation {
    signs: Vec<f32>,
}

impl Rotation {
    /// The rotation of vectors of `dim` elements.
    ///
    /// # Errors
    /// [`QuantError::Shape`] if `dim` is not a power of two, or below 8.
    pub fn new(dim: usize) -> Result<Self, QuantError> {
        Self::with_seed(dim, ROTATION_SEED)
    }

    pub(super) fn with_seed(dim: usize, seed: u64) -> Result<Self, QuantError> {
        if !dim.is_power_of_two() || dim < 8 {
            let detail = format!("want a head dimension that is a power of two from 8 on, found {dim}");
            return Err(QuantError::Shape { ty: "hadamard", detail });
        }
        let bits = sign_bits(seed, dim);
        let sign = |i: usize| if bits[i / 64] >> (i % 64) & 1 == 1 { -1.0 } else { 1.0 };
        Ok(Self { signs: (0..dim).map(sign).collect() })
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.signs.len()
    }

    /// The signs, 1 and -1: `[dim]`.
    pub fn signs(&self) -> &[f32] {
        &self.signs
    }

    /// Rotates `x`, `[dim]`.
    ///
    /// # Panics
    /// If the length differs.
    pub fn apply(&self, x: &mut [f32]) {
        self.flip(x);
        hadamard(x);
        self.shrink(x);
    }

    /// Rotates `y`, `[dim]`, back.
    ///
    /// # Panics
    /// If the length differs.
    pub fn undo(&self, y: &mut [f32]) {
        hadamard(y);
        self.shrink(y);
        self.flip(y);
    }

    /// `H D x`, rows of length `sqrt(dim)`.
    pub(super) fn project(&self, x: &mut [f64]) {
        x.iter_mut().zip(&self.signs).for_each(|(x, sign)| *x *= f64::from(*sign));
        hadamard(x);
    }

    /// `H D q` in f32.
    pub(super) fn project_query(&self, q: &mut [f32]) {
        self.flip(q);
        hadamard(q);
    }

    /// `D H y`, the transpose of [`project`](Self::project).
    pub(super) fn project_back(&self, y: &mut [f64]) {
        hadamard(y);
        y.iter_mut().zip(&self.signs).for_each(|(y, sign)| *y *= f64::from(*sign));
    }

    fn flip(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.dim());
        x.iter_mut().zip(&self.signs).for_each(|(x, sign)| *x *= sign);
    }

    fn shrink(&self, x: &mut [f32]) {
        let factor = (1.0 / (self.dim() as f64).sqrt()) as f32;
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Multiplies `x` by the Hadamard matrix of its size, in place and unscaled: twice gives `x.len() * x`.
///
/// # Panics
/// If the length is not a power of two.
pub fn hadamard<T: Copy + Add<Output = T> + Sub<Output = T>>(x: &mut [T]) {
    assert!(x.len().is_power_of_two(), "{} elements", x.len());
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// `n` random bits, 64 per word, low bits first; 1 means -1. The bits of a smaller `n` are a prefix. The
/// generator is SplitMix64 (Steele, Lea, Flood 2014).
pub fn sign_bits(seed: u64, n: usize) -> Vec<u64> {
    let words = (1..=n.div_ceil(64) as u64).map(|i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_is_the_published_one() {
        // The first outputs for the seed 1234567, as its authors' test prints them.
        assert_eq!(sign_bits(1_234_567, 128), [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    /// The signs are part of every stored cache: they may never change.
    #[test]
    fn the_signs_are_golden() {
        assert_eq!(sign_bits(ROTATION_SEED, 128), GOLDEN_SIGNS);
    }
    const GOLDEN_SIGNS: [u64; 2] = [18_127_814_098_973_251_714, 9_789_527_583_431_437_082];

    #[test]
    fn hadamards_matrix_is_the_one_of_the_textbook() {
        let n = 16;
        for col in 0..n {
            let mut x = vec![0i32; n];
            x[col] = 1;
            hadamard(&mut x);
            for (row, x) in x.iter().enumerate() {
                let want = if (row & col).count_ones() % 2 == 0 { 1 } else { -1 };
                assert_eq!(*x, want, "row {row}, column {col}");
            }
        }
    }

    #[test]
    fn only_powers_of_two_can_be_rotated() {
        for dim in [0, 1, 4, 80, 96, 127] {
            assert!(matches!(Rotation::new(dim), Err(QuantError::Shape { .. })), "{dim}");
        }
    }
}
