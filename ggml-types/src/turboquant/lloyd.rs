//! One code per coordinate and one scale per vector.

use half::f16;

use super::codebook::Codebook;
use super::{dot, scale_bits};

/// Rule for the scale of a vector `y` with the code vector `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// `|y|^2 / <y, c>`: inner products with a random direction have no bias (EDEN, RaBitQ). For keys.
    InnerProduct,
    /// `<y, c> / <c, c>`: the smallest squared error. For values.
    LeastSquares,
    /// `|y|`, as in the TurboQuant paper.
    Norm,
}

/// A vector of `dim` elements in `2 + bits * dim / 8` bytes: the scale as f16, then the codes.
///
/// 3-bit codes are stored in two planes: the low two bits of the elements `b`, `b + dim/4`, `b + dim/2` and
/// `b + 3 dim/4` in byte `b`, low bits first; then the top bits, 8 elements per byte, low bits first. 4-bit
/// codes: byte `b` has element `b` in its low half and `b + dim/2` in its high half. So one shift and mask
/// gives neighbours.
#[derive(Clone, Debug)]
pub struct Lloyd {
    dim: usize,
    bits: u32,
    rule: ScaleRule,
    book: Codebook,
}

impl Lloyd {
    /// A codec with `bits` bits per coordinate for rotated vectors of `dim` elements.
    ///
    /// # Panics
    /// If `bits` is not 3 or 4, or `dim` is not a multiple of 8.
    pub fn new(dim: usize, bits: u32, rule: ScaleRule) -> Self {
        assert!((3..=4).contains(&bits) && dim.is_multiple_of(8), "{bits} bits, {dim} elements");
        Self { dim, bits, rule, book: Codebook::new(dim, bits) }
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> usize {
        2 + self.bits as usize * self.dim / 8
    }

    /// Bits of a code, 3 or 4.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The codebook.
    pub fn codebook(&self) -> &Codebook {
        &self.book
    }

    /// Encodes `y`, `[dim]`, rotated. Returns `false` if something had to be clamped: elements that are not
    /// finite become 0, and a scale that f16 cannot hold becomes its largest.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn encode(&self, y: &[f32], out: &mut [u8]) -> bool {
        assert_eq!((y.len(), out.len()), (self.dim, self.bytes()));
        let finite = y.iter().all(|y| y.is_finite());
        let y = || y.iter().map(|y| if y.is_finite() { f64::from(*y) } else { 0.0 });
        let norm = dot(y(), y()).sqrt();
        // A vector of zeros has no direction: any codes with scale 0 decode to it.
        let unit = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        let (head, body) = out.split_at_mut(2);
        body.fill(0);
        for (i, y) in y().enumerate() {
            self.put(body, i, self.book.code(y * unit));
        }
        let c = || (0..self.dim).map(|i| self.book.centroids()[usize::from(self.code(body, i))]);
        let scale = match self.rule {
            _ if norm == 0.0 => 0.0,
            ScaleRule::InnerProduct => norm * norm / dot(y(), c()),
            ScaleRule::LeastSquares => dot(y(), c()) / dot(c(), c()),
            ScaleRule::Norm => norm,
        };
        let (scale, clamped) = scale_bits(scale);
        head.copy_from_slice(&scale.to_le_bytes());
        finite && !clamped
    }

    /// Decodes a vector, still rotated.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        let (head, body) = bytes.split_at(2);
        let scale = f16::from_le_bytes([head[0], head[1]]).to_f64();
        for (i, out) in out.iter_mut().enumerate() {
            *out = (scale * self.book.centroids()[usize::from(self.code(body, i))]) as f32;
        }
    }

    /// The codes of a vector, `[dim]`, and its scale.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn split(&self, bytes: &[u8], codes: &mut [u8]) -> f16 {
        assert_eq!((codes.len(), bytes.len()), (self.dim, self.bytes()));
        let (head, body) = bytes.split_at(2);
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = self.code(body, i));
        f16::from_le_bytes([head[0], head[1]])
    }

    fn put(&self, body: &mut [u8], i: usize, code: u8) {
        let half = self.dim / 2;
        match self.bits {
            3 => Self::put_3(self.dim, body, i, code),
            _ => body[i % half] |= code << (4 * (i / half)),
        }
    }

    fn code(&self, body: &[u8], i: usize) -> u8 {
        let half = self.dim / 2;
        match self.bits {
            3 => Self::code_3(self.dim, body, i),
            _ => body[i % half] >> (4 * (i / half)) & 15,
        }
    }

    /// Sets a code of 3 bits whose bits are 0.
    pub(super) fn put_3(dim: usize, body: &mut [u8], i: usize, code: u8) {
        let plane = dim / 4;
        body[i % plane] |= (code & 3) << (2 * (i / plane));
        body[plane + i / 8] |= (code >> 2) << (i % 8);
    }

    /// A code of 3 bits.
    pub(super) fn code_3(dim: usize, body: &[u8], i: usize) -> u8 {
        let plane = dim / 4;
        (body[i % plane] >> (2 * (i / plane)) & 3) | (body[plane + i / 8] >> (i % 8) & 1) << 2
    }
}
