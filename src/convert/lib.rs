//! Converts a Hugging Face checkpoint, a folder of safetensors, to a GGUF file.
//!
//! This crate must never know a program, a backend or a network: its input is a folder, for example the
//! snapshot of a downloaded repository. Start at [`Converter`]: it plans every tensor and every key before a
//! byte is written; the [`Quantizer`] then requests one tensor after the other and writes it in its type.
//! `arch.rs` has one table per architecture, `tensors.rs` the conversion of tensors, `hybrid.rs` the layers
//! of hybrids, `ternary/` the meaning of packed weights.
#![forbid(unsafe_code)]

mod altup;
mod arch;
mod card;
mod checkpoint;
mod config;
mod drafts;
mod gates;
mod hybrid;
mod latent;
mod layered;
mod metadata;
mod metaspace;
mod names;
mod order;
pub mod peft;
mod pooling;
mod pre;
mod recurrent;
mod sentencepiece;
mod shape;
mod tensors;
pub mod ternary;
mod tokenizer;
mod tower;
mod two_files;
mod wordpiece;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, Ternary, types};
use regex::Regex;
use serde_json::Value as Json;

use arch::Architecture;
use checkpoint::Checkpoint;
use config::Config;
use drafts::Drafts;
use shape::Shape;
use sterna_gguf::{Array, Metadata, TensorInfo, type_named};
use sterna_quantize::{Override, QuantizeError, QuantizeOptions, Quantizer, Recipe, TensorSource};
use sterna_tokenizer::PreTokenizer;
use tensors::{NamedTensors, OutputTensor, Reading, Values};
use ternary::{Matrix, ScaleMeaning, ScaleSpan};

/// Errors of a conversion.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file or folder that is missing, corrupt, or has invalid content.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Expected and found.
        detail: String,
    },
    /// A tensor that is missing, unknown, or invalid.
    #[error("tensor {}: {detail}", name.escape_debug())]
    Tensor {
        /// Name in the checkpoint.
        name: String,
        /// Expected and found.
        detail: String,
    },
    /// An unsupported kind of checkpoint, with a hint.
    #[error("{0}")]
    Unsupported(String),
    /// An error of the quantiser.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// An error that an option avoids.
    #[error("{error}{}", way_out.concat())]
    Avoidable {
        /// The error.
        error: Box<ConvertError>,
        /// The text before the option, the option by its path, and the text after it.
        way_out: [&'static str; 3],
    },
}

/// The option for the pre-tokenizer, in ways out.
const TOKENIZER_PRE: &str = "ConvertOptions::tokenizer_pre";

impl ConvertError {
    fn file(path: &Path, detail: impl Display) -> Self {
        Self::File { path: path.to_owned(), detail: detail.to_string() }
    }

    fn tensor(name: &str, detail: impl Display) -> Self {
        Self::Tensor { name: name.to_owned(), detail: detail.to_string() }
    }

    fn avoided_by(self, way_out: [&'static str; 3]) -> Self {
        Self::Avoidable { error: Box::new(self), way_out }
    }

    /// The end of the message that names an option which avoids the error: the text before the option, the
    /// option by its path, and the text after it.
    pub fn way_out(&self) -> Option<[&'static str; 3]> {
        match self {
            Self::Quantize(err) => err.way_out(),
            Self::Avoidable { way_out, .. } => Some(*way_out),
            _ => None,
        }
    }
}

/// Types of the tensors in the output file.
#[derive(Clone, Copy, Debug, Default)]
pub enum Outtype {
    /// Ternary weights are packed by the rule of [`ternary::packing`]; other checkpoints keep their type.
    #[default]
    Auto,
    /// Same as in `quantize`.
    Recipe(Recipe),
}

impl Outtype {
    /// Parses `auto`, a type or a mix, ignoring case. Float types, ternary types and `q8_0` are one type for
    /// all matrices, as in llama.cpp's converter; for any other name a mix takes precedence.
    pub fn named(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("auto") {
            return Some(Self::Auto);
        }
        let is_direct = |ty: &&'static dyn QuantType| {
            ty.block_elems() == 1 || ternary::is_for_ternary(*ty) || ty.is(&types::Q8_0)
        };
        let direct = type_named(name).ok().filter(is_direct).map(Recipe::Type);
        direct.or_else(|| Recipe::named(name)).map(Self::Recipe)
    }
}

