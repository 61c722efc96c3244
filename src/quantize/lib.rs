//! Quantises models: a GGUF file of real-valued weights in, a GGUF file of another type out.
//!
//! This crate must never know a program or a backend. Start at [`Quantizer`]: it decides the type of every
//! tensor before a byte is written, by the tables of `mix.rs` and the names in `choice.rs`. `encode.rs` then
//! encodes one tensor after the other; `ternary.rs` has BitNet's rule, and `imatrix.rs` the importance of
//! columns. Tensors come from a [`TensorSource`]: a GGUF file, or a checkpoint that is converted.
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
use source::integer_bytes;

/// The end of [`QuantizeError::Quantized`].
const REQUANTIZE: [&str; 3] = [", or allow it (", "QuantizeOptions::requantize", ")"];

/// The end of [`QuantizeError::Architecture`].
const PURE: [&str; 3] = ["; ", "QuantizeOptions::pure", " gives one type to all matrices"];

/// The end of [`QuantizeError::NoImportance`].
const IMATRIX: [&str; 3] = [": give one (", "QuantizeOptions::imatrix", "), or use another mix"];

/// Errors of quantisation.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The input is corrupt or unknown, or the output cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Weights that have already lost precision; ternary ones may be converted to another ternary type.
    #[error(
        "tensor {} is already {from}, and requantising it to {want} loses quality: quantise the original in \
         f32, f16 or bf16{}",
        name.escape_debug(),
        REQUANTIZE.concat()
    )]
    Quantized {
        /// GGUF name.
        name: String,
        /// Its type.
        from: &'static str,
        /// The requested type.
        want: &'static str,
    },
    /// A weight that the type cannot store.
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
        /// The requested type.
        ty: &'static str,
    },
    /// A type without a GGUF id.
    #[error("GGUF files cannot store type {0}")]
    Type(&'static str),
    /// An invalid pattern.
    #[error("{0}")]
    Pattern(Box<regex::Error>),
    /// A pattern that matches no tensor.
    #[error("no tensor name matches `{}`", pattern.escape_debug())]
    Unmatched {
        /// The pattern.
        pattern: String,
    },
    /// An architecture for which llama.cpp has separate rules.
    #[error("{mix} is not supported for architecture {}{}", found.escape_debug(), PURE.concat())]
    Architecture {
        /// `general.architecture`.
        found: String,
        /// The mix.
        mix: &'static str,
    },
    /// An expert that does not belong to a layer.
    #[error("tensor {}: want a name with blk. and a number below {n_layers}", name.escape_debug())]
    Layer {
        /// GGUF name.
        name: String,
        /// Number of layers in the metadata.
        n_layers: usize,
    },
    /// An importance matrix with another number of columns.
    #[error("the importance matrix has {got} columns for tensor {}, which has {want}", name.escape_debug())]
    Importance {
        /// GGUF name.
        name: String,
        /// Columns of all its matrices.
        want: usize,
        /// Columns of the entry.
        got: usize,
    },
    /// An importance matrix without an entry for this model.
    #[error("none of the {n_entries} entries of the importance matrix names a tensor of this model")]
    Foreign {
        /// Number of entries.
        n_entries: usize,
    },
    /// A type that is useless without an importance matrix.
    #[error(
        "{mix} needs an importance matrix with an entry for tensor {}{}",
        name.escape_debug(),
        IMATRIX.concat()
    )]
    NoImportance {
        /// GGUF name.
        name: String,
        /// The mix.
        mix: &'static str,
    },
    /// A tensor that its source cannot provide.
    #[error("tensor {}: {detail}", name.escape_debug())]
    Source {
        /// Name in the source.
        name: String,
        /// Expected and found.
        detail: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl QuantizeError {
    /// The end of the message that names an option which avoids the error: the text before the option, the
    /// option by its path, and the text after it.
    pub fn way_out(&self) -> Option<[&'static str; 3]> {
        match self {
            Self::Gguf(err) => err.way_out(),
            Self::Quantized { .. } => Some(REQUANTIZE),
            Self::Architecture { .. } => Some(PURE),
            Self::NoImportance { .. } => Some(IMATRIX),
            _ => None,
        }
    }
}

/// Types of the tensors of a file.
#[derive(Clone, Copy, Debug)]
pub enum Recipe {
    /// One type for all linear weights; with a ternary type, embedding and head are f16, as in files of
    /// bitnet.cpp.
    Type(&'static dyn QuantType),
    /// One of llama.cpp's rules.
    Mix(&'static Mix),
}

/// A type for all tensors whose names match a pattern.
#[derive(Clone, Debug)]
pub struct Override {
    /// Pattern of the names.
    pub pattern: Regex,
    /// New type of such tensors.
    pub ty: &'static dyn QuantType,
}

impl Recipe {
    /// The mix with this name, or else the type, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        let mix = || Mix::by_name(name).map(Self::Mix);
        mix().or_else(|| type_named(name).ok().map(Self::Type))
    }

    /// All names that [`named`](Self::named) accepts: mixes as llama-quantize spells them, and the types that
    /// are not mixes.
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
    /// Creates a rule; `pattern` is a regular expression that matches anywhere in a name, ignoring case.
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
    /// Types of all tensors without another option.
    pub recipe: Recipe,
    /// Use the recipe's own type for every matrix, including the embedding and the head.
    pub pure: bool,
    /// Types of single tensors; the first match is used.
    pub overrides: Vec<Override>,
    /// Type of `token_embd`.
    pub token_embd: Option<&'static dyn QuantType>,
    /// Type of `output`; with a mix also of `token_embd` if that is the head.
    pub output: Option<&'static dyn QuantType>,
    /// Copy `output` unchanged.
    pub leave_output: bool,
    /// Round linear weights to ternary by BitNet's rule before they are encoded, whatever their type. Types
    /// with one scale per tensor or row (I2_S, IQ2_BN) are always encoded this way.
    pub absmean: bool,
    /// Allow requantising weights that have already lost precision.
    pub requantize: bool,
    /// Importance of columns, for types whose encoders use it.
    pub imatrix: Option<Imatrix>,
    /// Value of `general.file_type`, in place of the recipe's.
    pub file_type: Option<u32>,
    /// Number of encoder threads, at least 1; the result does not depend on it.
    pub threads: usize,
}

impl QuantizeOptions {
    /// Default options for a recipe, on one thread.
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
            file_type: None,
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
    /// Type and bytes before.
    pub from: (&'static str, usize),
    /// Type and bytes after.
    pub to: (&'static str, usize),
    /// Root of the sum of squared differences over the sum of squares; 0 for a copied tensor.
    pub error: f64,
    /// Number of weights that changed, however little.
    pub n_changed: u64,
    /// Matrices of the tensor that contain only zeros, as in no trained model. Known once it is written.
    pub n_zero: usize,
    /// Notes for the user, each the end of a sentence about the tensor.
    pub notes: Vec<String>,
}

/// A model ready to be written in other types.
#[derive(Debug)]
pub struct Quantizer<'a> {
    source: &'a dyn TensorSource,
    /// `None` for a tensor of integers, which is copied.
    targets: Vec<Option<Target>>,
    writer: GgufWriter,
    threads: usize,
}

/// Result for a written tensor.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    error: f64,
    n_changed: u64,
    n_zero: usize,
}

/// One tensor of the output file.
#[derive(Debug)]
struct Target {
    name: String,
    dims: Vec<usize>,
    rows: usize,
    cols: usize,
    /// Type in the source.
    from: &'static dyn QuantType,
    ty: &'static dyn QuantType,
    /// True if the bytes are copied unchanged.
    copied: bool,
    /// True if the weights are rounded to ternary first.
    absmean: bool,
    /// True if the weights must not change.
    exact: bool,
    /// Importance of each column, `[matrices, cols]`.
    importance: Option<Vec<f32>>,
    notes: Vec<String>,
}

impl<'a> Quantizer<'a> {
    /// Decides the type of every tensor. A mix follows llama.cpp's choice, and tensors that are never
    /// quantised are copied. With a type, vectors become f32; the embedding, the head and linear weights get
    /// the type from the options, or f16 if that type cannot store their rows. Metadata is copied, with
    /// `general.file_type` and `general.quantization_version` set and the keys of a split file left out.
    ///
    /// # Errors
    /// [`QuantizeError::Quantized`] for a tensor that is neither real-valued nor of its requested type;
    /// [`QuantizeError::Gguf`] for a tensor of unknown type and for missing metadata that a mix needs;
    /// [`QuantizeError::Unmatched`], [`QuantizeError::Architecture`], [`QuantizeError::Layer`]; for an
    /// importance matrix, [`QuantizeError::Importance`], [`QuantizeError::NoImportance`] and
    /// [`QuantizeError::Foreign`].
    pub fn new(source: &'a dyn TensorSource, options: QuantizeOptions) -> Result<Self, QuantizeError> {
        let wanted = wanted(source, &options)?;
        let mut writer = GgufWriter::new(metadata(source.metadata(), &options))?;
        let mut targets = Vec::with_capacity(wanted.len());
        for (at, (info, want)) in source.tensors().iter().zip(wanted).enumerate() {
            if let Some(n_bytes) = integer_bytes(info) {
                writer.tensor(&info.name, &info.dims, info.type_id, n_bytes)?;
                targets.push(None);
                continue;
            }
            let from = match info.ty {
                Some(ty) => ty,
                // The source returns the reason.
                None => source.tensor(at)?.ty,
            };
            let target = Target::new(from, info, want, &options)?;
            let id = type_id(target.ty).ok_or(QuantizeError::Type(target.ty.name()))?;
            writer.tensor(&info.name, &info.dims, id, target.bytes()? as u64)?;
            targets.push(Some(target));
        }
        Ok(Self { source, targets, writer, threads: options.threads.max(1) })
    }

    /// Reports on every tensor before it is written, in file order. Errors are not known yet.
    ///
    /// # Errors
    /// [`QuantizeError::Gguf`] if a tensor is too large to be addressed.
    pub fn plan(&self) -> Result<Vec<TensorReport>, QuantizeError> {
        self.targets.iter().flatten().map(|target| target.report(Outcome::default())).collect()
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    /// Writes the file, one tensor after the other and in pieces; `progress` gets the bytes written so far
    /// and may request a stop. Reports on every tensor in file order.
    ///
    /// # Errors
    /// [`QuantizeError::Value`] for weights that are NaN, infinite, or outside the range of their type;
    /// [`QuantizeError::Interrupted`]; [`QuantizeError::Gguf`] if writing fails; any error of the source.
    pub fn write(
        self,
        out: impl Write,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<TensorReport>, QuantizeError> {
        let reports = watched(out, progress, |out| {
            let mut data = self.writer.begin(out)?;
            let mut reports = Vec::with_capacity(self.targets.len());
            for (at, target) in self.targets.into_iter().enumerate() {
                let Some(target) = target else {
                    data.tensor([self.source.integers(at)?])?;
                    continue;
                };
                let tensor = self.source.tensor(at)?;
                let n_zero = n_zero_matrices(&target.dims, &tensor);
                let mut encoder = Encoder::new(&target, tensor, self.threads)?;
                let written = data.tensor(&mut encoder);
                // If a weight cannot be stored, the tensor ends early: report the weight, not the writer's
                // error.
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

/// Returns the requested type of every tensor, before fallbacks; `None` for tensors that are copied.
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
        && !infos.iter().any(|info| imatrix.importance(&info.name).is_some())
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
    let embd_type = if ty.ternary().is_some() && !options.pure { &types::F16 } else { ty };
    let of = |info: &TensorInfo| {
        let said = options.overrides.iter().find(|rule| rule.pattern.is_match(&info.name));
        let said = said.map(|rule| rule.ty);
        match Role::of(info) {
            Role::Kept => Some(&types::F32 as &'static dyn QuantType),
            Role::Output if options.leave_output => None,
            Role::TokenEmbd => options.token_embd.or(said).or(Some(embd_type)),
            Role::Output => options.output.or(said).or(Some(embd_type)),
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
        // Types with one element per block are plain numbers; all others have lost precision, and are treated
        // as plain numbers only on request.
        let (is_real, is_same) = (from.block_elems() == 1 || options.requantize, from.is(ty));
        // Ternary weights are unchanged in any ternary type with the same scales; otherwise they are
        // rejected.
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
            importance = imatrix.importance(&info.name).map(<[f32]>::to_vec);
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

/// The source's metadata, adapted to one file made with these options.
fn metadata(source: &Metadata, options: &QuantizeOptions) -> Metadata {
    /// Version of the block layouts, the same in all current files.
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
    if let Some(number) = options.file_type.or(number) {
        out.set("general.file_type", number);
    }
    out.set("general.quantization_version", QUANTIZATION_VERSION);
    if let Some(imatrix) = &options.imatrix {
        imatrix.describe(&mut out);
    }
    out
}
