//! Models: builds a [`Program`] and its weights from a GGUF file. One source file per architecture.
//!
//! A model file describes the computation from top to bottom, and checks every shape on the way. It must
//! never know a backend or do arithmetic on activations. Start at [`llama`]; [`build::Builder`] is the API
//! that models are written with.
#![forbid(unsafe_code)]

pub mod afmoe;
pub mod apertus;
pub mod arcee;
mod assistant;
pub mod bert;
pub mod bitnet;
pub mod build;
pub mod chatglm;
pub mod cohere2;
pub mod control;
pub mod deepseek2;
pub mod dots1;
pub mod draft;
mod drafts;
mod eagle3;
pub mod ernie4_5;
pub mod exaone;
pub mod exaone4;
pub mod falcon;
pub mod falcon_h1;
pub mod gemma;
pub mod gemma2;
pub mod gemma3;
pub mod gemma3n;
pub mod gemma4;
pub mod glm4;
pub mod glm4moe;
pub mod gpt2;
pub mod gpt_oss;
pub mod gptneox;
pub mod granite;
pub mod granite_hybrid;
mod hadamard;
pub mod hunyuan;
pub mod hyper;
pub mod internlm2;
mod keys;
pub mod laguna;
pub mod lfm2;
pub mod llama;
pub mod lora;
pub mod mamba2;
pub mod mellum;
pub mod minicpm;
pub mod minimax_m2;
pub mod mistral3;
mod mixer;
mod mtp;
pub mod muse_glimmer;
pub mod nemotron;
pub mod nemotron_h;
pub mod olmo;
pub mod olmo2;
pub mod olmoe;
pub mod phi2;
pub mod phi3;
pub mod pooling;
pub mod qwen2;
pub mod qwen3;
pub mod qwen35;
pub mod qwen3next;
mod rope;
pub mod seed_oss;
pub mod smollm3;
mod sparse;
pub mod stablelm;
pub mod starcoder;
pub mod starcoder2;
pub mod vision;
mod windows;

use std::cmp::Reverse;

use ggml_types::{KvCodec, QuantError};

pub use build::Builder;
pub use draft::{DraftBlock, DraftForm, Fusion};
pub use drafts::{DraftKind, draft_block};
pub use hyper::{Hyper, LayerHyper};
pub use pooling::{Dense, Pooling, PoolingHead, RankHead};
pub use windows::Windows;

use sterna_gguf::{FileTensor, Gguf, GgufError};
use sterna_program::{CheckError, KvWindow, Limits, PAGE, Program, Weight};

/// A model architecture: its names in files, and the function that builds its program.
#[derive(Debug)]
pub struct Architecture {
    /// Values of `general.architecture`.
    pub names: &'static [&'static str],
    /// Declares weights and pushes stages.
    pub build: fn(&mut Builder<'_>) -> Result<(), ModelError>,
    /// True if it reads heads and widths with [`Hyper::layer`]; otherwise files whose blocks differ are
    /// errors.
    pub per_layer: bool,
}

