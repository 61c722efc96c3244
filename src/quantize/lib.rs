//! From a model of real-valued weights to one of another type: a GGUF file in, a GGUF file out.
//!
//! It must never know a program or a backend. Start at [`Quantizer`]: it decides what becomes of every
//! tensor before a byte is written, by the tables of `mix.rs` and the names in `choice.rs`. `encode.rs` then
//! turns one tensor after the other; `ternary.rs` is BitNet's rule, and `imatrix.rs` says which columns
//! matter. Where the tensors come from is a [`TensorSource`]: a GGUF file, or a checkpoint that is converted.
#![forbid(unsafe_code)]

mod choice;
mod encode;
mod imatrix;
mod mix;
mod source;
mod ternary;

use std::io::Write;
use std::ops::ControlFlow;

use ggml_types::{QuantError, QuantType, Ternary, types};
use regex::{Regex, RegexBuilder};

use choice::Role;
use encode::Encoder;
use sterna_gguf::{
    GgufError, GgufWriter, Metadata, TensorInfo, n_zero_matrices, type_id, type_named, watched,
};

pub use choice::{mix_of, mixes_of};
pub use imatrix::{Imatrix, ImatrixError};
pub use mix::{MIXES, Mix};
pub use source::TensorSource;

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The input is broken or unknown, or the output cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Weights that have lost precision already; ternary ones may become another ternary type.
    #[error(
        "tensor {} is {from} already, and requantising it to {want} loses quality: quantise the original in \
         f32, f16 or bf16, or allow it (QuantizeOptions::requantize)",
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
    #[error("tensor {}, row {row}, column {col}: {value} cannot be stored as {ty}", name.escape_debug())]
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
    #[error("GGUF files cannot store type {0}")]
    Type(&'static str),
    /// A pattern that is none.
    #[error("{0}")]
    Pattern(Box<regex::Error>),
    /// A pattern without a tensor.
    #[error("no tensor name matches `{}`", pattern.escape_debug())]
    Unmatched {
        /// The pattern.
        pattern: String,
    },
    /// An architecture that llama.cpp has rules of its own for.
    #[error(
        "{mix} is not supported for architecture {}; QuantizeOptions::pure gives one type to all matrices",
        found.escape_debug()
    )]
    Architecture {
        /// `general.architecture`.
        found: String,
        /// The mix.
        mix: &'static str,
    },
    /// An expert that belongs to no layer.
    #[error("tensor {}: want a name of blk. and a number below {n_layers}", name.escape_debug())]
    Layer {
        /// GGUF name.
        name: String,
        /// Layers that metadata speaks of.
        n_layers: usize,
    },
    /// An importance matrix of another model.
    #[error("the importance matrix has {got} columns for tensor {}, which has {want}", name.escape_debug())]
    Importance {
        /// GGUF name.
        name: String,
        /// Columns of all its matrices.
        want: usize,
        /// Columns that are listed.
        got: usize,
    },
    /// An importance matrix of another model altogether.
    #[error("none of the {n_entries} entries of the importance matrix names a tensor of this model")]
    Foreign {
        /// Entries there are.
        n_entries: usize,
    },
    /// A type that is useless without an importance matrix.
    #[error(
        "{mix} needs an importance matrix with an entry for tensor {}: give one (QuantizeOptions::imatrix), \
         or use another mix",
        name.escape_debug()
    )]
    NoImportance {
        /// GGUF name.
        name: String,
        /// The mix.
        mix: &'static str,
    },
    /// A tensor that its source cannot make.
    #[error("tensor {}: {detail}", name.escape_debug())]
    Source {
        /// Its name where it comes from.
        name: String,
        /// Expected and found.
        detail: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Which types the tensors of a file get.
#[derive(Clone, Copy, Debug)]
pub enum Recipe {
    /// One type for all linear weights: ternary ones as in the files of bitnet.cpp, with an embedding and a
    /// head of f16.
    Type(&'static dyn QuantType),
    /// One of llama.cpp's rules.
    Mix(&'static Mix),
}

/// A type for the tensors whose names a pattern is found in.
#[derive(Clone, Debug)]
pub struct Override {
    /// Pattern of the names.
    pub pattern: Regex,
    /// New type of such tensors.
    pub ty: &'static dyn QuantType,
}

impl Recipe {
    /// The mix of this name, or else the type, in capitals or not.
    pub fn named(name: &str) -> Option<Self> {
        let mix = || Mix::by_name(name).map(Self::Mix);
        mix().or_else(|| type_named(name).ok().map(Self::Type))
    }

    /// Every name that [`named`](Self::named) knows: mixes as llama-quantize spells them, and the types that
    /// are no mix.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&'static str> = MIXES.iter().flat_map(|mix| [mix.name, mix.alias]).collect();
        names.dedup();
        let is_made = |ty: &&&dyn QuantType| ty.encodes() && type_id(**ty).is_some();
        let types = types::REGISTRY.iter().filter(is_made).map(|ty| ty.name());
        names.extend(types.filter(|name| Mix::by_name(name).is_none()));
        names
    }
}

impl Override {
    /// `pattern` is a regular expression that is found anywhere in a name, in capitals or not.
    ///
    /// # Errors
    /// [`QuantizeError::Pattern`]; [`QuantizeError::Gguf`] for an unknown type, with the known ones.
    pub fn new(pattern: &str, ty: &str) -> Result<Self, QuantizeError> {
        let pattern = RegexBuilder::new(pattern).case_insensitive(true).build();
        let pattern = pattern.map_err(|error| QuantizeError::Pattern(Box::new(error)))?;
        Ok(Self { pattern, ty: type_named(ty)? })
    }
}

/// Options of quantisation.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// The types where nothing else is said.
    pub recipe: Recipe,
    /// The recipe's own type for every matrix, the embedding and the head included.
    pub pure: bool,
    /// Types of single tensors; the first one that matches counts.
    pub overrides: Vec<Override>,
    /// Type of `token_embd`.
    pub token_embd: Option<&'static dyn QuantType>,
    /// Type of `output`; by a mix also of `token_embd` where that is the head.
    pub output: Option<&'static dyn QuantType>,
    /// Leave `output` as it is.
    pub leave_output: bool,
    /// Round linear weights to ternary by BitNet's rule before they are encoded, whatever their type. A type
    /// of one scale a tensor or row (I2_S, IQ2_BN) has no other way.
    pub absmean: bool,
    /// True if weights that have lost precision already may lose more.
    pub requantize: bool,
    /// Which columns matter, for the types that search.
    pub imatrix: Option<Imatrix>,
    /// Threads that encode; the result does not depend on it. At least 1.
    pub threads: usize,
}

impl QuantizeOptions {
    /// With nothing but the recipe, on one thread.
    pub fn new(recipe: Recipe) -> Self {
        Self {
            recipe,
            pure: false,
            overrides: Vec::new(),
            token_embd: None,
            output: None,
            leave_output: false,
            absmean: false,
            requantize: false,
            imatrix: None,
            threads: 1,
        }
    }
}

/// Report on one tensor.
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
    /// Weights that are not what they were, by however little.
    pub n_changed: u64,
    /// Matrices of the tensor that are nothing but zeros, which no trained model has. Known once it is
    /// written.
    pub n_zero: usize,
    /// Notes for the user, each as the end of a sentence about the tensor.
    pub notes: Vec<String>,
}

