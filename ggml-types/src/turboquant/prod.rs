//! The paper's second algorithm: few bits per coordinate, and one sign per coordinate for the residual.

use half::f16;

use super::codebook::Codebook;
use super::qjl::Qjl;
use super::{MAX_DIM, dot, scale_bits};

/// A vector of `dim` elements in `4 + 3 dim / 8` bytes: norm as f16; 2-bit codes, 4 elements per byte, low
/// bits first; length of the residual as f16; the signs of its projection, 8 per byte, low bits first, 1 for
/// non-negative. 52 bytes for 128 elements.
#[derive(Clone, Debug)]
pub struct Prod {
    dim: usize,
    book: Codebook,
    qjl: Qjl,
}

impl Prod {
    /// A codec for rotated vectors of `dim` elements, whose residual is projected by `qjl`.
    ///
    /// # Panics
    /// If `dim` is not a multiple of 8, or above [`MAX_DIM`].
    pub fn new(dim: usize, qjl: Qjl) -> Self {
        assert!(dim.is_multiple_of(8) && dim <= MAX_DIM, "{dim} elements");
        Self { dim, book: Codebook::new(dim, 2), qjl }
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The codebook of the codes.
    pub fn codebook(&self) -> &Codebook {
        &self.book
    }

    /// Projection of residuals, and of the queries that are multiplied with their signs.
    pub fn qjl(&self) -> &Qjl {
        &self.qjl
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> usize {
        4 + 3 * self.dim / 8
    }

    /// Encodes `y`, `[dim]`, rotated. Returns `false` if something had to be clamped, as in
    /// [`Lloyd::encode`](super::Lloyd::encode).
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn encode(&self, y: &[f32], out: &mut [u8]) -> bool {
        assert_eq!((y.len(), out.len()), (self.dim, self.bytes()));
        let finite = y.iter().all(|y| y.is_finite());
        let y = || y.iter().map(|y| if y.is_finite() { f64::from(*y) } else { 0.0 });
        let norm = dot(y(), y()).sqrt();
        let (kept_norm, norm_clamped) = scale_bits(norm);
        let unit = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        out.fill(0);
        out[..2].copy_from_slice(&kept_norm.to_le_bytes());
        // The residual is relative to what the decoder sees, which includes the rounding of the norm to f16.
        let mut residual = [0.0; MAX_DIM];
        let residual = &mut residual[..self.dim];
        for (i, (r, y)) in residual.iter_mut().zip(y()).enumerate() {
            let code = self.book.code(y * unit);
            out[2 + i / 4] |= code << (2 * (i % 4));
            *r = y - kept_norm.to_f64() * self.book.centroids()[usize::from(code)];
        }
        let length = dot(residual.iter().copied(), residual.iter().copied()).sqrt();
        let (length, length_clamped) = scale_bits(if norm > 0.0 { length } else { 0.0 });
        let at = self.residual_at();
        out[at..at + 2].copy_from_slice(&length.to_le_bytes());
        self.qjl.project(residual);
        for (i, r) in residual.iter().enumerate() {
            out[at + 2 + i / 8] |= u8::from(*r >= 0.0) << (i % 8);
        }
        finite && !norm_clamped && !length_clamped
    }

    /// Decodes a vector, still rotated: the codes, plus the direction of the signs.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        let number = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64();
        let (norm, length) = (number(0), number(self.residual_at()));
        let mut residual = [0.0; MAX_DIM];
        let residual = &mut residual[..self.dim];
        residual.iter_mut().enumerate().for_each(|(i, r)| *r = if self.sign(bytes, i) { 1.0 } else { -1.0 });
        self.qjl.project_back(residual);
        let factor = self.qjl.factor() * length;
        for (i, (out, r)) in out.iter_mut().zip(&*residual).enumerate() {
            *out = (norm * self.book.centroids()[usize::from(self.code(bytes, i))] + factor * r) as f32;
        }
    }

    /// The codes of a vector with the signs in their third bit, `[dim]`, 1 for non-negative; returns the norm
    /// and the length of the residual.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn split(&self, bytes: &[u8], codes: &mut [u8]) -> [f16; 2] {
        assert_eq!((codes.len(), bytes.len()), (self.dim, self.bytes()));
        for (i, code) in codes.iter_mut().enumerate() {
            *code = self.code(bytes, i) | u8::from(self.sign(bytes, i)) << 2;
        }
        [0, self.residual_at()].map(|at| f16::from_le_bytes([bytes[at], bytes[at + 1]]))
    }

    /// Offset of the length of the residual, which the signs follow.
    fn residual_at(&self) -> usize {
        2 + self.dim / 4
    }

    fn code(&self, bytes: &[u8], i: usize) -> u8 {
        bytes[2 + i / 4] >> (2 * (i % 4)) & 3
    }

    fn sign(&self, bytes: &[u8], i: usize) -> bool {
        bytes[self.residual_at() + 2 + i / 8] >> (i % 8) & 1 == 1
    }
}
