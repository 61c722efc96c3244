//! The mean of a page of keys, which is subtracted from them before they are encoded.

use half::f16;

use super::MAX_DIM;

/// The mean of the keys of one page and one KV head, in int8 with one scale.
///
/// With `m` the mean of the rotated f16 keys of the page, summed in f64 in the order of positions (the sum of
/// 64 f16 is exact in f64, so any order gives the same):
///
/// - `s`, the scale, is `max |m| / 127`, divided in f64 and rounded to f32 and then to f16;
/// - `m8` is `m / s`, divided in f64, rounded to the nearest integer (halves away from zero) and clamped to
///   -127..=127; 0 if `s` is 0.
///
/// The element of a key that is encoded is `k - s m8`, in f32: `s m8` is exact in f32, so the difference is
/// rounded once. The score of an encoded key is `s (q . m8)` plus that of its codes, so rounding the mean is
/// not an error.
///
/// The bytes are `m8`, `[dim]` as i8, then `s` as little-endian f16, then zeros up to a multiple of 16 bytes,
/// so that codes after it can be read 16 bytes at a time. On the CPU and on CUDA they are the first bytes of
/// a page of one KV head's keys, and the scales and codes of its vectors follow; wgpu has the means of all
/// heads after the codes of all heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMean {
    dim: usize,
}

impl KeyMean {
    /// Multiple to which [`bytes`](Self::bytes) is rounded up.
    pub const ALIGN: usize = 16;

    /// The mean of keys of `dim` elements.
    ///
    /// # Panics
    /// If `dim` is above [`MAX_DIM`].
    pub fn new(dim: usize) -> Self {
        assert!(dim <= MAX_DIM, "keys of {dim} elements");
        Self { dim }
    }

    /// Bytes of a mean, padding included.
    pub fn bytes(self) -> usize {
        (self.dim + size_of::<f16>()).next_multiple_of(Self::ALIGN)
    }

    /// Encodes the mean of a page. `dims` has an entry per element: its values in all keys of the page, which
    /// are finite, in the order of positions.
    ///
    /// # Panics
    /// If the number of elements or the length of `out` does not match.
    pub fn encode<K: IntoIterator<Item = f16>>(self, dims: impl IntoIterator<Item = K>, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes());
        let mut mean = [0.0_f64; MAX_DIM];
        let mut n_dims = 0;
        for values in dims {
            let (n, sum) = values.into_iter().fold((0.0, 0.0), |(n, sum), x| (n + 1.0, sum + x.to_f64()));
            mean[n_dims] = sum / n;
            n_dims += 1;
        }
        assert_eq!(n_dims, self.dim);
        let most = mean.iter().fold(0.0_f64, |most, m| most.max(m.abs()));
        let scale = f16::from_f32((most / 127.0) as f32);
        out.fill(0);
        if scale > f16::ZERO {
            for (out, m) in out.iter_mut().zip(&mean[..self.dim]) {
                *out = ((m / scale.to_f64()).round().clamp(-127.0, 127.0) as i8).cast_unsigned();
            }
        }
        out[self.dim..][..2].copy_from_slice(&scale.to_le_bytes());
    }

    /// Decodes the mean, `[dim]`: `s m8`, exactly.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!((out.len(), bytes.len()), (self.dim, self.bytes()));
        let (m8, scale) = bytes.split_at(self.dim);
        let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
        out.iter_mut().zip(m8).for_each(|(out, m)| *out = scale * f32::from(m.cast_signed()));
    }
}
