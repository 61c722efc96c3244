//! Models: from a GGUF file to a [`Program`] and its weights. One file an architecture.
//!
//! A model file says what is computed, straight down the page, and checks every shape on the way. It
//! must never know a backend or do arithmetic on activations. Start at [`llama`]; [`build::Builder`]
//! is what it is written with.
#![forbid(unsafe_code)]

pub mod bert;
pub mod bitnet;
pub mod build;
pub mod gemma3;
pub mod gpt2;
pub mod gpt_oss;
mod hadamard;
pub mod hyper;
mod keys;
pub mod llama;
pub mod minicpm;
pub mod pooling;
pub mod qwen2;
pub mod qwen3;
pub mod qwen35;
mod rope;
pub mod smollm3;
mod windows;

use ggml_types::{KvCodec, QuantError};

pub use build::Builder;
pub use hyper::{Hyper, LayerHyper};
pub use pooling::{Dense, Pooling, PoolingHead, RankHead};
pub use windows::Windows;

use sterna_gguf::{FileTensor, Gguf, GgufError};
use sterna_program::{CheckError, KvWindow, Limits, PAGE, Program, Weight};

/// A model architecture: the names under which files carry it, and how its program is written.
#[derive(Debug)]
pub struct Architecture {
    /// Values of `general.architecture`.
    pub names: &'static [&'static str],
    /// Declares weights and pushes stages.
    pub build: fn(&mut Builder<'_>) -> Result<(), ModelError>,
    /// True if it reads heads and widths with [`Hyper::layer`]; if not, files whose blocks differ are errors.
    pub per_layer: bool,
}

/// Every architecture. A new one is its file and two lines here.
pub static REGISTRY: &[&Architecture] = &[
    &bitnet::ARCHITECTURE,
    &llama::ARCHITECTURE,
    &minicpm::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &qwen35::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &gpt_oss::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &bert::ARCHITECTURE,
    &bert::NOMIC,
];

/// Options of a model's program.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The largest step.
    pub limits: Limits,
    /// Codec of keys.
    pub k: &'static dyn KvCodec,
    /// Codec of values.
    pub v: &'static dyn KvCodec,
    /// Positions that windowed codecs keep exactly.
    pub window: KvWindow,
    /// Positions that a sequence may have: some models choose their rotary frequencies by it.
    pub n_ctx: usize,
}

impl Options {
    /// Options of sequences that may fill every page, with what windowed codecs keep by default.
    pub fn new(limits: Limits, k: &'static dyn KvCodec, v: &'static dyn KvCodec) -> Self {
        Self { limits, k, v, window: KvWindow::default(), n_ctx: limits.pages * PAGE }
    }
}

/// A model that is ready for a backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// The forward pass.
    pub program: Program,
    /// `weights[i]` is what `program.weights[i]` declares, to be read.
    pub weights: Vec<FileTensor>,
    /// The numbers it was built from.
    pub hyper: Hyper,
    /// What makes a vector or a score of a text.
    pub pooling: PoolingHead,
    /// Notes on this file for the user, one sentence each.
    pub notes: Vec<String>,
}

impl Model {
    /// Writes the program of the model in `gguf`, whose numbers `hyper` are.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown architecture and for the first tensor that is missing or of another
    /// shape than the numbers ask for.
    pub fn build(gguf: &Gguf, hyper: Hyper, options: &Options) -> Result<Self, ModelError> {
        let architecture = by_name(&hyper.architecture)?;
        if hyper.differing.is_some() && !architecture.per_layer {
            let key = format!("{}.attention.head_count_kv", hyper.architecture);
            let want = "the same heads and widths in all blocks, as of feed_forward_length".to_owned();
            return Err(ModelError::Metadata { key, want, got: "blocks that differ".to_owned() });
        }
        let mut builder = Builder::new(gguf, hyper.clone(), options)?;
        (architecture.build)(&mut builder)?;
        let pooling = PoolingHead::read(&mut builder)?;
        let (program, weights, notes) = builder.finish()?;
        // Pooling reads the norm; a program that makes logits names it too.
        let by_host: Vec<Weight> =
            [Some(pooling.norm.weight), pooling.norm.bias].into_iter().flatten().collect();
        program.check_all_named(&by_host)?;
        Ok(Self { program, weights, hyper, pooling, notes })
    }
}

/// The numbers of the model in `gguf`; the size of the vocabulary is the rows of its embedding table, the one
/// number that every file has as a shape.
///
/// # Errors
/// [`ModelError`] for an unknown architecture, a file without the table, and as [`Hyper::read`].
pub fn hyper(gguf: &Gguf) -> Result<Hyper, ModelError> {
    const TABLE: &str = "token_embd.weight";
    let Some(table) = gguf.find(TABLE) else {
        // An unknown architecture is reported as such, not as a missing table.
        by_name(gguf.metadata().require_str("general.architecture")?)?;
        let (tensor, want) = (TABLE.to_owned(), "[n_vocab, dim]".to_owned());
        let got = "no tensor of that name (a vocabulary-only file?)".to_owned();
        return Err(ModelError::Tensor { tensor, want, got });
    };
    Hyper::read(gguf.metadata(), table.rows())
}

/// The architecture called `name`.
///
/// # Errors
/// [`ModelError::Architecture`], which lists every name there is.
pub fn by_name(name: &str) -> Result<&'static Architecture, ModelError> {
    let found = REGISTRY.iter().copied().find(|architecture| architecture.names.contains(&name));
    found.ok_or_else(|| {
        let known: Vec<&str> = REGISTRY.iter().flat_map(|architecture| architecture.names).copied().collect();
        ModelError::Architecture { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Why a file holds no model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file itself is broken.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No program for this architecture.
    #[error("unknown architecture `{name}`; supported are: {known}")]
    Architecture {
        /// Name in the file.
        name: String,
        /// Every name there is.
        known: String,
    },
    /// A metadata value that is missing or makes no sense.
    #[error("metadata {key}: want {want}, file has {got}")]
    Metadata {
        /// The key.
        key: String,
        /// Values that are valid.
        want: String,
        /// The value.
        got: String,
    },
    /// A tensor that is missing or of the wrong shape.
    #[error("tensor {tensor}: want {want}, file has {got}")]
    Tensor {
        /// GGUF name.
        tensor: String,
        /// Shape that the model's numbers ask for.
        want: String,
        /// Shape and type.
        got: String,
    },
    /// A program that leaves out what it declares: a bug of the architecture's file.
    #[error(transparent)]
    Program(#[from] CheckError),
    /// A tensor whose bytes do not decode.
    #[error("tensor {tensor}")]
    Quant {
        /// GGUF name.
        tensor: String,
        /// The type's own words.
        source: QuantError,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_an_unknown_one_lists_what_there_is() {
        let mut names: Vec<&str> = REGISTRY.iter().flat_map(|a| a.names).copied().collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
        let message = by_name("mamba").unwrap_err().to_string();
        assert!(message.contains("`mamba`") && message.contains("bitnet-b1.58"), "{message}");
    }
}
