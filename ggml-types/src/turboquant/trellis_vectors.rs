//! Keys and values as trellis codes.

use half::f16;

use super::trellis::{TRELLIS_2, TRELLIS_3, TRELLIS_4, Trellis};
use super::{KeyBasis, Lloyd, LogScale, Split, scale_bits};

/// [`Trellis::search`] for several vectors: `x` and `codes` are `[n, len]`. A backend with a faster one
/// passes it to an encoder; it must give the same codes.
pub type PathSearch = fn(trellis: &Trellis, len: usize, x: &[i16], codes: &mut [u8]);

/// The plain [`PathSearch`].
pub fn plain_search(trellis: &Trellis, len: usize, x: &[i16], codes: &mut [u8]) {
    x.chunks_exact(len).zip(codes.chunks_exact_mut(len)).for_each(|(x, codes)| trellis.search(x, codes));
}

/// Vectors that are passed to a [`PathSearch`] at once.
pub const SEARCHED: usize = 16;

/// Elements of a vector as integers: `y` is about `q 2^-exponent`.
#[derive(Clone, Copy, Default)]
struct Integers {
    exponent: i32,
    /// Sum of the squares of `q`.
    square: u64,
}

impl Integers {
    /// Bits of the largest `q`: it is from 2^10 to 2^11.
    const BITS: i32 = 11;

    /// Writes to `q` the elements of `y`, of which those that are not finite count as 0, and to `x` the same
    /// in steps of [`Trellis::STEPS`] of their deviation. Sums of integers are exact, so that the order in
    /// which a backend adds them does not matter.
    fn of(y: &[f32], q: &mut [i16], x: &mut [i16]) -> Self {
        let most = y.iter().filter(|y| y.is_finite()).fold(0.0, |most: f32, y| most.max(y.abs()));
        q.fill(0);
        x.fill(0);
        if most == 0.0 {
            return Self::default();
        }
        // Every f32 is a normal f64.
        let exponent = Self::BITS - 1 - ((f64::from(most).to_bits() >> 52) as i32 - 1023);
        let factor = power_of_two(exponent);
        for (q, y) in q.iter_mut().zip(y).filter(|(_, y)| y.is_finite()) {
            *q = (f64::from(*y) * factor).round_ties_even() as i16;
        }
        let square: u64 = q.iter().map(|q| u64::from(q.unsigned_abs()).pow(2)).sum();
        // 64 sqrt(n / square) in steps of 2^-16.
        let steps = u64::from(Trellis::STEPS.unsigned_abs()).pow(2) << 32;
        let factor = (y.len() as u64 * steps / square).isqrt() as i32;
        let most = i32::from(Trellis::MOST);
        for (x, q) in x.iter_mut().zip(&*q) {
            *x = ((i32::from(*q) * factor + (1 << 15)) >> 16).clamp(-most, most) as i16;
        }
        Self { exponent, square }
    }

    /// `a / b`, in units of the elements: times `2^-exponent` and the unit of values.
    fn scale(self, a: u64, b: i64) -> f64 {
        if b <= 0 {
            return 0.0;
        }
        f64::from(Trellis::UNIT) * a as f64 / b as f64 * power_of_two(-self.exponent)
    }
}

/// `2^exponent`, exactly.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Sum of products of the elements and the values of their codes.
fn product(trellis: &Trellis, q: &[i16], codes: &[u8]) -> i64 {
    trellis.decode(codes.iter().copied()).zip(q).map(|(v, q)| i64::from(v) * i64::from(*q)).sum()
}

/// Passes up to [`SEARCHED`] vectors at a time to `each`.
fn chunks<'a>(
    (y, dim): (&'a [f32], usize),
    (out, bytes): (&'a mut [u8], usize),
) -> impl Iterator<Item = (&'a [f32], &'a mut [u8])> {
    assert!(y.len() / dim * bytes == out.len() && y.len().is_multiple_of(dim), "bytes of vectors");
    y.chunks(SEARCHED * dim).zip(out.chunks_mut(SEARCHED * bytes))
}

/// A key of `dim` elements in the two groups of its [`KeyBasis`]: the bytes of a [`Split`], whose codes are
/// those of a [`Trellis`] per group.
///
/// With `c` the values of a group's codes, the scale is `s = |y|^2 / <y, c>`, and an element is `s c`. It is
/// stored as [`LogScale::of_group`] of one element.
#[derive(Clone, Debug)]
pub struct TrellisSplit {
    dim: usize,
}

impl TrellisSplit {
    /// Trellis of each group.
    pub const TRELLISES: [&'static Trellis; 2] = [&TRELLIS_4, &TRELLIS_2];

    /// A codec for keys of `dim` elements in the basis of their head.
    ///
    /// # Panics
    /// If there is no such [basis](KeyBasis::check).
    pub fn new(dim: usize) -> Self {
        assert!(KeyBasis::check("", dim).is_ok(), "{dim} elements");
        Self { dim }
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> usize {
        Split::bytes_of(self.dim)
    }

    /// The scale of a group, 0 or 1.
    pub fn scale(group: usize) -> LogScale {
        LogScale::of_group(1, group)
    }

    /// Encodes vectors, `[n, dim]` in their basis. Returns the number of those in which something had to be
    /// clamped, as in [`Split::encode`].
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn encode(&self, y: &[f32], out: &mut [u8], search: PathSearch) -> usize {
        let (half, bytes, mut n_clamped) = (self.dim / 2, self.bytes(), 0);
        let (mut q, mut x) = ([0; SEARCHED * Trellis::MAX_LEN / 2], [0; SEARCHED * Trellis::MAX_LEN / 2]);
        let mut codes = [0; SEARCHED * Trellis::MAX_LEN / 2];
        for (y, out) in chunks((y, self.dim), (out, bytes)) {
            let n = y.len() / self.dim;
            let (q, x, codes) = (&mut q[..n * half], &mut x[..n * half], &mut codes[..n * half]);
            let mut clamped = [false; SEARCHED];
            out.fill(0);
            for (group, trellis) in Self::TRELLISES.into_iter().enumerate() {
                let mut integers = [Integers::default(); SEARCHED];
                for (i, y) in y.chunks_exact(self.dim).enumerate() {
                    let (y, at) = (&y[group * half..][..half], i * half..(i + 1) * half);
                    integers[i] = Integers::of(y, &mut q[at.clone()], &mut x[at]);
                    clamped[i] |= !y.iter().all(|y| y.is_finite());
                }
                search(trellis, half, x, codes);
                for (i, out) in out.chunks_exact_mut(bytes).enumerate() {
                    let (q, codes) = (&q[i * half..][..half], &codes[i * half..][..half]);
                    let of = integers[i];
                    let scale = of.scale(of.square, product(trellis, q, codes));
                    let (scale, beyond) = Self::scale(group).encode(scale);
                    out[group] = scale;
                    clamped[i] |= beyond;
                    for (i, code) in codes.iter().enumerate() {
                        let (at, shift) = Split::place(self.dim, group, i);
                        out[at] |= code << shift;
                    }
                }
            }
            n_clamped += clamped.iter().filter(|clamped| **clamped).count();
        }
        n_clamped
    }

    /// Decodes a vector, still in its basis.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        for (group, out) in out.chunks_exact_mut(self.dim / 2).enumerate() {
            let scale = Self::scale(group).decode(bytes[group]) / Trellis::UNIT as f32;
            let codes = (0..self.dim / 2).map(|i| Split::code(bytes, self.dim, group, i));
            let values = Self::TRELLISES[group].decode(codes);
            out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * f32::from(value));
        }
    }

    /// The codes of a vector, `[dim]`; returns the codes of its scales.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn split(&self, bytes: &[u8], codes: &mut [u8]) -> [u8; 2] {
        Split::split_of(self.dim, bytes, codes)
    }
}

