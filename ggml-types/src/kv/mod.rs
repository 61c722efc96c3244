//! KV-cache codecs: storage formats of one head's key or value vector. One file per codec below `kv/`.

use std::fmt;
use std::str::FromStr;

use crate::QuantError;
use crate::turboquant::{KeyMean, LogScale, PathSearch, Qjl, Trellis};

mod bf16;
mod f16;
mod f32;
mod iq4_nl;
mod q4_0;
mod q4_1;
mod q5_0;
mod q5_1;
mod q8_0;
mod tq3_0;
mod turboquant;
#[path = "turboquant-4.rs"]
mod turboquant_4;
#[path = "turboquant-mse.rs"]
mod turboquant_mse;
#[path = "turboquant-t.rs"]
mod turboquant_t;

/// A storage format for the `[head_dim]` vectors of a KV cache.
pub trait KvCodec: fmt::Debug + Sync {
    /// Its name in `--kv-cache-type`.
    fn name(&self) -> &'static str;

    /// Remark in a list of codecs, if there is one.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// True if comparisons of all codecs include it. Codecs of llama.cpp are left out if another one is as
    /// small, and faster.
    fn is_compared(&self) -> bool {
        true
    }

    /// Another name for it.
    fn alias(&self) -> Option<&'static str> {
        None
    }

    /// The codec that its name selects on a side of the cache that it does not support itself; it opens no
    /// vectors there.
    fn instead(&self, _: KvSide) -> Option<&'static dyn KvCodec> {
        None
    }

    /// Bytes of one vector.
    ///
    /// # Errors
    /// [`QuantError::Shape`] if the codec does not support the head dimension.
    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError>;

    /// Encoder and decoder of one side of a cache.
    ///
    /// # Errors
    /// As [`vec_bytes`](Self::vec_bytes).
    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError>;

    /// The form of its vectors. A caller's own codec, whose vectors only [`open`](Self::open) knows, keeps
    /// this default or overrides it.
    fn form(&self) -> KvForm {
        KvForm::Opaque
    }

    /// True if its vectors are rotated ([`Rotation`](crate::turboquant::Rotation)) before anything else.
    /// Queries are then rotated before they are multiplied with keys, and sums of values are rotated back.
    fn rotates(&self) -> bool {
        self.form().rotates()
    }

    /// True if positions are stored as f16 first, and encoded a page at a time once the page is full. Rows
    /// read f16 in a window of the newest pages and in the first pages, and codes in between. Encoded keys
    /// are less the [mean](Self::key_mean) of their own page.
    fn windowed(&self) -> bool {
        self.form().windowed()
    }

    /// The mean that is stored with each encoded page of a side and subtracted from its vectors; `None` if
    /// vectors are encoded as they are.
    fn key_mean(&self, side: KvSide, head_dim: usize) -> Option<KeyMean> {
        (self.windowed() && side == KvSide::Keys).then(|| KeyMean::new(head_dim))
    }

    /// Bytes of a page of `n` vectors of one head: the [mean](Self::key_mean), if there is one, and the
    /// vectors.
    ///
    /// # Errors
    /// As [`vec_bytes`](Self::vec_bytes).
    fn page_bytes(&self, side: KvSide, head_dim: usize, n: usize) -> Result<usize, QuantError> {
        let vectors = n * self.vec_bytes(head_dim)?;
        Ok(self.key_mean(side, head_dim).map_or(0, KeyMean::bytes) + vectors)
    }
}

