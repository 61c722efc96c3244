//! From a model of real-valued weights to one of another type: a GGUF file in, a GGUF file out.
//!
//! It must never know a program or a backend. Start at [`Quantizer`]: it decides what becomes of every tensor
//! before a byte is written; `encode.rs` then turns one tensor after the other, and `ternary.rs` is BitNet's
//! rule.

mod encode;
mod ternary;

use std::io::Write;
use std::ops::ControlFlow;

use ggml_types::{HostTensor, QuantType, Ternary, types};

use crate::gguf::{Gguf, GgufError, GgufWriter, Metadata, TensorInfo, Watched, file_type, type_id};
use encode::Encoder;

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The input is broken or unknown, or the output cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Weights that have lost precision already.
    #[error(
        "tensor {} is {from} already, which cannot become {want}: quantise the original of f32, f16 or bf16",
        name.escape_debug()
    )]
    Quantized {
        /// GGUF name.
        name: String,
        /// Its type.
        from: &'static str,
        /// The type it was to have.
        want: &'static str,
    },
    /// A weight that the type cannot hold.
    #[error("tensor {}, row {row}, column {col}: {value} cannot be kept as {ty}", name.escape_debug())]
    Value {
        /// GGUF name.
        name: String,
        /// From 0.
        row: usize,
        /// From 0.
        col: usize,
        /// The weight.
        value: f32,
        /// The type that was to hold it.
        ty: &'static str,
    },
    /// A type that no file can carry.
    #[error("no file can carry {0}")]
    Type(&'static str),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What to make of a model.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeOptions {
    /// Type of the linear weights, and of the embedding and the output head where nothing else is said.
    pub ty: &'static dyn QuantType,
    /// Type of `token_embd`. `None`: f16 for ternary weights, else that of the weights.
    pub token_embd: Option<&'static dyn QuantType>,
    /// Type of `output`, likewise.
    pub output: Option<&'static dyn QuantType>,
    /// Round linear weights to ternary by BitNet's rule before they are encoded, whatever their type. A type
    /// of one scale a tensor (I2_S) has no other way.
    pub absmean: bool,
    /// Threads that encode; the result does not depend on it. At least 1.
    pub threads: usize,
}