/// A model ready to be written in other types.
#[derive(Debug)]
pub struct Quantizer<'a> {
    source: &'a dyn TensorSource,
    targets: Vec<Target>,
    writer: GgufWriter,
    threads: usize,
}

/// Result of a tensor that was written.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    error: f64,
    n_changed: u64,
    n_zero: usize,
}

/// One tensor to be made.
#[derive(Debug)]
struct Target {
    name: String,
    dims: Vec<usize>,
    rows: usize,
    cols: usize,
    /// Type that it has.
    from: &'static dyn QuantType,
    ty: &'static dyn QuantType,
    /// True if the bytes are taken over as they are.
    copied: bool,
    /// True if the weights are rounded to ternary first.
    absmean: bool,
    /// True if they must be what they were.
    exact: bool,
    /// Importance of each column, `[matrices, cols]`.
    importance: Option<Vec<f32>>,
    notes: Vec<String>,
}

impl<'a> Quantizer<'a> {
    /// Decides the type of every tensor. By a mix that is llama.cpp's choice, and what is never quantised
    /// stays as it is. By a type, vectors become f32; the embedding, the head and linear weights what the
    /// options say, or f16 where the type cannot hold their rows. Metadata is taken over, with
    /// `general.file_type` and `general.quantization_version` set and what describes a split file left out.
    ///
    /// # Errors
    /// [`QuantizeError::Quantized`] for a tensor that is neither real-valued nor of its wanted type;
    /// [`QuantizeError::Gguf`] for one of unknown type and for metadata that a mix asks for;
    /// [`QuantizeError::Unmatched`], [`QuantizeError::Architecture`], [`QuantizeError::Layer`]; of an
    /// importance matrix, [`QuantizeError::Importance`], [`QuantizeError::NoImportance`] and
    /// [`QuantizeError::Foreign`].
    pub fn new(source: &'a dyn TensorSource, options: QuantizeOptions) -> Result<Self, QuantizeError> {
        let wanted = wanted(source, &options)?;
        let mut writer = GgufWriter::new(metadata(source.metadata(), &options))?;
        let mut targets = Vec::with_capacity(wanted.len());
        for (at, (info, want)) in source.tensors().iter().zip(wanted).enumerate() {
            let from = match info.ty {
                Some(ty) => ty,
                // The source says why it has none.
                None => source.tensor(at)?.ty,
            };
            let target = Target::new(from, info, want, &options)?;
            let id = type_id(target.ty).ok_or(QuantizeError::Type(target.ty.name()))?;
            writer.tensor(&info.name, &info.dims, id, target.bytes()? as u64)?;
            targets.push(target);
        }
        Ok(Self { source, targets, writer, threads: options.threads.max(1) })
    }