/// Rounding of master weights to ternary weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// BitNet's rule, see [`ternary::absmean`].
    Absmean,
}

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Types of the tensors.
    pub outtype: Outtype,
    /// Meaning of the scales of packed codes, overriding the configuration.
    pub scale: Option<ScaleMeaning>,
    /// Rounding of linear weights that are masters of a ternary model; `None` if they are not.
    pub ternary: Option<Rounding>,
    /// Name of the pre-tokenizer, overriding tokenizer.json.
    pub tokenizer_pre: Option<PreTokenizer>,
    /// Leave out the parts of a multimodal model that are not text.
    pub text_only: bool,
    /// Write the mmproj file of a multimodal model, its vision tower and projector, instead of the text
    /// model. The options for ternary weights and for text do not matter then.
    pub mmproj: bool,
    /// Number of encoder threads; the result does not depend on it.
    pub threads: usize,
}

/// A planned conversion, with the content of the file decided before a byte is written.
#[derive(Debug)]
pub struct Converter {
    model: Model,
    options: QuantizeOptions,
    notes: Vec<String>,
}

/// The tensors of the output file, computed on request.
#[derive(Debug)]
struct Model {
    checkpoint: Checkpoint,
    metadata: Metadata,
    made: Vec<OutputTensor>,
    /// Bytes of the tensors of integers, which come after those.
    integers: Vec<Bytes>,
    infos: Vec<TensorInfo>,
}

impl Converter {
    /// Reads the configuration and headers of a checkpoint's folder, checks every tensor, and plans its
    /// conversion.
    ///
    /// # Errors
    /// [`ConvertError`], with what was expected, what was found, where, and a hint.
    pub fn open(folder: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        if !folder.is_dir() {
            let detail = "want a folder with config.json and safetensors";
            return Err(ConvertError::file(folder, detail));
        }
        let folder = &snapshot(folder).unwrap_or_else(|| folder.to_owned());
        if folder.join("adapter_config.json").is_file() && !folder.join("config.json").is_file() {
            let detail = "an adapter (LoRA), not a model: it is converted with the GGUF file of its model";
            return Err(ConvertError::file(folder, detail));
        }
        let mut config = Config::read(folder)?;
        if options.mmproj {
            return Self::open_tower(folder, &config, options);
        }
        let arch = arch::by_class(config.class()?)?;
        config.set_defaults(arch.defaults);
        let checkpoint = Checkpoint::open(folder)?;
        let mut named = NamedTensors::new(&checkpoint, arch, options)?;
        let embedding = arch.globals[0].from[0];
        let rows = match named.get(embedding).map(|tensor| &tensor.shape[..]) {
            Some([rows, _]) if *rows > 0 => *rows,
            Some(other) => {
                return Err(ConvertError::tensor(
                    embedding,
                    format!("want rows and columns, found {other:?}"),
                ));
            }
            // The model lends it.
            None if arch.drafts.is_some() => config.require(&["vocab_size"])?,
            None => return Err(ConvertError::tensor(embedding, "is missing")),
        };
        let drafts =
            arch.drafts.map(|kind| Drafts::read(kind, &config, |name| named.get(name), rows)).transpose()?;
        let mut shape = Shape { drafts, ..Shape::read(&config, arch, rows)? };
        shape.has_mtp = arch.mtp_tensor(shape.n_layers).is_some_and(|name| named.get(&name).is_some());
        let tokens = drafts.and_then(|drafts| Some((drafts, named.take(drafts::TOKENS)?)));
        let integers =
            tokens.map(|(drafts, found)| drafts::tokens_of_rows(found, &checkpoint, drafts.n_head, rows));
        let integers = integers.transpose()?;
        let mut notes: Vec<String> = checkpoint.note().into_iter().collect();
        // Models with such norms are rounded by BitNet's rule, although their configurations do not say so.
        let has_input_norms = named.get(&format!("{}0.mlp.up_proj.norm.weight", arch.layers)).is_some();
        let reading = reading(&config, arch, options, has_input_norms)?;
        let tied = tied(&config, arch, &named, &mut notes)?;
        let xielu = if arch.xielu { tensors::xielu(&mut named, arch, shape.n_layers)? } else { Vec::new() };
        let rope = (arch.rope != arch::Rope::None).then(|| config.rope()).transpose()?;
        let mut made = tensors::plan(&mut named, &config, arch, &shape, &reading, rope.as_ref(), tied)?;
        notes.append(&mut named.notes);

        let mut metadata = Metadata::default();
        let modules = if arch.dense { pooling::dense(folder)? } else { Vec::new() };
        let dense: Result<Vec<_>, _> = modules.iter().map(tensors::dense).collect();
        made.append(&mut dense?);
        if !arch.dense && pooling::has_dense(folder)? {
            notes.push(
                "modules of type Dense after the pooling are left out: files of this architecture have none"
                    .to_owned(),
            );
        }
        let planned: Vec<TensorInfo> = made.iter().map(|made| made.info.clone()).collect();
        metadata::write(folder, &config, arch, &shape, &planned, &mut metadata, &mut notes)?;
        for (key, numbers) in xielu {
            metadata.set(key, Array::from_f32s(numbers));
        }
        for module in &modules {
            let arch = (arch.name)(&config)?;
            metadata.set(format!("{arch}.{}_feat_in", module.name), module.n_in as u32);
            metadata.set(format!("{arch}.{}_feat_out", module.name), module.n_out as u32);
        }
        let cut = arch.globals[0].change == arch::Change::CutVocab;
        let pre = options.tokenizer_pre;
        let request = tokenizer::Request { folder, config: &config, rows, cut, pre };
        let n_tokens = match arch.drafts.is_some() && !drafts::has_vocabulary(folder) {
            // The model has one.
            true => rows,
            false => tokenizer::write(&request, &mut metadata, &mut notes)?,
        };
        made.iter_mut().for_each(|made| made.cut_rows(n_tokens));
        if cut && n_tokens < rows {
            notes.push(format!("{} rows of the embedding have no token and are left out", rows - n_tokens));
        }
        let mut infos: Vec<TensorInfo> = made.iter().map(|made| made.info.clone()).collect();
        let n_experts = shape.experts.map(|(n, _, _)| n);
        if metadata.str("general.size_label").ok().flatten() == Some("") {
            metadata.set("general.size_label", metadata::size_label(&infos, n_experts));
        }
        drop(named);
        let (info, integers): (Vec<TensorInfo>, Vec<Bytes>) = integers.into_iter().unzip();
        infos.extend(info);
        let model = Model { checkpoint, metadata, made, integers, infos };
        let options = model.options(options, &mut notes)?;
        Ok(Self { model, options, notes })
    }

