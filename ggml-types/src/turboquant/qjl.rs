//! One bit per coordinate for the residual of a quantiser: the quantised Johnson-Lindenstrauss transform
//! (Zandieh et al., arXiv:2406.03482).

use std::f64::consts::PI;

use super::MAX_DIM;
use super::rotate::Rotation;
use crate::QuantError;

/// Seed for the signs of the second projection; it must differ from the rotation's.
const PROJECTION_SEED: u64 = 0x5374_6572_6e61_0002;

/// Projection of residuals, [dim, dim]; rows are `sqrt(dim)` long.
#[derive(Clone, Debug)]
pub enum Projection {
    /// Signs, then the Hadamard matrix. Its rows are orthogonal, which gives a third of the Gaussian's
    /// variance.
    Srht(Rotation),
    /// Independent normal numbers, as in the paper: `[dim, dim]`, row after row.
    Gaussian(Vec<f64>),
}

/// Stores the signs of `S r`, and estimates inner products with `r` without bias:
/// `<q, r> ~ sqrt(pi / 2) / dim * |r| * <S q, sign(S r)>`.
#[derive(Clone, Debug)]
pub struct Qjl {
    dim: usize,
    projection: Projection,
}

impl Qjl {
    /// Uses the projection of the cache.
    ///
    /// # Errors
    /// As [`Rotation::new`].
    pub fn srht(dim: usize) -> Result<Self, QuantError> {
        Ok(Self { dim, projection: Projection::Srht(Rotation::with_seed(dim, PROJECTION_SEED)?) })
    }

    /// Uses a Gaussian matrix drawn from `seed`, for the paper's figures.
    pub fn gaussian(dim: usize, seed: u64) -> Self {
        let words = super::sign_bits(seed, dim * dim * 2 * 64);
        // 53 bits give a uniform number in (0, 1]; the Box-Muller transform makes a pair of them normal.
        let uniform = |word: u64| ((word >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let normal =
            |pair: &[u64]| (-2.0 * uniform(pair[0]).ln()).sqrt() * (2.0 * PI * uniform(pair[1])).cos();
        Self { dim, projection: Projection::Gaussian(words.chunks_exact(2).map(normal).collect()) }
    }

    /// Replaces `x`, `[dim]`, by `S x`.
    ///
    /// # Panics
    /// If the lengths do not match, or are above [`MAX_DIM`].
    pub fn project(&self, x: &mut [f64]) {
        match &self.projection {
            Projection::Srht(rotation) => rotation.project(x),
            Projection::Gaussian(rows) => {
                let mut product = [0.0; MAX_DIM];
                let product = &mut product[..self.dim];
                for (product, row) in product.iter_mut().zip(rows.chunks_exact(self.dim)) {
                    *product = super::dot(row.iter().copied(), x.iter().copied());
                }
                x.copy_from_slice(product);
            }
        }
    }

    /// Replaces `y`, `[dim]`, by `S^T y`.
    ///
    /// # Panics
    /// As [`project`](Self::project).
    pub fn project_back(&self, y: &mut [f64]) {
        match &self.projection {
            Projection::Srht(rotation) => rotation.project_back(y),
            Projection::Gaussian(rows) => {
                let mut product = [0.0; MAX_DIM];
                let product = &mut product[..self.dim];
                for (row, y) in rows.chunks_exact(self.dim).zip(y.iter()) {
                    product.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * y);
                }
                y.copy_from_slice(product);
            }
        }
    }

    /// Replaces a query `q`, `[dim]`, by `S q`, rounded to f32.
    ///
    /// # Panics
    /// As [`project`](Self::project).
    pub fn project_query(&self, q: &mut [f32]) {
        match &self.projection {
            Projection::Srht(rotation) => rotation.project_query(q),
            Projection::Gaussian(_) => {
                let mut wide = [0.0; MAX_DIM];
                let wide = &mut wide[..self.dim];
                wide.iter_mut().zip(&*q).for_each(|(wide, q)| *wide = f64::from(*q));
                self.project(wide);
                q.iter_mut().zip(wide).for_each(|(q, wide)| *q = *wide as f32);
            }
        }
    }

    /// The projection.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    /// Factor of a sum of signed coordinates, without the length of the residual.
    pub fn factor(&self) -> f64 {
        (PI / 2.0).sqrt() / self.dim as f64
    }
}