    /// Report on every tensor before it is written, in the order of the file. No error is known yet.
    ///
    /// # Errors
    /// [`QuantizeError::Gguf`] where a tensor is too large to be addressed.
    pub fn plan(&self) -> Result<Vec<TensorReport>, QuantizeError> {
        self.targets.iter().map(|target| target.report(Outcome::default())).collect()
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
    /// [`QuantizeError::Interrupted`]; [`QuantizeError::Gguf`] where writing fails; whatever the source says.
    pub fn write(
        self,
        out: impl Write,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<TensorReport>, QuantizeError> {
        let reports = watched(out, progress, |out| {
            let mut data = self.writer.begin(out)?;
            let mut reports = Vec::with_capacity(self.targets.len());
            for (at, target) in self.targets.into_iter().enumerate() {
                let tensor = self.source.tensor(at)?;
                let n_zero = n_zero_matrices(&target.dims, &tensor);
                let mut encoder = Encoder::new(&target, tensor, self.threads)?;
                let written = data.tensor(&mut encoder);
                // A tensor that ends early because a weight cannot be kept is the weight's fault.
                let outcome = encoder.finish()?;
                written?;
                reports.push(target.report(Outcome { n_zero, ..outcome })?);
            }
            data.finish()?;
            Ok(reports)
        });
        reports.and_then(|reports| reports.ok_or(QuantizeError::Interrupted))
    }
}

/// The type that every tensor is to have, as far as rows can be had in it; `None` for what stays as it is.
fn wanted(
    source: &dyn TensorSource,
    options: &QuantizeOptions,
) -> Result<Vec<Option<&'static dyn QuantType>>, QuantizeError> {
    let infos = source.tensors();
    for rule in &options.overrides {
        if !infos.iter().any(|info| rule.pattern.is_match(&info.name)) {
            return Err(QuantizeError::Unmatched { pattern: rule.pattern.to_string() });
        }
    }
    if let Some(imatrix) = &options.imatrix
        && !infos.iter().any(|info| imatrix.of(&info.name).is_some())
    {
        return Err(QuantizeError::Foreign { n_entries: imatrix.len() });
    }
    let ty = match options.recipe {
        Recipe::Mix(mix) => {
            let asked = choice::Requested {
                token_embd: options.token_embd,
                output: options.output,
                leave_output: options.leave_output,
                pure: options.pure,
                overrides: &options.overrides,
                has_imatrix: options.imatrix.is_some(),
            };
            return choice::types(source, mix, asked);
        }
        Recipe::Type(ty) => ty,
    };
    let beside = if ty.ternary().is_some() && !options.pure { &types::F16 } else { ty };
    let of = |info: &TensorInfo| {
        let said = options.overrides.iter().find(|rule| rule.pattern.is_match(&info.name));
        let said = said.map(|rule| rule.ty);
        match Role::of(info) {
            Role::Kept => Some(&types::F32 as &'static dyn QuantType),
            Role::Output if options.leave_output => None,
            Role::TokenEmbd => options.token_embd.or(said).or(Some(beside)),
            Role::Output => options.output.or(said).or(Some(beside)),
            _ => said.or(Some(ty)),
        }
    };
    Ok(infos.iter().map(of).collect())
}

impl Target {
    fn new(
        from: &'static dyn QuantType,
        info: &TensorInfo,
        want: Option<&'static dyn QuantType>,
        options: &QuantizeOptions,
    ) -> Result<Self, QuantizeError> {
        let role = Role::of(info);
        let (rows, cols) = (info.rows(), info.cols());
        let mut ty = want.unwrap_or(from);
        let mut notes = Vec::new();
        if let Err(error) = ty.byte_len(rows, cols) {
            ty = match options.recipe {
                Recipe::Mix(_) => mix::fallback(ty, cols),
                Recipe::Type(_) => &types::F16,
            };
            notes.push(format!("is {}, because {error}", ty.name()));
        }
        // Types of one element a block are plain numbers; all others have lost some of theirs, and are taken
        // for plain numbers only if asked.
        let (is_real, is_same) = (from.block_elems() == 1 || options.requantize, from.is(ty));
        // Ternary weights are the same in any ternary type whose scales they share, or else refused.
        let exact = !is_same && from.ternary().is_some() && ty.ternary().is_some();
        if !is_real && !is_same && !exact {
            let (name, from, want) = (info.name.clone(), from.name(), ty.name());
            return Err(QuantizeError::Quantized { name, from, want });
        }
        let is_linear = !matches!(role, Role::Kept | Role::TokenEmbd | Role::Output);
        let is_asked = options.absmean && is_linear;
        let is_shared = matches!(ty.ternary(), Some(Ternary::PerTensor | Ternary::PerRow));
        let absmean = match exact {
            true => ty.ternary() == Some(Ternary::PerTensor),
            false => is_real && (is_asked || is_shared),
        };
        let copied = is_same && !absmean;
        if !copied && !ty.encodes() {
            let error = QuantError::ReadOnly { ty: ty.name() };
            return Err(GgufError::Quant { name: info.name.clone(), error }.into());
        }
        let mut importance = None;
        if let Some(imatrix) = &options.imatrix
            && !copied
            && ty.weighs()
        {
            let matrices: usize = info.dims.iter().rev().skip(2).product();
            importance = imatrix.of(&info.name).map(<[f32]>::to_vec);
            match &importance {
                Some(found) if found.len() != matrices * cols => {
                    let (name, want, got) = (info.name.clone(), matrices * cols, found.len());
                    return Err(QuantizeError::Importance { name, want, got });
                }
                None if is_linear => notes.push("has no entry in the importance matrix".to_owned()),
                _ => {}
            }
        }
        if let Recipe::Mix(mix) = options.recipe
            && mix.needs_imatrix
            && is_linear
            && !copied
            && ty.is(mix.body)
            && importance.is_none()
        {
            return Err(QuantizeError::NoImportance { name: info.name.clone(), mix: mix.name });
        }
        let (name, dims) = (info.name.clone(), info.dims.clone());
        Ok(Self { name, dims, rows, cols, from, ty, copied, absmean, exact, importance, notes })
    }

    fn bytes(&self) -> Result<usize, QuantizeError> {
        let of_tensor = |error| GgufError::Quant { name: self.name.clone(), error };
        Ok(self.ty.byte_len(self.rows, self.cols).map_err(of_tensor)?)
    }

    fn report(&self, outcome: Outcome) -> Result<TensorReport, QuantizeError> {
        let of_tensor = |error| GgufError::Quant { name: self.name.clone(), error };
        Ok(TensorReport {
            from: (self.from.name(), self.from.byte_len(self.rows, self.cols).map_err(of_tensor)?),
            to: (self.ty.name(), self.bytes()?),
            name: self.name.clone(),
            dims: self.dims.clone(),
            notes: self.notes.clone(),
            error: outcome.error,
            n_changed: outcome.n_changed,
            n_zero: outcome.n_zero,
        })
    }
}

/// The source's metadata as it is true of one file made with these options.
fn metadata(source: &Metadata, options: &QuantizeOptions) -> Metadata {
    /// The layout of blocks that all files of today have.
    const QUANTIZATION_VERSION: u32 = 2;
    let mut out = Metadata::default();
    let kept = |key: &str| !key.starts_with("split.") && key != "general.file_type";
    for (key, value) in source.iter().filter(|(key, _)| kept(key)) {
        out.set(key, value.clone());
    }
    let number = match options.recipe {
        Recipe::Mix(mix) => Some(mix.file_type),
        Recipe::Type(ty) => ty.file_type(),
    };
    if let Some(number) = number {
        out.set("general.file_type", number);
    }
    out.set("general.quantization_version", QUANTIZATION_VERSION);
    if let Some(imatrix) = &options.imatrix {
        imatrix.describe(&mut out);
    }
    out
}
