//! Models of a known shape with random weights and a working vocabulary of our own: for benchmarks and tests
//! without downloads. Their output is noise, but always the same noise: a file depends only on its [`Spec`],
//! on every platform.
//!
//! This crate only writes files, and must never know a program or a backend. Start at [`Preset`], which
//! creates a [`Spec`]; then [`Synth`].
#![forbid(unsafe_code)]

mod adapter;
mod names;
mod preset;
mod random;
mod tower;
mod vocab;
mod weights;

use std::io::Write;
use std::ops::ControlFlow;

use ggml_types::{QuantError, QuantType};

use sterna_gguf::{self as gguf, GgufError, GgufWriter, Metadata};

pub use preset::{Biases, Family, Gate, MambaForm, Norms, PRESETS, Preset, Relative, Spec, Tower};

/// Reason why a model cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// An invalid shape.
    #[error("{what}: {detail}")]
    Spec {
        /// The invalid value, by its path, such as `Spec::n_heads`.
        what: &'static str,
        /// Expected and actual values.
        detail: String,
    },
    /// A tensor that its type cannot hold, or a file that cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// One tensor of a model to be created.
#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    /// Outermost first.
    dims: Vec<usize>,
    ty: &'static dyn QuantType,
    fill: Fill,
}

/// Distribution of the values of a tensor.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Roughly normally distributed around 0 with this standard deviation.
    Dense(f32),
    /// Minus this, 0 (every second one) or plus this.
    Ternary(f32),
    /// Around 1, like norm weights.
    NearOne,
    /// Uniformly distributed between two numbers.
    Between(f32, f32),
}

/// A model ready to be written.
#[derive(Debug)]
pub struct Synth {
    seed: u64,
    tensors: Vec<Tensor>,
    writer: GgufWriter,
}

impl Synth {
    /// Computes the list of tensors and creates the vocabulary.
    ///
    /// # Errors
    /// [`SynthError::Spec`], and [`SynthError::Gguf`] for shapes that the types cannot hold.
    pub fn new(spec: &Spec) -> Result<Self, SynthError> {
        spec.check()?;
        let (metadata, tensors) = match spec.family {
            Family::Gemma3Tower(of) => (tower::metadata(spec, of), tower::tensors(spec, of)),
            _ => (names::metadata(spec), names::tensors(spec)),
        };
        Self::of(metadata, tensors, spec.seed)
    }

    /// The same for a LoRA adapter of a rank, for models of this shape: a pair of F16 matrices for each
    /// matrix of attention and of the feed-forward networks.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`SynthError::Spec`] for a rank of 0.
    pub fn adapter(spec: &Spec, rank: usize) -> Result<Self, SynthError> {
        spec.check()?;
        if rank == 0 {
            return Err(SynthError::Spec { what: "lora_rank", detail: "want at least 1, got 0".into() });
        }
        if matches!(spec.family, Family::Gemma3Tower(_)) {
            let detail = "a tower has no adapters".to_owned();
            return Err(SynthError::Spec { what: "lora_rank", detail });
        }
        Self::of(adapter::metadata(spec, rank), adapter::tensors(spec, rank)?, spec.seed)
    }

    fn of(metadata: Metadata, tensors: Vec<Tensor>, seed: u64) -> Result<Self, SynthError> {
        let mut writer = GgufWriter::new(metadata)?;
        for tensor in &tensors {
            let (rows, cols) = tensor.shape();
            let wrong = |error| GgufError::Quant { name: tensor.name.clone(), error };
            if !tensor.ty.encodes() {
                return Err(wrong(QuantError::ReadOnly { ty: tensor.ty.name() }).into());
            }
            let bytes = tensor.ty.byte_len(rows, cols).map_err(wrong)?;
            let id = gguf::type_id(tensor.ty).ok_or_else(|| {
                let detail = format!("GGUF files cannot store type {}", tensor.ty.name());
                SynthError::Spec { what: "Spec::ty", detail }
            })?;
            writer.tensor(&tensor.name, &tensor.dims, id, bytes as u64)?;
        }
        Ok(Self { seed, tensors, writer })
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    /// Number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The beginning of the file, up to the weights. Padded with zeros to [`file_bytes`](Self::file_bytes) it
    /// is a model of this shape.
    ///
    /// # Errors
    /// [`SynthError::Gguf`].
    pub fn descriptions(self) -> Result<Vec<u8>, SynthError> {
        let mut out = Vec::new();
        self.writer.begin(&mut out)?;
        Ok(out)
    }

    /// Writes the file piece by piece; `progress` gets the number of bytes written so far and may stop.
    ///
    /// # Errors
    /// [`SynthError::Interrupted`]; [`SynthError::Gguf`] if writing fails.
    pub fn write(
        self,
        out: impl Write,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), SynthError> {
        let done = gguf::watched(out, progress, |out| {
            let mut data = self.writer.begin(out)?;
            for tensor in &self.tensors {
                data.tensor(weights::Pieces::new(tensor, self.seed))?;
            }
            data.finish().map(drop)
        });
        done?.ok_or(SynthError::Interrupted)
    }
}

impl Tensor {
    fn shape(&self) -> (usize, usize) {
        let cols = self.dims.last().copied().unwrap_or(1);
        (self.dims.iter().rev().skip(1).product(), cols)
    }
}

/// The type called `name`, for the option `what`.
fn type_named(what: &'static str, name: &str) -> Result<&'static dyn QuantType, SynthError> {
    gguf::type_named(name).map_err(|error| SynthError::Spec { what, detail: error.to_string() })
}