/// Form of a codec's vectors: all that a backend with its own kernels needs to know about it. Such a backend
/// matches this without a `_` arm, so that a new form does not compile until each backend handles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvForm {
    /// Elements of 2 bytes, IEEE half precision.
    F16,
    /// Elements of 4 bytes, IEEE single precision.
    F32,
    /// Elements of 2 bytes, bfloat16.
    Bf16,
    /// Rotated; 8-bit integers, one scale per 32.
    Q8_0,
    /// Rotated; 4-bit integers, one scale per 32.
    Q4_0,
    /// Rotated; 4-bit integers, a scale and an offset per 32.
    Q4_1,
    /// Rotated; 5-bit integers, one scale per 32.
    Q5_0,
    /// Rotated; 5-bit integers, a scale and an offset per 32.
    Q5_1,
    /// Rotated; indices of 16 values, one scale per 32.
    Iq4Nl,
    /// Rotated and windowed; 3-bit Lloyd-Max codes, one scale per vector.
    Lloyd3,
    /// Rotated and windowed; 4-bit Lloyd-Max codes, one scale per vector.
    Lloyd4,
    /// Rotated and windowed; 2-bit Lloyd-Max codes, signs of the residual, two scales per vector. For keys.
    Lloyd2Signs,
    /// In the [basis](Self::has_basis) of its head and windowed; 4-bit Lloyd-Max codes of one half and 2-bit
    /// codes of the other, two 8-bit scales per vector. For keys.
    Lloyd42,
    /// As [`Lloyd42`](Self::Lloyd42), with the codes of two trellises. For keys.
    Trellis42,
    /// Rotated and windowed; 3-bit codes of a trellis, one scale per vector. For values.
    Trellis3,
    /// Bytes that only the codec reads and writes, neither rotated nor windowed.
    Opaque,
}

impl KvForm {
    /// True if vectors are rotated before they are encoded.
    pub const fn rotates(self) -> bool {
        match self {
            Self::F16 | Self::F32 | Self::Bf16 | Self::Opaque => false,
            Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Iq4Nl
            | Self::Lloyd3
            | Self::Lloyd4
            | Self::Lloyd2Signs
            | Self::Lloyd42
            | Self::Trellis42
            | Self::Trellis3 => true,
        }
    }

    /// True if keys are rotated as two halves, in the [`KeyBasis`](crate::turboquant::KeyBasis) of their KV
    /// head, and queries in its inverse. Other forms rotate all vectors by the same
    /// [`Rotation`](crate::turboquant::Rotation).
    pub const fn has_basis(self) -> bool {
        matches!(self, Self::Lloyd42 | Self::Trellis42)
    }

    /// True if only pages that have left the window are encoded.
    pub const fn windowed(self) -> bool {
        match self {
            Self::F16
            | Self::F32
            | Self::Bf16
            | Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Iq4Nl
            | Self::Opaque => false,
            Self::Lloyd3
            | Self::Lloyd4
            | Self::Lloyd2Signs
            | Self::Lloyd42
            | Self::Trellis42
            | Self::Trellis3 => true,
        }
    }
}

/// Remark in a list for codecs whose form does not have kernels on every device.
fn on_processor(form: KvForm) -> Option<&'static str> {
    let blocks = matches!(form, KvForm::Bf16 | KvForm::Q4_1 | KvForm::Q5_0 | KvForm::Q5_1 | KvForm::Iq4Nl);
    blocks.then_some("on the CPU only")
}

/// The two sides of a KV cache, which may need different codecs: keys are multiplied with queries, values are
/// summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSide {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// Encodes and decodes vectors of one length.
pub trait KvVectors: fmt::Debug + Send + Sync {
    /// Encodes one vector; `out` has the length of [`KvCodec::vec_bytes`]. Returns `false` if a number that
    /// the codec cannot hold had to be clamped.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool;

    /// Encodes `n` vectors, `[n, head_dim]`, to `[n, vec_bytes]`, with the bytes of [`encode`](Self::encode).
    /// Codes of a [`Trellis`] are found by `search`. Returns the number of vectors in which something had to
    /// be clamped.
    ///
    /// # Panics
    /// If the lengths do not match, or `n` is 0: a bug of the caller.
    fn encode_all(&self, n: usize, x: &[f32], out: &mut [u8], search: PathSearch) -> usize {
        let _ = search;
        let (head_dim, vec_bytes) = (x.len() / n, out.len() / n);
        let vectors = x.chunks_exact(head_dim).zip(out.chunks_exact_mut(vec_bytes));
        vectors.filter_map(|(x, out)| (!self.encode(x, out)).then_some(())).count()
    }

    /// Decodes one vector. This is the definition; every faster path is compared with it.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    fn decode(&self, bytes: &[u8], out: &mut [f32]);

    /// The same vectors as codes and scales, if that is their form, for backends with kernels for those.
    fn codes(&self) -> Option<&dyn KvCodes> {
        None
    }
}

/// A vector of codes and scales: element `i` is `scales[i / block] * value(codes[i])`, or as defined by
/// [`CodeValues::TwoAndSign`]. A scale is an f16, or 8 bits that [`log_scales`](Self::log_scales) decode.
pub trait KvCodes {
    /// Values of the codes.
    fn values(&self) -> CodeValues;

