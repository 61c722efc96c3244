//! KV-cache codecs: how one head's key or value vector is kept. One file a codec below `kv/`.

use std::fmt;

use crate::QuantError;

mod f16;
mod f32;

/// How a KV cache keeps one `[head_dim]` vector.
pub trait KvCodec: fmt::Debug + Sync {
    /// The word for it in `--kv-cache-type`.
    fn name(&self) -> &'static str;

    /// Bytes of one vector.
    ///
    /// # Errors
    /// [`QuantError::Shape`] where the codec cannot hold such a head dimension.
    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError>;

    /// Encodes one vector; `out` is `vec_bytes(x.len())` long.
    ///
    /// # Panics
    /// Where the lengths do not fit: a bug of the caller.
    fn encode(&self, x: &[f32], out: &mut [u8]);

    /// Decodes one vector; the definition that every faster path is compared with.
    ///
    /// # Panics
    /// Where the lengths do not fit: a bug of the caller.
    fn decode(&self, bytes: &[u8], out: &mut [f32]);
}

/// Every codec, in the order in which `--help` lists them.
pub static REGISTRY: &[&dyn KvCodec] = &[&f16::F16, &f32::F32];

/// The codec called `name`.
pub fn kv_by_name(name: &str) -> Option<&'static dyn KvCodec> {
    REGISTRY.iter().copied().find(|codec| codec.name() == name)
}