/// Every architecture. A new one needs its file and two lines here.
pub static REGISTRY: &[&Architecture] = &[
    &bitnet::ARCHITECTURE,
    &llama::ARCHITECTURE,
    &minicpm::ARCHITECTURE,
    &minimax_m2::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen2::VL,
    &qwen3::ARCHITECTURE,
    &qwen3::VL,
    &qwen35::ARCHITECTURE,
    &qwen3next::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &starcoder::ARCHITECTURE,
    &gptneox::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &gemma::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3n::ARCHITECTURE,
    &gemma4::ARCHITECTURE,
    &olmo::ARCHITECTURE,
    &olmo2::ARCHITECTURE,
    &olmoe::ARCHITECTURE,
    &mistral3::ARCHITECTURE,
    &gpt_oss::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &granite::ARCHITECTURE,
    &chatglm::ARCHITECTURE,
    &glm4::ARCHITECTURE,
    &glm4moe::ARCHITECTURE,
    &deepseek2::ARCHITECTURE,
    &phi2::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &lfm2::ARCHITECTURE,
    &granite_hybrid::ARCHITECTURE,
    &falcon_h1::ARCHITECTURE,
    &mamba2::ARCHITECTURE,
    &nemotron::ARCHITECTURE,
    &nemotron_h::ARCHITECTURE,
    &dots1::ARCHITECTURE,
    &afmoe::ARCHITECTURE,
    &arcee::ARCHITECTURE,
    &apertus::ARCHITECTURE,
    &internlm2::ARCHITECTURE,
    &laguna::ARCHITECTURE,
    &mellum::ARCHITECTURE,
    &muse_glimmer::ARCHITECTURE,
    &seed_oss::ARCHITECTURE,
    &ernie4_5::ARCHITECTURE,
    &exaone::ARCHITECTURE,
    &exaone4::ARCHITECTURE,
    &falcon::ARCHITECTURE,
    &hunyuan::ARCHITECTURE,
    &cohere2::ARCHITECTURE,
    &starcoder2::ARCHITECTURE,
    &stablelm::ARCHITECTURE,
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
    /// Maximum context in positions: some models choose their rotary frequencies by it.
    pub n_ctx: usize,
    /// True if the program of the multi-token prediction (MTP) block is built, too, if the file has one.
    pub mtp: bool,
    /// True if prompts may contain images: rows of an mmproj file's tower.
    pub images: bool,
}

impl Options {
    /// Options for sequences that may use every page, with the default window of windowed codecs.
    pub fn new(limits: Limits, k: &'static dyn KvCodec, v: &'static dyn KvCodec) -> Self {
        let window = KvWindow::default();
        Self { limits, k, v, window, n_ctx: limits.pages * PAGE, mtp: false, images: false }
    }
}

/// A model that is ready for a backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// The forward pass.
    pub program: Program,
    /// `weights[i]` is the file tensor for `program.weights[i]`, not yet read.
    pub weights: Vec<FileTensor>,
    /// The hyperparameters that it was built from.
    pub hyper: Hyper,
    /// Pooling to an embedding or a score.
    pub pooling: PoolingHead,
    /// The MTP block, if the file has one and [`Options::mtp`] requests it.
    pub mtp: Option<DraftBlock>,
    /// Numbers of first stages after which further rows of images are added to the residual stream: one entry
    /// per further row of each token of an image (Qwen3-VL).
    pub deepstack: Vec<usize>,
    /// Notes on this file for the user, one sentence each.
    pub notes: Vec<String>,
}

impl Model {
    /// Builds the program of the model in `gguf` with its hyperparameters `hyper`.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown architecture, for the first tensor that is missing or whose shape does
    /// not match the hyperparameters, and for tensors and keys that the architecture does not use.
    pub fn build(gguf: &Gguf, hyper: Hyper, options: &Options) -> Result<Self, ModelError> {
        let architecture = by_name(&hyper.architecture)?;
        if let Some(err) = hyper.differ(gguf.metadata()).filter(|_| !architecture.per_layer) {
            return Err(err);
        }
        let mut builder = Builder::new(gguf, hyper.clone(), options)?;
        (architecture.build)(&mut builder)?;
        drafts::mtp_block(&mut builder)?;
        let pooling = PoolingHead::read(&mut builder)?;
        let (mtp, deepstack) = (builder.take_mtp(), builder.take_deepstack());
        let keys = builder.check_keys();
        let (program, weights, notes) = builder.finish()?;
        // A tensor of another model says more than its keys.
        keys?;
        // Pooling reads the norm; a program with logits uses it, too.
        let by_host: Vec<Weight> =
            [Some(pooling.norm.weight), pooling.norm.bias].into_iter().flatten().collect();
        program.check_all_named(&by_host)?;
        mtp.iter().try_for_each(DraftBlock::check)?;
        Ok(Self { program, weights, hyper, pooling, mtp, deepstack, notes })
    }
}