/// A value of `dim` elements, rotated, in the bytes of a [`Lloyd`] of 3 bits, whose codes are those of a
/// [`Trellis`].
///
/// With `c` the values of the codes, the scale is `s = <y, c> / <c, c>`, as f16, and an element is `s c`.
#[derive(Clone, Debug)]
pub struct TrellisVector {
    dim: usize,
}

impl TrellisVector {
    /// The trellis.
    pub const TRELLIS: &'static Trellis = &TRELLIS_3;

    /// A codec for rotated vectors of `dim` elements.
    ///
    /// # Panics
    /// If `dim` is not a power of two from 32 to 256.
    pub fn new(dim: usize) -> Self {
        assert!(KeyBasis::check("", dim).is_ok(), "{dim} elements");
        Self { dim }
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> usize {
        2 + 3 * self.dim / 8
    }

    /// Encodes vectors, `[n, dim]`. Returns the number of those in which something had to be clamped, as in
    /// [`Lloyd::encode`].
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn encode(&self, y: &[f32], out: &mut [u8], search: PathSearch) -> usize {
        let (dim, bytes, mut n_clamped) = (self.dim, self.bytes(), 0);
        let (mut q, mut x) = ([0; SEARCHED * Trellis::MAX_LEN], [0; SEARCHED * Trellis::MAX_LEN]);
        let mut codes = [0; SEARCHED * Trellis::MAX_LEN];
        for (y, out) in chunks((y, dim), (out, bytes)) {
            let n = y.len() / dim;
            let (q, x, codes) = (&mut q[..n * dim], &mut x[..n * dim], &mut codes[..n * dim]);
            let mut integers = [Integers::default(); SEARCHED];
            let vectors = q.chunks_exact_mut(dim).zip(x.chunks_exact_mut(dim));
            for ((y, (q, x)), of) in y.chunks_exact(dim).zip(vectors).zip(&mut integers) {
                *of = Integers::of(y, q, x);
            }
            search(Self::TRELLIS, dim, x, codes);
            let vectors = q.chunks_exact(dim).zip(codes.chunks_exact(dim)).zip(y.chunks_exact(dim));
            for ((((q, codes), y), of), out) in vectors.zip(integers).zip(out.chunks_exact_mut(bytes)) {
                let values = Self::TRELLIS.decode(codes.iter().copied());
                let square = values.map(|value| i64::from(value).pow(2)).sum();
                let along = product(Self::TRELLIS, q, codes).max(0);
                let (scale, clamped) = scale_bits(of.scale(along as u64, square));
                out.fill(0);
                out[..2].copy_from_slice(&scale.to_le_bytes());
                for (i, code) in codes.iter().enumerate() {
                    Lloyd::put_3(dim, &mut out[2..], i, *code);
                }
                n_clamped += usize::from(clamped || !y.iter().all(|y| y.is_finite()));
            }
        }
        n_clamped
    }

    /// Decodes a vector, still rotated.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32() / Trellis::UNIT as f32;
        let values = Self::TRELLIS.decode((0..self.dim).map(|i| Lloyd::code_3(self.dim, &bytes[2..], i)));
        out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * f32::from(value));
    }

    /// The codes of a vector, `[dim]`, and its scale.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn split(&self, bytes: &[u8], codes: &mut [u8]) -> f16 {
        assert_eq!((codes.len(), bytes.len()), (self.dim, self.bytes()));
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = Lloyd::code_3(self.dim, &bytes[2..], i));
        f16::from_le_bytes([bytes[0], bytes[1]])
    }
}
