//! The paper's second algorithm: few bits a coordinate, and one sign a coordinate for what they leave over.

use half::f16;

use super::codebook::Codebook;
use super::qjl::Qjl;
use super::{dot, scale_bits};

/// A vector of `dim` elements in `4 + 3 dim / 8` bytes: norm as f16; codes of 2 bits, 4 elements a byte, low bits first;
/// length of the residual as f16; the signs of its projection, 8 a byte, low bits first, 1 for what is not negative.
/// 52 bytes for 128 elements.
#[derive(Clone, Debug)]
pub struct Prod {
    dim: usize,
    book: Codebook,
    qjl: Qjl,
}

impl Prod {
    /// For rotated vectors of `dim` elements, the residual projected by `qjl`.
    ///
    /// # Panics
    /// Where `dim` is no multiple of 8.
    pub fn new(dim: usize, qjl: Qjl) -> Self {
        assert!(dim.is_multiple_of(8), "{dim} elements");
        Self { dim, book: Codebook::new(dim, 2), qjl }
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> usize {
        4 + 3 * self.dim / 8
    }

    /// Encodes `y`, `[dim]`, rotated; `false` where something had to be repaired, as in
    /// [`Lloyd::encode`](super::Lloyd::encode).
    ///
    /// # Panics
    /// Where the lengths do not fit.
    pub fn encode(&self, y: &[f32], out: &mut [u8]) -> bool {
        assert_eq!((y.len(), out.len()), (self.dim, self.bytes()));
        let finite = y.iter().all(|y| y.is_finite());
        let y: Vec<f64> = y.iter().map(|y| if y.is_finite() { f64::from(*y) } else { 0.0 }).collect();
        let norm = dot(y.iter().copied(), y.iter().copied()).sqrt();
        let (kept_norm, norm_repaired) = scale_bits(norm);
        let unit = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        out.fill(0);
        out[..2].copy_from_slice(&kept_norm.to_le_bytes());
        // What is left over is measured from what the reader will see: the norm as f16 has it.
        let mut residual = y;
        for (i, r) in residual.iter_mut().enumerate() {
            let code = self.book.code(*r * unit);
            out[2 + i / 4] |= code << (2 * (i % 4));
            *r -= kept_norm.to_f64() * self.book.centroids()[usize::from(code)];
        }
        let length = dot(residual.iter().copied(), residual.iter().copied()).sqrt();
        let (length, length_repaired) = scale_bits(if norm > 0.0 { length } else { 0.0 });
        let at = 2 + self.dim / 4;
        out[at..at + 2].copy_from_slice(&length.to_le_bytes());
        self.qjl.project(&mut residual);
        for (i, r) in residual.iter().enumerate() {
            out[at + 2 + i / 8] |= u8::from(*r >= 0.0) << (i % 8);
        }
        finite && !norm_repaired && !length_repaired
    }

    /// Decodes a vector, still rotated: the codes, and the direction that the signs point to.
    ///
    /// # Panics
    /// Where the lengths do not fit.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        let number = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64();
        let at = 2 + self.dim / 4;
        let (norm, length) = (number(0), number(at));
        let sign = |i: usize| if bytes[at + 2 + i / 8] >> (i % 8) & 1 == 1 { 1.0 } else { -1.0 };
        let mut residual: Vec<f64> = (0..self.dim).map(sign).collect();
        self.qjl.project_back(&mut residual);
        let factor = self.qjl.factor() * length;
        for (i, (out, r)) in out.iter_mut().zip(&residual).enumerate() {
            let code = bytes[2 + i / 4] >> (2 * (i % 4)) & 3;
            *out = (norm * self.book.centroids()[usize::from(code)] + factor * r) as f32;
        }
    }
}
