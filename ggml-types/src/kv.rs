//! KV-cache codecs: how one head's key or value vector is kept. One file a codec below `kv/`.

use std::fmt;

use crate::QuantError;
use crate::turboquant::Qjl;

mod f16;
mod f32;
mod q4_0;
mod q8_0;
mod tq3_0;
mod turboquant;
#[path = "kv/turboquant-4.rs"]
mod turboquant_4;

/// A way to keep the `[head_dim]` vectors of a KV cache.
pub trait KvCodec: fmt::Debug + Sync {
    /// The word for it in `--kv-cache-type`.
    fn name(&self) -> &'static str;

    /// Another word for it.
    fn alias(&self) -> Option<&'static str> {
        None
    }

    /// The codec that its name means for a side of the cache which its own form is not for: it opens no vectors there.
    fn instead(&self, _: KvSide) -> Option<&'static dyn KvCodec> {
        None
    }

    /// Bytes of one vector.
    ///
    /// # Errors
    /// [`QuantError::Shape`] where the codec cannot hold such a head dimension.
    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError>;

    /// What encodes and decodes one side of a cache.
    ///
    /// # Errors
    /// As [`vec_bytes`](Self::vec_bytes).
    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError>;

    /// Whether its vectors are rotated ([`Rotation`](crate::turboquant::Rotation)) before anything else happens to
    /// them: then queries are rotated before they meet keys, and sums of values are turned back.
    fn rotates(&self) -> bool {
        false
    }

    /// Whether positions are kept as f16 first, and encoded a page at a time when they have left a window of the newest
    /// ones. The first page stays f16 for ever, and keys are encoded less its mean.
    fn windowed(&self) -> bool {
        false
    }
}

/// The two sides of a KV cache, which may want different codes: keys are multiplied with queries, values are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSide {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// Encodes and decodes vectors of one length.
pub trait KvVectors: fmt::Debug + Send + Sync {
    /// Encodes one vector; `out` is as long as [`KvCodec::vec_bytes`] says. `false` where something had to be repaired:
    /// a number that the codec cannot hold.
    ///
    /// # Panics
    /// Where the lengths do not fit: a bug of the caller.
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool;

    /// Decodes one vector; the definition that every faster path is compared with.
    ///
    /// # Panics
    /// Where the lengths do not fit: a bug of the caller.
    fn decode(&self, bytes: &[u8], out: &mut [f32]);

    /// The same vectors as codes and scales, where they are such: for backends that have kernels for those.
    fn codes(&self) -> Option<&dyn KvCodes> {
        None
    }
}

/// A vector that is codes and scales: element `i` is `scales[i / block] * value(codes[i])`, or as
/// [`CodeValues::TwoAndSign`] says.
pub trait KvCodes {
    /// What codes stand for.
    fn values(&self) -> CodeValues;

    /// Elements that share a scale.
    fn block(&self) -> usize;

    /// Takes an encoded vector apart: a code an element, a scale a block.
    ///
    /// # Panics
    /// Where the lengths do not fit: a bug of the caller.
    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [half::f16]);

    /// What queries are projected with before they meet the signs of [`CodeValues::TwoAndSign`].
    fn projection(&self) -> Option<&Qjl> {
        None
    }
}

/// What the codes of a [`KvCodes`] stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodeValues {
    /// Code `4 + i` stands for the `i`th of these, code `3 - i` for the same with the other sign.
    Signed3([f32; 4]),
    /// Code `i` stands for the `i`th of these.
    Table4([f32; 16]),
    /// A code is the number itself, as an `i8`.
    Int8,
    /// Two sums of products, one with the query and one with its [projection](KvCodes::projection): the low two bits of
    /// a code are an index of `values`, times the first of two scales; its third bit stands for `sign`, or for `-sign` where
    /// it is 0, times the second.
    TwoAndSign {
        /// What the low two bits stand for.
        values: [f32; 4],
        /// What the third bit stands for.
        sign: f32,
    },
}

/// Every codec, in the order in which `--help` lists them.
pub static REGISTRY: &[&dyn KvCodec] = &[
    &f16::F16,
    &f32::F32,
    &q8_0::Q8_0,
    &q4_0::Q4_0,
    &turboquant::TURBOQUANT,
    &turboquant_4::TURBOQUANT_4,
    &tq3_0::Tq3_0,
];

/// The codec called `name`, or with that for an [alias](KvCodec::alias).
pub fn kv_by_name(name: &str) -> Option<&'static dyn KvCodec> {
    REGISTRY.iter().copied().find(|codec| codec.name() == name || codec.alias() == Some(name))
}

/// What a codec means on a side of the cache: itself, or what it has [instead](KvCodec::instead).
pub fn kv_on(side: KvSide, codec: &'static dyn KvCodec) -> &'static dyn KvCodec {
    codec.instead(side).unwrap_or(codec)
}