/// The hyperparameters of the model in `gguf`. The size of the vocabulary is the number of rows of its
/// embedding table, which every file has.
///
/// # Errors
/// [`ModelError`] for a file of another kind, an unknown architecture, a file without the table, and as
/// [`Hyper::read`].
pub fn hyper(gguf: &Gguf) -> Result<Hyper, ModelError> {
    gguf.metadata().check_is_model()?;
    let architecture = gguf.metadata().require_str("general.architecture")?;
    if DraftKind::of(gguf).is_some() {
        let (key, want) = ("general.architecture".to_owned(), "a model of its own".to_owned());
        let got =
            format!("`{architecture}`, a file that drafts for its model: use it as the draft of that one");
        return Err(ModelError::Metadata { key, want, got });
    }
    // An unknown architecture is reported as such, not as a missing table or an unexpected key.
    by_name(architecture)?;
    const TABLE: &str = "token_embd.weight";
    let Some(table) = gguf.find(TABLE) else {
        let (tensor, want) = (TABLE.to_owned(), "[n_vocab, dim]".to_owned());
        let got = "no tensor of that name (a vocabulary-only file?)".to_owned();
        return Err(ModelError::Tensor { tensor, want, got });
    };
    Hyper::read(gguf.metadata(), table.rows())
}

/// The architecture called `name`.
///
/// # Errors
/// [`ModelError::Architecture`], which lists all known names and the nearest one.
pub fn by_name(name: &str) -> Result<&'static Architecture, ModelError> {
    let found = REGISTRY.iter().copied().find(|architecture| architecture.names.contains(&name));
    found.ok_or_else(|| {
        let known: Vec<&str> = REGISTRY.iter().flat_map(|architecture| architecture.names).copied().collect();
        let nearest = nearest(name, &known).map(|nearest| format!(" (the nearest is `{nearest}`)"));
        let nearest = nearest.unwrap_or_default();
        ModelError::Architecture { name: name.to_owned(), nearest, known: known.join(", ") }
    })
}

/// The known name that begins most like `name`; the shortest of several.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    /// Shorter common beginnings are accidental.
    const SHORTEST: usize = 3;
    let common = |known: &str| name.bytes().zip(known.bytes()).take_while(|(a, b)| a == b).count();
    let candidates = known.iter().copied().filter(|known| common(known) >= SHORTEST);
    candidates.max_by_key(|known| (common(known), Reverse(known.len())))
}

/// Reason why a file contains no model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file itself is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// There is no program for this architecture.
    #[error("unknown architecture `{name}`{nearest}; supported are: {known}")]
    Architecture {
        /// Name in the file.
        name: String,
        /// Remark on the known name that begins most like it; may be empty.
        nearest: String,
        /// All known names.
        known: String,
    },
    /// There is no tower for this kind of mmproj file.
    #[error("projector `{name}` of the mmproj file is not supported; supported are: {known}")]
    Projector {
        /// Name in the file.
        name: String,
        /// All known names.
        known: String,
    },
    /// A metadata value that is missing or invalid.
    #[error("metadata {key}: want {want}, file has {got}")]
    Metadata {
        /// The key.
        key: String,
        /// Valid values.
        want: String,
        /// The value.
        got: String,
    },
    /// A tensor that is missing or of the wrong shape.
    #[error("tensor {tensor}: want {want}, file has {got}")]
    Tensor {
        /// GGUF name.
        tensor: String,
        /// Shape expected by the hyperparameters.
        want: String,
        /// Shape and type.
        got: String,
    },
    /// A program that does not use all of its declarations: a bug of the architecture's file.
    #[error(transparent)]
    Program(#[from] CheckError),
    /// A tensor whose bytes do not decode.
    #[error("tensor {tensor}")]
    Quant {
        /// GGUF name.
        tensor: String,
        /// The error of the type.
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
        let message = by_name("rwkv7").unwrap_err().to_string();
        assert!(message.contains("`rwkv7`; ") && message.contains("bitnet-b1.58"), "{message}");
        for (name, want) in
            [("gemma5", "gemma"), ("mamba", "mamba2"), ("qwen3v", "qwen3vl"), ("glm4v", "glm4")]
        {
            let message = by_name(name).unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}` (the nearest is `{want}`); ")), "{message}");
        }
    }
}
