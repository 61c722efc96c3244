//! Models of a known shape with random weights and a working vocabulary of our own: for benchmarks and
//! tests where no download is wanted. What they say is noise, but the noise is always the same: a file
//! depends on its [`Spec`] alone, on every platform.
//!
//! It writes files and reads none, and must never know a program or a backend. Start at [`Preset`], which
//! makes a [`Spec`]; then [`Synth`].

mod names;
mod preset;
mod random;
mod vocab;
mod weights;

use std::io::{self, Write};
use std::ops::ControlFlow;

use ggml_types::{Dialect, QuantType, by_name};

use crate::gguf::{GgufError, GgufWriter};

pub use preset::{Family, PRESETS, Preset, Spec};

/// Why a model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// A shape that no model can have.
    #[error("{what}: {detail}")]
    Spec {
        /// The flag without its dashes: `heads`.
        what: &'static str,
        /// Expected and found.
        detail: String,
    },
    /// A tensor that its type cannot hold, or a file that cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// One tensor of a model to be made.
#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    /// Outermost first.
    dims: Vec<usize>,
    ty: &'static dyn QuantType,
    fill: Fill,
}

/// What the values of a tensor are like.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Bell-shaped around 0 with this standard deviation.
    Dense(f32),
    /// Minus, nothing (every second one) or plus this much.
    Ternary(f32),
    /// Around 1, as norm weights are.
    NearOne,
}

/// A model ready to be written.
#[derive(Debug)]
pub struct Synth {
    seed: u64,
    tensors: Vec<Tensor>,
    writer: GgufWriter,
}

impl Synth {
    /// Works out every tensor and makes the vocabulary.
    ///
    /// # Errors
    /// [`SynthError::Spec`], and [`SynthError::Gguf`] for shapes that the types cannot hold.
    pub fn new(spec: &Spec) -> Result<Self, SynthError> {
        spec.check()?;
        let tensors = names::tensors(spec);
        let mut writer = GgufWriter::new(names::metadata(spec))?;
        for tensor in &tensors {
            let (rows, cols) = tensor.shape();
            let bytes = tensor
                .ty
                .byte_len(rows, cols)
                .map_err(|error| GgufError::Quant { name: tensor.name.clone(), error })?;
            writer.tensor(&tensor.name, &tensor.dims, file_id(tensor.ty), bytes as u64)?;
        }
        Ok(Self { seed: spec.seed, tensors, writer })
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    /// Number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Writes the file piece by piece; `progress` hears the bytes written so far and may say stop.
    ///
    /// # Errors
    /// [`SynthError::Interrupted`]; [`SynthError::Gguf`] where writing fails.
    pub fn write(
        self,
        out: impl Write,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), SynthError> {
        let mut out = Counted { out, written: 0, progress: &mut progress, stopped: false };
        let result = (|| {
            let mut data = self.writer.begin(&mut out)?;
            for tensor in &self.tensors {
                data.tensor(weights::Pieces::new(tensor, self.seed))?;
            }
            data.finish().map(drop)
        })();
        if out.stopped { Err(SynthError::Interrupted) } else { Ok(result?) }
    }
}

impl Tensor {
    /// Rows and columns.
    fn shape(&self) -> (usize, usize) {
        let cols = self.dims.last().copied().unwrap_or(1);
        (self.dims.iter().rev().skip(1).product(), cols)
    }
}

/// The number under which a file carries the type: upstream's where there is one.
fn file_id(ty: &dyn QuantType) -> u32 {
    let ids = ty.ids();
    let upstream = ids.iter().find(|(dialect, _)| *dialect == Dialect::Ggml);
    upstream.or(ids.first()).expect("types without an id are refused by Spec::check").1
}

/// Types that a file can carry.
fn type_named(what: &'static str, name: &str) -> Result<&'static dyn QuantType, SynthError> {
    by_name(name).filter(|ty| !ty.ids().is_empty()).ok_or_else(|| {
        let names: Vec<_> = ggml_types::types::REGISTRY
            .iter()
            .filter(|ty| !ty.ids().is_empty())
            .map(|ty| ty.name())
            .collect();
        SynthError::Spec { what, detail: format!("want one of {}, found {name}", names.join(", ")) }
    })
}

/// Counts what goes through, and lets the caller stop it.
struct Counted<'a, W, F> {
    out: W,
    written: u64,
    progress: &'a mut F,
    stopped: bool,
}

impl<W: Write, F: FnMut(u64) -> ControlFlow<()>> Write for Counted<'_, W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.progress)(self.written).is_break() {
            self.stopped = true;
            return Err(io::Error::other("interrupted"));
        }
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
