//! The model inside the program: a small BitNet b1.58 of our own, trained on a small simulated world.
//! `assets/README.md` says what it can do, `training/README.md` how it was made.

use bytes::Bytes;

/// Name of the model.
pub const NAME: &str = "sterna-world";

/// A prompt that asks it for a story, with the special tokens of its chat template.
pub const STORY: &str = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n";

/// Three things one can ask it. The page has the same list (`serve/page/page.mjs`).
pub const QUESTIONS: [&str; 3] =
    ["Tell me a story about a shy owl in winter.", "What can you do?", "What is 12 plus 30?"];

/// The model as a GGUF file: the program's own bytes, which are shared and not copied. `None` in a build
/// without the feature `demo`.
#[cfg(feature = "demo")]
pub fn model() -> Option<Bytes> {
    /// Aligned as a mapped file's tensors are, so that a backend can use them where they lie.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/world.gguf"));
    Some(Bytes::from_static(&FILE.0))
}

/// The model as a GGUF file; `None`, because this is a build without the feature `demo`.
#[cfg(not(feature = "demo"))]
pub fn model() -> Option<Bytes> {
    None
}