/// What became of one tensor.
#[derive(Clone, Debug)]
pub struct TensorReport {
    /// GGUF name.
    pub name: String,
    /// Outermost dimension first.
    pub dims: Vec<usize>,
    /// Type it had, and bytes.
    pub from: (&'static str, usize),
    /// Type it has, and bytes.
    pub to: (&'static str, usize),
    /// Root of the sum of squared differences over the sum of squares; 0 for what was copied.
    pub error: f64,
    /// Why it does not have the type that was asked for.
    pub note: Option<String>,
}

/// A model ready to be written in other types.
#[derive(Debug)]
pub struct Quantizer {
    targets: Vec<Target>,
    writer: GgufWriter,
    threads: usize,
}

/// One tensor to be made.
#[derive(Debug)]
struct Target {
    source: HostTensor,
    dims: Vec<usize>,
    ty: &'static dyn QuantType,
    /// Whether the bytes are taken over as they are.
    copied: bool,
    /// Whether the weights are rounded to ternary first.
    absmean: bool,
    note: Option<String>,
}

/// What a tensor is for, as far as its type depends on it.
enum Role {
    /// Norms, biases, tables of positions: small, and never multiplied by a matrix kernel.
    Vector,
    TokenEmbd,
    Output,
    Linear,
}

/// Tensors of two dimensions that are small and sensitive, or added instead of multiplied.
const KEPT: [&str; 4] = ["position_embd.weight", "token_types.weight", "_norm.weight", "ffn_gate_inp.weight"];

impl Role {
    fn of(info: &TensorInfo) -> Self {
        let name = info.name.as_str();
        match name {
            _ if info.dims.len() < 2 || !name.ends_with(".weight") => Self::Vector,
            _ if KEPT.iter().any(|kept| name.ends_with(kept)) => Self::Vector,
            "token_embd.weight" => Self::TokenEmbd,
            "output.weight" => Self::Output,
            _ => Self::Linear,
        }
    }
}

impl Quantizer {
    /// Decides the type of every tensor: vectors become f32; the embedding, the head and linear weights what
    /// the options say, or f16 where the type cannot hold their rows. Metadata is taken over, with
    /// `general.file_type` and `general.quantization_version` set and what describes a split file left out.
    ///
    /// # Errors
    /// [`QuantizeError::Quantized`] for a tensor that is neither real-valued nor of its wanted type;
    /// [`QuantizeError::Gguf`] for one of unknown type.
    pub fn new(gguf: &Gguf, options: &QuantizeOptions) -> Result<Self, QuantizeError> {
        let mut writer = GgufWriter::new(metadata(gguf.metadata(), options.ty))?;
        let mut targets = Vec::with_capacity(gguf.tensors().len());
        for info in gguf.tensors() {
            let target = Target::new(gguf.host_tensor(info)?, info, options)?;
            let id = type_id(target.ty).ok_or(QuantizeError::Type(target.ty.name()))?;
            writer.tensor(&info.name, &info.dims, id, target.bytes()? as u64)?;
            targets.push(target);
        }
        Ok(Self { targets, writer, threads: options.threads.max(1) })
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    /// Writes the file, tensor after tensor and piece by piece; `progress` gets the bytes written so far and
    /// may say stop. Reports every tensor in the order of the file.
    ///
    /// # Errors
    /// [`QuantizeError::Value`] for weights that are not numbers or beyond the range of their type;
    /// [`QuantizeError::Interrupted`]; [`QuantizeError::Gguf`] where writing fails.
    pub fn write(
        self,
        out: impl Write,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<TensorReport>, QuantizeError> {
        let mut out = Watched::new(out, progress);
        let result = (|| {
            let mut data = self.writer.begin(&mut out)?;
            let mut reports = Vec::with_capacity(self.targets.len());
            for target in self.targets {
                let mut encoder = Encoder::new(&target, self.threads)?;
                let written = data.tensor(&mut encoder);
                // A tensor that ends early because a weight cannot be kept is the weight's fault.
                let error = encoder.finish()?;
                written?;
                reports.push(target.report(error)?);
            }
            data.finish()?;
            Ok(reports)
        })();
        if out.stopped() { Err(QuantizeError::Interrupted) } else { result }
    }
}

impl Target {
    fn new(source: HostTensor, info: &TensorInfo, options: &QuantizeOptions) -> Result<Self, QuantizeError> {
        let beside = if options.ty.ternary().is_some() { &types::F16 } else { options.ty };
        let role = Role::of(info);
        let mut ty = match role {
            Role::Vector => &types::F32,
            Role::TokenEmbd => options.token_embd.unwrap_or(beside),
            Role::Output => options.output.unwrap_or(beside),
            Role::Linear => options.ty,
        };
        let mut note = None;
        if let Err(error) = ty.byte_len(source.rows, source.cols) {
            note = Some(error.to_string());
            ty = &types::F16;
        }
        // Types of one element a block are plain numbers; all others have lost some of theirs.
        let (is_real, is_same) = (source.ty.block_elems() == 1, source.ty.is(ty));
        if !is_real && !is_same {
            let (from, want) = (source.ty.name(), ty.name());
            return Err(QuantizeError::Quantized { name: source.name, from, want });
        }
        let is_asked = options.absmean && matches!(role, Role::Linear);
        let absmean = is_real && (is_asked || ty.ternary() == Some(Ternary::PerTensor));
        Ok(Self { source, dims: info.dims.clone(), ty, copied: is_same && !absmean, absmean, note })
    }

    fn bytes(&self) -> Result<usize, QuantizeError> {
        let of_tensor = |error| GgufError::Quant { name: self.source.name.clone(), error };
        Ok(self.ty.byte_len(self.source.rows, self.source.cols).map_err(of_tensor)?)
    }

    fn report(self, error: f64) -> Result<TensorReport, QuantizeError> {
        let bytes = self.bytes()?;
        Ok(TensorReport {
            from: (self.source.ty.name(), self.source.bytes.len()),
            to: (self.ty.name(), bytes),
            name: self.source.name,
            dims: self.dims,
            note: self.note,
            error,
        })
    }
}

/// The source's metadata as it is true of one file with weights of type `ty`.
fn metadata(source: &Metadata, ty: &dyn QuantType) -> Metadata {
    /// The layout of blocks that all files of today have.
    const QUANTIZATION_VERSION: u32 = 2;
    let mut out = Metadata::default();
    let kept = |key: &str| !key.starts_with("split.") && key != "general.file_type";
    for (key, value) in source.iter().filter(|(key, _)| kept(key)) {
        out.set(key, value.clone());
    }
    if let Some(file_type) = file_type(ty) {
        out.set("general.file_type", file_type);
    }
    out.set("general.quantization_version", QUANTIZATION_VERSION);
    out
}
