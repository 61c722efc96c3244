//! KV-cache codecs: how one head's key or value vector is kept. One file a codec below `kv/`.

use std::fmt;
use std::str::FromStr;

use crate::QuantError;
use crate::turboquant::Qjl;

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

/// A way to keep the `[head_dim]` vectors of a KV cache.
pub trait KvCodec: fmt::Debug + Sync {
    /// The word for it in `--kv-cache-type`.
    fn name(&self) -> &'static str;

    /// Remark in a list of codecs, if there is one.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// True if comparisons of all codecs have it: not those of llama.cpp's that another one is as small as,
    /// and faster.
    fn is_compared(&self) -> bool {
        true
    }

    /// Another word for it.
    fn alias(&self) -> Option<&'static str> {
        None
    }

    /// The codec that its name means for a side of the cache which its own form is not for: it opens no
    /// vectors there.
    fn instead(&self, _: KvSide) -> Option<&'static dyn KvCodec> {
        None
    }

    /// Bytes of one vector.
    ///
    /// # Errors
    /// [`QuantError::Shape`] where the codec cannot hold such a head dimension.
    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError>;

    /// Encoder and decoder of one side of a cache.
    ///
    /// # Errors
    /// As [`vec_bytes`](Self::vec_bytes).
    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError>;

    /// Its form of vectors. A codec of the caller's own, whose vectors only [`open`](Self::open) knows, has
    /// the form that this says unless it says otherwise.
    fn form(&self) -> KvForm {
        KvForm::Opaque
    }

    /// True if its vectors are rotated ([`Rotation`](crate::turboquant::Rotation)) before anything else
    /// happens to them: then queries are rotated before they meet keys, and sums of values are rotated back.
    fn rotates(&self) -> bool {
        self.form().rotates()
    }

    /// True if positions are kept as f16 first, and encoded a page at a time when they have left a window of
    /// the newest ones. The first page stays f16 for ever, and keys are encoded less its mean.
    fn windowed(&self) -> bool {
        self.form().windowed()
    }
}

/// Form of a codec's vectors: all that a backend with kernels of its own must know of it. Such a backend
/// matches this without a `_` arm, so that a new form does not compile before each of them says what it does
/// with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvForm {
    /// Elements of 2 bytes, IEEE half precision.
    F16,
    /// Elements of 4 bytes, IEEE single precision.
    F32,
    /// Elements of 2 bytes, bfloat16.
    Bf16,
    /// Rotated; integers of 8 bits, a scale every 32.
    Q8_0,
    /// Rotated; integers of 4 bits, a scale every 32.
    Q4_0,
    /// Rotated; integers of 4 bits, a scale and an offset every 32.
    Q4_1,
    /// Rotated; integers of 5 bits, a scale every 32.
    Q5_0,
    /// Rotated; integers of 5 bits, a scale and an offset every 32.
    Q5_1,
    /// Rotated; indices of 16 values, a scale every 32.
    Iq4Nl,
    /// Rotated and windowed; Lloyd-Max codes of 3 bits, a scale a vector.
    Lloyd3,
    /// Rotated and windowed; Lloyd-Max codes of 4 bits, a scale a vector.
    Lloyd4,
    /// Rotated and windowed; Lloyd-Max codes of 2 bits, signs of what they leave over, two scales a vector.
    /// For keys.
    Lloyd2Signs,
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
            | Self::Lloyd2Signs => true,
        }
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
            Self::Lloyd3 | Self::Lloyd4 | Self::Lloyd2Signs => true,
        }
    }
}

/// Remark in a list on codecs whose form no device has kernels for.
fn on_processor(form: KvForm) -> Option<&'static str> {
    matches!(form, KvForm::Bf16 | KvForm::Q4_1 | KvForm::Q5_0 | KvForm::Q5_1 | KvForm::Iq4Nl)
        .then_some("on the CPU only")
}

/// The two sides of a KV cache, which may want different codes: keys are multiplied with queries, values are
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
    /// Encodes one vector; `out` is as long as [`KvCodec::vec_bytes`] says. `false` where something had to be
    /// clamped: a number that the codec cannot hold.
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
    /// Values of the codes.
    fn values(&self) -> CodeValues;

    /// Elements that share a scale.
    fn block(&self) -> usize;

    /// Takes an encoded vector apart: a code an element, a scale a block.
    ///
    /// # Panics
    /// Where the lengths do not fit: a bug of the caller.
    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [half::f16]);

    /// Projection of queries before they meet the signs of [`CodeValues::TwoAndSign`].
    fn projection(&self) -> Option<&Qjl> {
        None
    }
}

/// Values of the codes of a [`KvCodes`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodeValues {
    /// Code `4 + i` stands for the `i`th of these, code `3 - i` for the same with the other sign.
    Signed3([f32; 4]),
    /// Code `i` stands for the `i`th of these.
    Table4([f32; 16]),
    /// A code is the number itself, as an `i8`.
    Int8,
    /// Two sums of products, one with the query and one with its [projection](KvCodes::projection): the low
    /// two bits of a code are an index of `values`, times the first of two scales; its third bit stands for
    /// `sign`, or for `-sign` where it is 0, times the second.
    TwoAndSign {
        /// Values of the low two bits.
        values: [f32; 4],
        /// Value of the third bit.
        sign: f32,
    },
}

/// Elements of 2 bytes.
pub const F16: &dyn KvCodec = &f16::F16;
/// Elements of 4 bytes.
pub const F32: &dyn KvCodec = &f32::F32;
/// Integers of 8 bits.
pub const Q8_0: &dyn KvCodec = &q8_0::Q8_0;
/// TurboQuant's codes of 3 bits.
pub const TURBOQUANT: &dyn KvCodec = &turboquant::TURBOQUANT;

/// Every codec, in the order in which `--help` lists them.
pub static REGISTRY: &[&dyn KvCodec] = &[
    F16,
    F32,
    Q8_0,
    &q4_0::Q4_0,
    TURBOQUANT,
    &turboquant_4::TURBOQUANT_4,
    &tq3_0::Tq3_0,
    &bf16::Bf16,
    &q5_1::Q5_1,
    &q5_0::Q5_0,
    &q4_1::Q4_1,
    &iq4_nl::IQ4_NL,
];

/// The codec called `name`, or with that for an [alias](KvCodec::alias).
pub fn kv_by_name(name: &str) -> Option<&'static dyn KvCodec> {
    REGISTRY.iter().copied().find(|codec| codec.name() == name || codec.alias() == Some(name))
}

/// A name that no codec has.
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

/// The names of all codecs, as a list for people.
fn names() -> String {
    REGISTRY.iter().map(|codec| codec.name()).collect::<Vec<_>>().join(", ")
}

/// Every codec's name with its [note](KvCodec::note), as a list for people.
pub fn names_with_notes() -> String {
    let one = |codec: &&dyn KvCodec| match codec.note() {
        Some(note) => format!("{} ({note})", codec.name()),
        None => codec.name().to_owned(),
    };
    REGISTRY.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The codec that is used on a side of the cache: itself, or the one it names [instead](KvCodec::instead).
pub fn kv_on(side: KvSide, codec: &'static dyn KvCodec) -> &'static dyn KvCodec {
    codec.instead(side).unwrap_or(codec)
}
