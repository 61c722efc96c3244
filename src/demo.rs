//! The built-in model: a small BitNet b1.58 of our own, trained on a small simulated world.
//! `assets/README.md` describes its abilities, `training/README.md` its training.

use bytes::Bytes;

/// Name of the model.
pub const NAME: &str = "sterna-world";

/// A prompt for a story, with the special tokens of the model's chat template.
pub const STORY: &str = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n";

/// Suggested questions. The web page has the same list (`serve/page/page.mjs`).
pub const QUESTIONS: [&str; 3] =
    ["Tell me a story about a shy owl in winter.", "What can you do?", "What is 12 plus 30?"];

/// The model as a GGUF file: the program's own bytes, shared without a copy. `None` in a build without the
/// feature `demo`.
#[cfg(feature = "demo")]
pub fn model() -> Option<Bytes> {
    /// Aligned like the tensors of a mapped file, so that a backend can use them without a copy.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/world.gguf"));
    Some(Bytes::from_static(&FILE.0))
}

/// Always `None`: this is a build without the feature `demo`.
#[cfg(not(feature = "demo"))]
pub fn model() -> Option<Bytes> {
    None
}
