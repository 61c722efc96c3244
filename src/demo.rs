//! The model inside the program: a small BitNet b1.58 of our own, trained on public-domain stories.
//! `assets/README.md` says how, and what it can do.

use bytes::Bytes;

/// What the model is called.
pub const NAME: &str = "stories-bitnet";

/// The model as a GGUF file: the program's own bytes, which are shared and not copied. `None` in a build
/// without the feature `demo`.
#[cfg(feature = "demo")]
pub fn model() -> Option<Bytes> {
    /// Aligned as a mapped file's tensors are, so that a backend can use them where they lie.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/stories-bitnet.gguf"));
    Some(Bytes::from_static(&FILE.0))
}

/// The model as a GGUF file; `None`, because this is a build without the feature `demo`.
#[cfg(not(feature = "demo"))]
pub fn model() -> Option<Bytes> {
    None
}