    /// Plans the mmproj file.
    fn open_tower(folder: &Path, config: &Config, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let checkpoint = Checkpoint::open(folder)?;
        let plan = tower::plan(folder, config, &checkpoint)?;
        let notes: Vec<String> = checkpoint.note().into_iter().collect();
        let mut metadata = Metadata::default();
        tower::write(&plan, &mut metadata);
        let infos: Vec<TensorInfo> = plan.made.iter().map(|made| made.info.clone()).collect();
        let n_weights = infos.iter().map(|info| info.n_elems() as u64).sum();
        let front = card::read(folder);
        metadata::identity(folder, config, &front, n_weights, &mut metadata);
        card::write(&front, n_weights, &mut metadata);
        if metadata.str("general.size_label").ok().flatten() == Some("") {
            metadata.set("general.size_label", metadata::size_label(&infos, None));
        }
        let model = Model { checkpoint, metadata, made: plan.made, integers: Vec::new(), infos };
        let body = tower::recipe(options.outtype, model.own_type())?;
        // Nothing is rounded in a file of f32.
        let fixed = plan.fixed.into_iter().filter(|(_, ty)| !body.is(&types::F32) || ty.is(&types::F32));
        let options = QuantizeOptions {
            overrides: fixed.map(|(name, ty)| exactly(name, ty)).collect(),
            threads: options.threads.max(1),
            ..QuantizeOptions::new(Recipe::Type(body))
        };
        Ok(Self { model, options, notes })
    }

    /// Notes on this conversion, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Metadata of the file, except for keys that depend on the types.
    pub fn metadata(&self) -> &Metadata {
        &self.model.metadata
    }