    /// Elements that share a scale.
    fn block(&self) -> usize;

    /// Form of the scales if they have 8 bits: one per block.
    fn log_scales(&self) -> Option<[LogScale; 2]> {
        None
    }

    /// Splits an encoded vector into one code per element and the bytes of one scale per block.
    ///
    /// # Panics
    /// If the lengths do not match: a bug of the caller.
    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]);

    /// Projection of queries before they are multiplied with the signs of [`CodeValues::TwoAndSign`].
    fn projection(&self) -> Option<&Qjl> {
        None
    }
}

/// Values of the codes of a [`KvCodes`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodeValues {
    /// Code `4 + i` is the `i`th of these, and code `3 - i` its negative.
    Signed3([f32; 4]),
    /// Code `i` is the `i`th of these.
    Table4([f32; 16]),
    /// Two blocks: code `i` of the first is the `i`th of `four`, and of the second the `i`th of `two`.
    FourAndTwo {
        /// Values of the first block's codes.
        four: [f32; 16],
        /// Values of the second block's codes.
        two: [f32; 4],
    },
    /// A code is the number itself, as an `i8`.
    Int8,
    /// Two sums of products, one with the query and one with its [projection](KvCodes::projection): the low
    /// two bits of a code are an index of `values`, times the first of two scales; its third bit means
    /// `sign`, or `-sign` if it is 0, times the second.
    TwoAndSign {
        /// Values of the low two bits.
        values: [f32; 4],
        /// Value of the third bit.
        sign: f32,
    },
    /// The codes of a block are those of a trellis, whose values are in units of `1 / `[`Trellis::UNIT`].
    Trellis(&'static Trellis),
    /// Two blocks with a trellis each.
    Trellises([&'static Trellis; 2]),
}

/// Elements of 2 bytes.
pub const F16: &dyn KvCodec = &f16::F16;
/// Elements of 4 bytes.
pub const F32: &dyn KvCodec = &f32::F32;
/// 8-bit integers.
pub const Q8_0: &dyn KvCodec = &q8_0::Q8_0;
/// Keys in 4-bit and 2-bit codes, values in 3-bit codes.
pub const TURBOQUANT: &dyn KvCodec = &turboquant::TurboQuant;

/// Every codec, in the order in which `--help` lists them.
pub static REGISTRY: &[&dyn KvCodec] = &[
    F16,
    F32,
    Q8_0,
    &q4_0::Q4_0,
    TURBOQUANT,
    &turboquant_t::TURBOQUANT_T,
    &turboquant_4::TURBOQUANT_4,
    &turboquant_mse::TURBOQUANT_MSE,
    &tq3_0::Tq3_0,
    &bf16::Bf16,
    &q5_1::Q5_1,
    &q5_0::Q5_0,
    &q4_1::Q4_1,
    &iq4_nl::IQ4_NL,
];

/// The codec with this name or [alias](KvCodec::alias).
pub fn kv_by_name(name: &str) -> Option<&'static dyn KvCodec> {
    REGISTRY.iter().copied().find(|codec| codec.name() == name || codec.alias() == Some(name))
}

/// Error for an unknown codec name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want one of {known}, got {0}", known = names())]
pub struct UnknownCodec(String);

impl FromStr for &'static dyn KvCodec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        kv_by_name(name).ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

/// Codecs are the same if their names are.
impl PartialEq for dyn KvCodec {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn KvCodec {}

/// The names of all codecs, as a list for the user.
fn names() -> String {
    REGISTRY.iter().map(|codec| codec.name()).collect::<Vec<_>>().join(", ")
}

/// Every codec's name with its [note](KvCodec::note), as a list for the user.
pub fn names_with_notes() -> String {
    let one = |codec: &&dyn KvCodec| match codec.note() {
        Some(note) => format!("{} ({note})", codec.name()),
        None => codec.name().to_owned(),
    };
    REGISTRY.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The codec used on a side of the cache: `codec` itself, or the one it names [instead](KvCodec::instead).
pub fn kv_on(side: KvSide, codec: &'static dyn KvCodec) -> &'static dyn KvCodec {
    codec.instead(side).unwrap_or(codec)
}
