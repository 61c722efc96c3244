//! Keys in two groups of elements: 4 bits for those that contribute most to scores, 2 bits for the others.

use super::KeyBasis;
use super::codebook::Codebook;
use super::dot;

/// A key of `dim` elements in the two groups of its [`KeyBasis`], in `2 + 3 dim / 8` bytes.
///
/// Two scales, 8 bits each, of the first and of the second group; then the 4-bit codes of the first group, of
/// which byte `b` has element `b` in its low half and `b + dim/4` in its high half; then the 2-bit codes of
/// the second group: elements `b`, `b + dim/8`, `b + dim/4` and `b + 3 dim/8` in byte `b`, low bits first.
///
/// The scale of a group `y` with the code vector `c` is `s = |y|^2 / <y, c>`, as in
/// [`ScaleRule::InnerProduct`](super::ScaleRule::InnerProduct), stored as the [`LogScale`] of its group.
#[derive(Clone, Debug)]
pub struct Split {
    dim: usize,
    groups: [Group; 2],
}

#[derive(Clone, Debug)]
struct Group {
    book: Codebook,
    scale: LogScale,
}

/// A scale of `elems` elements in 8 bits: 0 is 0, and code `c` is `sqrt(elems) 2^((c - one) / 30)`, so `one`
/// is the code of a vector with elements of about 1. The range is 8.5 octaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogScale {
    elems: usize,
    one: u8,
}

impl LogScale {
    /// Codes per octave.
    pub const STEPS: u32 = 30;

    /// The scale of a group of `elems` elements of a key: of the first group from 2^-3 to 2^5.5 times the
    /// typical one, of the second from 2^-5 to 2^3.5.
    pub fn of_group(elems: usize, group: usize) -> Self {
        Self { elems, one: if group == 0 { 91 } else { 151 } }
    }

    /// The code of elements of about 1.
    pub fn one(self) -> u8 {
        self.one
    }

    /// The nearest code in the logarithm, and whether `scale` was beyond the largest. Scales below half of
    /// the smallest become 0.
    pub fn encode(self, scale: f64) -> (u8, bool) {
        if scale <= 0.0 {
            return (0, false);
        }
        let steps = f64::from(Self::STEPS);
        let code = (steps * (scale / (self.elems as f64).sqrt()).log2()).round() + f64::from(self.one);
        match code {
            code if code <= 1.0 - steps => (0, false),
            code => (code.clamp(1.0, 255.0) as u8, code > 255.0),
        }
    }

    /// The scale of a code.
    pub fn decode(self, code: u8) -> f32 {
        if code == 0 {
            return 0.0;
        }
        let exponent = (f64::from(code) - f64::from(self.one)) / f64::from(Self::STEPS);
        ((self.elems as f64).sqrt() * exponent.exp2()) as f32
    }
}

/// Bits of a code of each group.
const BITS: [usize; 2] = [4, 2];

impl Split {
    /// A codec for keys of `dim` elements in the basis of their head.
    ///
    /// # Panics
    /// If there is no such [basis](KeyBasis::check).
    pub fn new(dim: usize) -> Self {
        assert!(KeyBasis::check("", dim).is_ok(), "{dim} elements");
        let group = |group: usize| Group {
            book: Codebook::new(dim / 2, BITS[group] as u32),
            scale: LogScale::of_group(dim / 2, group),
        };
        Self { dim, groups: [group(0), group(1)] }
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> usize {
        Self::bytes_of(self.dim)
    }

    /// Bytes of a vector of `dim` elements.
    pub const fn bytes_of(dim: usize) -> usize {
        2 + 3 * dim / 8
    }

    /// The codebook of a group, 0 or 1.
    pub fn codebook(&self, group: usize) -> &Codebook {
        &self.groups[group].book
    }

    /// The scale of a group, 0 or 1.
    pub fn scale(&self, group: usize) -> LogScale {
        self.groups[group].scale
    }

    /// Encodes `y`, `[dim]`, in its basis. Returns `false` if something had to be clamped: elements that are
    /// not finite become 0, and a scale beyond the largest becomes that.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn encode(&self, y: &[f32], out: &mut [u8]) -> bool {
        assert_eq!((y.len(), out.len()), (self.dim, self.bytes()));
        let mut whole = y.iter().all(|y| y.is_finite());
        out.fill(0);
        for (group, y) in y.chunks_exact(self.dim / 2).enumerate() {
            let Group { book, scale } = &self.groups[group];
            let y = || y.iter().map(|y| if y.is_finite() { f64::from(*y) } else { 0.0 });
            let square = dot(y(), y());
            let unit = if square > 0.0 { 1.0 / square.sqrt() } else { 0.0 };
            for (i, y) in y().enumerate() {
                let (at, shift) = Self::place(self.dim, group, i);
                out[at] |= book.code(y * unit) << shift;
            }
            let c =
                (0..self.dim / 2).map(|i| book.centroids()[usize::from(Self::code(out, self.dim, group, i))]);
            let (code, clamped) = scale.encode(if square > 0.0 { square / dot(y(), c) } else { 0.0 });
            out[group] = code;
            whole &= !clamped;
        }
        whole
    }

    /// Decodes a vector, still in its basis.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        for (group, out) in out.chunks_exact_mut(self.dim / 2).enumerate() {
            let Group { book, scale } = &self.groups[group];
            let scale = f64::from(scale.decode(bytes[group]));
            for (i, out) in out.iter_mut().enumerate() {
                *out = (scale * book.centroids()[usize::from(Self::code(bytes, self.dim, group, i))]) as f32;
            }
        }
    }

    /// The codes of a vector, `[dim]`; returns the codes of its scales.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn split(&self, bytes: &[u8], codes: &mut [u8]) -> [u8; 2] {
        Self::split_of(self.dim, bytes, codes)
    }

    /// [`split`](Self::split) of a vector of `dim` elements.
    pub(super) fn split_of(dim: usize, bytes: &[u8], codes: &mut [u8]) -> [u8; 2] {
        assert_eq!((codes.len(), bytes.len()), (dim, Self::bytes_of(dim)));
        for (group, codes) in codes.chunks_exact_mut(dim / 2).enumerate() {
            codes.iter_mut().enumerate().for_each(|(i, code)| *code = Self::code(bytes, dim, group, i));
        }
        [bytes[0], bytes[1]]
    }

    /// Byte and shift of element `i` of a group of a vector of `dim` elements.
    pub(super) fn place(dim: usize, group: usize, i: usize) -> (usize, usize) {
        let per_byte = dim / 2 * BITS[group] / 8;
        let start = [2, 2 + dim / 4][group];
        (start + i % per_byte, BITS[group] * (i / per_byte))
    }

    /// The code of that element.
    pub(super) fn code(bytes: &[u8], dim: usize, group: usize, i: usize) -> u8 {
        let (at, shift) = Self::place(dim, group, i);
        bytes[at] >> shift & ((1 << BITS[group]) - 1)
    }
}