    /// The quantiser that writes the file: its plan, its size, and the file itself, one tensor at a time.
    ///
    /// # Errors
    /// [`ConvertError::Quantize`] for types that do not fit the tensors.
    pub fn quantizer(&self) -> Result<Quantizer<'_>, ConvertError> {
        Ok(Quantizer::new(&self.model, self.options.clone())?)
    }
}

impl TensorSource for Model {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn tensor(&self, at: usize) -> Result<HostTensor, QuantizeError> {
        self.made[at].make(&self.checkpoint).map_err(|(name, detail)| QuantizeError::Source { name, detail })
    }

    fn integers(&self, at: usize) -> Result<Bytes, QuantizeError> {
        Ok(self.integers[at - self.made.len()].clone())
    }
}

impl Model {
    /// Types of all tensors, as options of the quantiser.
    fn options(
        &self,
        options: &ConvertOptions,
        notes: &mut Vec<String>,
    ) -> Result<QuantizeOptions, ConvertError> {
        let matrices = self.matrices(options, notes)?;
        let (recipe, overrides) = match options.outtype {
            Outtype::Auto if matrices.is_empty() => (Recipe::Type(self.own_type()), Vec::new()),
            Outtype::Auto => self.packed(&matrices, notes),
            Outtype::Recipe(Recipe::Type(ty)) if ternary::is_for_ternary(ty) => {
                fits(ty, &matrices)?;
                (Recipe::Type(ty), self.spared(&matrices))
            }
            Outtype::Recipe(recipe) => (recipe, Vec::new()),
        };
        let keeps_int8 = matches!(recipe, Recipe::Type(ty) if ty.ternary() == Some(Ternary::PerTensor));
        let is_bitnet = self
            .metadata
            .str("general.architecture")
            .ok()
            .flatten()
            .is_some_and(|name| name.starts_with("bitnet"));
        if self.was_rounded() && !is_bitnet && !keeps_int8 {
            notes.push(
                "the model was trained with int8 activations, and for its architecture only a file of type \
                 i2_s implies that: with another type the engine keeps activations at full precision \
                 unless an option says otherwise"
                    .to_owned(),
            );
        }
        // The embedding and the head are never ternary.
        let is_ternary = matches!(recipe, Recipe::Type(ty) if ternary::is_for_ternary(ty));
        let exact = is_ternary.then_some(&types::F16 as &'static dyn QuantType);
        let (token_embd, output) = (exact, exact);
        Ok(QuantizeOptions {
            overrides,
            token_embd,
            output,
            threads: options.threads.max(1),
            ..QuantizeOptions::new(recipe)
        })
    }

    /// True if linear weights are packed codes or masters.
    fn was_rounded(&self) -> bool {
        self.made.iter().any(|made| matches!(made.values, Values::Packed { .. } | Values::Masters))
    }

    /// The ternary matrices: packed ones, masters, and real ones that happen to be ternary, which are
    /// searched for if the output type needs it. Empty if any of the latter is not ternary.
    fn matrices(
        &self,
        options: &ConvertOptions,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Matrix>, ConvertError> {
        let matrix = |made: &OutputTensor, form: ScaleSpan| Matrix {
            name: made.info.name.clone(),
            form,
            cols: made.info.cols(),
        };
        let known = |made: &OutputTensor| match &made.values {
            Values::Packed { scales } => Some(matrix(made, ScaleSpan::of_scales(scales))),
            // Each expert is rounded separately.
            Values::Masters if made.info.dims.len() > 2 => Some(matrix(made, ScaleSpan::Row)),
            Values::Masters => Some(matrix(made, ScaleSpan::Tensor)),
            _ => None,
        };
        let found: Vec<Matrix> = self.made.iter().filter_map(known).collect();
        if let Some((least, most)) = self.scale_range() {
            notes.push(format!("effective scales of packed weights: {least:.6} to {most:.6}"));
        }
        let wants = match options.outtype {
            Outtype::Auto => true,
            Outtype::Recipe(Recipe::Type(ty)) => ternary::is_for_ternary(ty),
            Outtype::Recipe(Recipe::Mix(_)) => false,
        };
        if !found.is_empty() || !wants {
            return Ok(found);
        }
        let mut out = Vec::new();
        for made in self.made.iter().filter(|made| made.linear) {
            let tensor =
                made.make(&self.checkpoint).map_err(|(name, detail)| ConvertError::tensor(&name, detail))?;
            match ScaleSpan::of(&tensor) {
                ScaleSpan::Real => return Ok(Vec::new()),
                form => out.push(matrix(made, form)),
            }
        }
        notes.push(format!("all {} linear weights are already -s, 0 and s: a ternary model", out.len()));
        notes.push(
            "with i2_s files the engine rounds activations to int8; if the model was not trained that way, \
             use tq2_0, which keeps them at full precision"
                .to_owned(),
        );
        Ok(out)
    }

    /// Smallest and largest effective scale of packed weights.
    fn scale_range(&self) -> Option<(f32, f32)> {
        let scales = self.made.iter().filter_map(|made| match &made.values {
            Values::Packed { scales } => Some(scales),
            _ => None,
        });
        let mut scales = scales.flatten().copied();
        let first = scales.next()?;
        Some(scales.fold((first, first), |(least, most), scale| (least.min(scale), most.max(scale))))
    }

    /// Types by the rule: the most frequent one as the recipe, and the others as overrides by name.
    fn packed(&self, matrices: &[Matrix], notes: &mut Vec<String>) -> (Recipe, Vec<Override>) {
        let types = ternary::packing(matrices);
        let count = |ty: &'static dyn QuantType| types.iter().filter(|(other, _)| other.is(ty)).count();
        let body = types.iter().map(|(ty, _)| *ty).max_by_key(|ty| count(*ty)).unwrap_or(&types::F16);
        let mut said: Vec<&str> = Vec::new();
        for (ty, why) in &types {
            if !said.contains(&ty.name()) {
                said.push(ty.name());
                notes.push(format!(
                    "{} of {} ternary matrices become {}: {why}",
                    count(*ty),
                    types.len(),
                    ty.name()
                ));
            }
        }
        let mut overrides = self.spared(matrices);
        let others = matrices.iter().zip(&types).filter(|(_, (ty, _))| !ty.is(body));
        overrides.extend(others.map(|(matrix, (ty, _))| exactly(&matrix.name, *ty)));
        (Recipe::Type(body), overrides)
    }

    /// Linear weights that are not ternary in a ternary model become f16, like the head.
    fn spared(&self, matrices: &[Matrix]) -> Vec<Override> {
        let is_ternary = |made: &&OutputTensor| matrices.iter().any(|matrix| matrix.name == made.info.name);
        let spared = self.made.iter().filter(|made| made.linear && !is_ternary(made));
        spared.map(|made| exactly(&made.info.name, &types::F16)).collect()
    }

    /// The type of most of the checkpoint's elements, which loses no precision.
    fn own_type(&self) -> &'static dyn QuantType {
        let choices: [&'static dyn QuantType; 3] = [&types::Bf16, &types::F16, &types::F32];
        let elems = |ty: &'static dyn QuantType| -> usize {
            let of_type = self.made.iter().filter(|made| made.source_type().is_some_and(|own| own.is(ty)));
            of_type.map(|made| made.info.n_elems()).sum()
        };
        choices.into_iter().max_by_key(|ty| elems(*ty)).unwrap_or(&types::F32)
    }
}

/// An override for the tensor with exactly this name.
fn exactly(name: &str, ty: &'static dyn QuantType) -> Override {
    let pattern = Regex::new(&format!("^{}$", regex::escape(name))).expect("an escaped name is a pattern");
    Override { pattern, ty }
}

/// Checks that a ternary type can store these matrices without loss.
fn fits(ty: &'static dyn QuantType, matrices: &[Matrix]) -> Result<(), ConvertError> {
    if matrices.is_empty() {
        let name = ty.name();
        let detail = format!("{name} is for ternary weights, and these are not ternary: use another type");
        let if_masters = "; if they are the master weights of a ternary model, use ";
        let way_out = [if_masters, "ConvertOptions::ternary", " absmean to round them"];
        return Err(ConvertError::Unsupported(detail).avoided_by(way_out));
    }
    let finest = match ty.ternary() {
        // The encoder uses the tensor's scale in types with one scale per row.
        Some(Ternary::PerTensor | Ternary::PerRow) => ScaleSpan::Tensor,
        _ if ty.block_elems() <= 64 => ScaleSpan::Block64,
        _ => ScaleSpan::Block256,
    };
    match matrices.iter().find(|matrix| matrix.form > finest) {
        None => Ok(()),
        Some(matrix) => {
            let detail = format!(
                "has one scale per {}, which {} cannot store: use `auto`, which picks a type that can",
                match matrix.form {
                    ScaleSpan::Row => "row",
                    ScaleSpan::Block256 => "256 columns",
                    _ => "64 columns",
                },
                ty.name()
            );
            Err(ConvertError::tensor(&matrix.name, detail))
        }
    }
}

/// Interpretation of linear weights, from the configuration and the options.
fn reading(
    config: &Config,
    arch: &Architecture,
    options: &ConvertOptions,
    has_input_norms: bool,
) -> Result<Reading, ConvertError> {
    let quantization = config.quantization()?;
    if let Some(found) = quantization.as_ref().filter(|found| found.method != "bitnet") {
        return Err(ConvertError::Unsupported(format!(
            "quantization method {}: bitnet is the only supported one; use the original checkpoint in f32, \
             f16 or bf16",
            found.method.escape_debug()
        )));
    }
    let is_bitnet = arch.classes == ["BitNetForCausalLM"];
    let online = quantization.as_ref().and_then(|found| found.online);
    let scale = match (options.scale, &quantization) {
        (Some(meaning), _) => Ok(meaning),
        (None, Some(_)) if online == Some(true) => {
            Err("is packed, but quantization_mode says online, which is for real weights".to_owned())
        }
        (None, Some(found)) if found.linear_class == "autobitlinear" => Ok(ScaleMeaning::Multiply),
        (None, Some(found)) if found.linear_class == "bitlinear" => Ok(ScaleMeaning::Divide),
        (None, Some(found)) => Err(format!(
            "is packed, and its scale depends on linear_class, which is {}, want autobitlinear or bitlinear",
            found.linear_class.escape_debug()
        )),
        (None, None) => Err("is packed, but config.json has no quantization_config".to_owned()),
    };
    let masters = match () {
        () if options.ternary.is_some() || arch.masters || has_input_norms || online == Some(true) => {
            Ok(true)
        }
        () if is_bitnet || quantization.is_some() => {
            Err("is neither packed nor declared a master weight (quantization_mode online)".to_owned())
        }
        () => Ok(false),
    };
    let spared = quantization.map(|found| found.spared).unwrap_or_default();
    Ok(Reading { scale, masters, spared })
}

/// True if the head is the embedding.
fn tied(
    config: &Config,
    arch: &Architecture,
    named: &NamedTensors<'_>,
    notes: &mut Vec<String>,
) -> Result<bool, ConvertError> {
    if arch.head.is_empty() {
        return Ok(true);
    }
    let has_head = named.get(arch.head).is_some();
    match config.is_tied() {
        Some(true) => Ok(true),
        Some(false) if has_head => Ok(false),
        Some(false) => Err(ConvertError::tensor(arch.head, "is missing, but tie_word_embeddings is false")),
        None if arch.tied || !has_head => {
            if !arch.tied {
                notes.push(format!("{} is missing: the embedding is used as the head", arch.head));
            }
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Snapshot of the branch `main` of a repository in the hub's cache.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    if folder.join("config.json").exists() {
        return None;
    }
    let commit = std::fs::read_to_string(folder.join("refs/main")).ok()?;
    let is_commit = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then(|| folder.join("snapshots").join(commit)).filter(|path| path.is_dir())
}

/// Reads a JSON file.
fn read_json(path: &Path) -> Result<Json, ConvertError> {
    let bytes = std::fs::read(path).map_err(|err| ConvertError::file(path, err))?;
    let wrong = |err| ConvertError::file(path, format!("is not valid JSON: {err}"));
    serde_json::from_slice(&bytes).or_else(|err| {
        // Python writes infinite numbers as a word, which JSON does not have.
        let text = String::from_utf8_lossy(&bytes);
        let finite = INFINITE.replace_all(&text, "$1 null");
        if finite == text { Err(wrong(err)) } else { serde_json::from_str(&finite).map_err(wrong) }
    })
}

/// An infinite number in Python's JSON, after the start of a list or object, a comma or a colon.
static INFINITE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"([\[,:]\s*)-?(?:Infinity|NaN)\b").expect("a valid pattern"));
