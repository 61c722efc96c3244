//! From a checkpoint of Hugging Face's form to a GGUF file: a folder of safetensors in, one file out.
//!
//! It must never know a program, a backend or a network: a folder is what it takes, the snapshot of a pulled
//! repository for one. Start at [`Converter`]: it plans every tensor and every key before a byte is written;
//! the [`Quantizer`] then asks for one tensor after the other and writes it in the wanted type. `arch.rs` has
//! a table an architecture, `tensors.rs` what is done to a tensor, `hybrid.rs` where delta nets are,
//! `ternary/` what packed weights mean.
#![forbid(unsafe_code)]

mod arch;
mod card;
mod checkpoint;
mod config;
mod hybrid;
mod metadata;
mod metaspace;
mod names;
mod pooling;
mod pre;
mod sentencepiece;
mod shape;
mod tensors;
pub mod ternary;
mod tokenizer;
mod two_files;
mod wordpiece;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use ggml_types::{HostTensor, QuantType, Ternary, types};
use regex::Regex;
use serde_json::Value as Json;

use arch::Architecture;
use checkpoint::Checkpoint;
use config::Config;
use shape::Shape;
use sterna_gguf::{Metadata, TensorInfo, type_named};
use sterna_quantize::{Override, QuantizeError, QuantizeOptions, Quantizer, Recipe, TensorSource};
use sterna_tokenizer::PreTokenizer;
use tensors::{NamedTensors, OutputTensor, Reading, Values};
use ternary::{Matrix, ScaleMeaning, ScaleSpan};

/// Why a checkpoint cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file or folder that is missing, broken, or says what makes no sense.
    #[error("{}: {detail}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Expected and found.
        detail: String,
    },
    /// A tensor that is missing, unknown, or not what it must be.
    #[error("tensor {}: {detail}", name.escape_debug())]
    Tensor {
        /// Its name in the checkpoint.
        name: String,
        /// Expected and found.
        detail: String,
    },
    /// A checkpoint of a kind that is not read here, with the way out.
    #[error("{0}")]
    Unsupported(String),
    /// From the wanted type on.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
}

impl ConvertError {
    fn file(path: &Path, detail: impl Display) -> Self {
        Self::File { path: path.to_owned(), detail: detail.to_string() }
    }

    fn tensor(name: &str, detail: impl Display) -> Self {
        Self::Tensor { name: name.to_owned(), detail: detail.to_string() }
    }
}

/// Which types the tensors of the file get.
#[derive(Clone, Copy, Debug, Default)]
pub enum Outtype {
    /// Ternary weights are packed by the rule of [`ternary::packing`]; any others keep the checkpoint's type.
    #[default]
    Auto,
    /// As `quantize` does.
    Recipe(Recipe),
}

impl Outtype {
    /// `auto`, a type or a mix, in capitals or not. A type of plain numbers or of ternary ones, and `q8_0`,
    /// is one type for all matrices, as llama.cpp's converter has it; of any other name the mix comes first.
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

/// Rounding of master weights to ternary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// By BitNet's rule, see [`ternary::absmean`].
    Absmean,
}

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Types of the file's tensors.
    pub outtype: Outtype,
    /// Meaning of scales beside packed codes, instead of the configuration's.
    pub scale: Option<ScaleMeaning>,
    /// Rounding of linear weights that are masters of a ternary model; `None` if they are not.
    pub ternary: Option<Rounding>,
    /// Name of the pre-tokenizer, where tokenizer.json is not to decide.
    pub tokenizer_pre: Option<PreTokenizer>,
    /// Leave out the parts of a multimodal model that are not text.
    pub text_only: bool,
    /// Threads that encode; the result does not depend on it.
    pub threads: usize,
}

/// A checkpoint, planned: what the file will hold, before a byte of it is written.
#[derive(Debug)]
pub struct Converter {
    model: Model,
    options: QuantizeOptions,
    notes: Vec<String>,
}

/// The tensors of the file to be, made when they are asked for.
#[derive(Debug)]
struct Model {
    checkpoint: Checkpoint,
    metadata: Metadata,
    made: Vec<OutputTensor>,
    infos: Vec<TensorInfo>,
}

impl Converter {
    /// Reads the descriptions of a checkpoint's folder, checks every tensor, and decides what it becomes.
    ///
    /// # Errors
    /// [`ConvertError`]: what was expected, what was found, where, and the way out.
    pub fn open(folder: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        if !folder.is_dir() {
            let detail = "want a folder with config.json and safetensors";
            return Err(ConvertError::file(folder, detail));
        }
        let folder = &snapshot(folder).unwrap_or_else(|| folder.to_owned());
        if folder.join("adapter_config.json").is_file() && !folder.join("config.json").is_file() {
            let detail = "an adapter (LoRA), not a model: merge it into its model first, as peft's \
                          merge_and_unload does, and convert that";
            return Err(ConvertError::file(folder, detail));
        }
        let mut config = Config::read(folder)?;
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
            None => return Err(ConvertError::tensor(embedding, "is missing")),
        };
        let shape = Shape::read(&config, arch, rows)?;
        let mut notes = Vec::new();
        // Models with such norms are rounded by BitNet's rule, and their configurations do not say so.
        let has_input_norms = named.get(&format!("{}0.mlp.up_proj.norm.weight", arch.layers)).is_some();
        let reading = reading(&config, arch, options, has_input_norms)?;
        let tied = tied(&config, arch, &named, &mut notes)?;
        let rope = (arch.rope != arch::Rope::None).then(|| config.rope()).transpose()?;
        let mut made = tensors::plan(&mut named, arch, &shape, &reading, rope.as_ref(), tied)?;
        notes.append(&mut named.notes);

        let mut metadata = Metadata::default();
        let modules = if arch.dense { pooling::dense(folder)? } else { Vec::new() };
        let dense: Result<Vec<_>, _> = modules.iter().map(tensors::dense).collect();
        made.append(&mut dense?);
        if !arch.dense && pooling::has_dense(folder)? {
            notes.push(
                "modules of type Dense behind the pooling are left out: files of this architecture have none"
                    .to_owned(),
            );
        }
        let planned: Vec<TensorInfo> = made.iter().map(|made| made.info.clone()).collect();
        metadata::write(folder, &config, arch, &shape, &planned, &mut metadata, &mut notes)?;
        for module in &modules {
            let arch = (arch.name)(&config)?;
            metadata.set(format!("{arch}.{}_feat_in", module.name), module.n_in as u32);
            metadata.set(format!("{arch}.{}_feat_out", module.name), module.n_out as u32);
        }
        let cut = arch.globals[0].change == arch::Change::CutVocab;
        let pre = options.tokenizer_pre;
        let request = tokenizer::Request { folder, config: &config, rows, cut, pre };
        let n_tokens = tokenizer::write(&request, &mut metadata, &mut notes)?;
        made.iter_mut().for_each(|made| made.cut_rows(n_tokens));
        if cut && n_tokens < rows {
            notes.push(format!("{} rows of the embedding have no token: left out", rows - n_tokens));
        }
        let infos: Vec<TensorInfo> = made.iter().map(|made| made.info.clone()).collect();
        let n_experts = shape.experts.map(|(n, _, _)| n);
        if metadata.str("general.size_label").ok().flatten() == Some("") {
            metadata.set("general.size_label", metadata::size_label(&infos, n_experts));
        }
        drop(named);
        let model = Model { checkpoint, metadata, made, infos };
        let options = model.options(options, &mut notes)?;
        Ok(Self { model, options, notes })
    }

    /// Notes on this conversion, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The file's keys and values, but for those that the types decide.
    pub fn metadata(&self) -> &Metadata {
        &self.model.metadata
    }

    /// Writer of the file: its plan, its size, and the file itself, one tensor at a time.
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
}

impl Model {
    /// The types of all tensors, as options of the quantiser.
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
                 i2_s says so: with another type the engine keeps activations at full precision unless an \
                 option says otherwise"
                    .to_owned(),
            );
        }
        // The embedding and the head are no ternary matrices, whatever the others are.
        let is_ternary = matches!(recipe, Recipe::Type(ty) if ternary::is_for_ternary(ty));
        let beside = is_ternary.then_some(&types::F16 as &'static dyn QuantType);
        let (token_embd, output) = (beside, beside);
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

    /// The matrices that are ternary: packed ones, masters, and real ones that turn out to be, which are
    /// looked for where the wanted type asks. None where any of those is not.
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
            // Each expert is rounded by itself.
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
        notes.push(format!("all {} linear weights are -s, 0 and s already: a ternary model", out.len()));
        notes.push(
            "with i2_s files the engine rounds activations to int8; if the model was not trained that way, \
             use tq2_0, which keeps them at full precision"
                .to_owned(),
        );
        Ok(out)
    }

    /// Least and largest effective scale of packed weights.
    fn scale_range(&self) -> Option<(f32, f32)> {
        let scales = self.made.iter().filter_map(|made| match &made.values {
            Values::Packed { scales } => Some(scales),
            _ => None,
        });
        let mut scales = scales.flatten().copied();
        let first = scales.next()?;
        Some(scales.fold((first, first), |(least, most), scale| (least.min(scale), most.max(scale))))
    }

    /// The rule's types: the most frequent one as the recipe, and the others by name.
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

    /// Linear weights that are not ternary beside others that are: f16, as the head.
    fn spared(&self, matrices: &[Matrix]) -> Vec<Override> {
        let is_ternary = |made: &&OutputTensor| matrices.iter().any(|matrix| matrix.name == made.info.name);
        let spared = self.made.iter().filter(|made| made.linear && !is_ternary(made));
        spared.map(|made| exactly(&made.info.name, &types::F16)).collect()
    }

    /// The type of most bytes of the checkpoint, which loses nothing.
    fn own_type(&self) -> &'static dyn QuantType {
        let choices: [&'static dyn QuantType; 3] = [&types::Bf16, &types::F16, &types::F32];
        let elems = |ty: &'static dyn QuantType| -> usize {
            let of_type = self.infos.iter().filter(|info| info.ty.is_some_and(|own| own.is(ty)));
            of_type.map(TensorInfo::n_elems).sum()
        };
        choices.into_iter().max_by_key(|ty| elems(*ty)).unwrap_or(&types::F32)
    }
}

/// A type for the tensor of exactly this name.
fn exactly(name: &str, ty: &'static dyn QuantType) -> Override {
    let pattern = Regex::new(&format!("^{}$", regex::escape(name))).expect("an escaped name is a pattern");
    Override { pattern, ty }
}

/// Checks that a ternary type holds these matrices as they are.
fn fits(ty: &'static dyn QuantType, matrices: &[Matrix]) -> Result<(), ConvertError> {
    if matrices.is_empty() {
        return Err(ConvertError::Unsupported(format!(
            "{} is for ternary weights, and these are not ternary: use another type; if they are the master \
             weights of a ternary model, ConvertOptions::ternary absmean rounds them",
            ty.name()
        )));
    }
    let finest = match ty.ternary() {
        // The encoder gives types of a scale a row the tensor's.
        Some(Ternary::PerTensor | Ternary::PerRow) => ScaleSpan::Tensor,
        _ if ty.block_elems() <= 64 => ScaleSpan::Block64,
        _ => ScaleSpan::Block256,
    };
    match matrices.iter().find(|matrix| matrix.form > finest) {
        None => Ok(()),
        Some(matrix) => {
            let detail = format!(
                "has one scale per {}, which {} cannot hold: use `auto`, which picks a type that can",
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

/// Interpretation of linear weights, by the configuration and the caller.
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
            Err("is packed, but quantization_mode says online, which is for real weights; \
                 ConvertOptions::scale says what weight_scale means: multiply or divide"
                .to_owned())
        }
        (None, Some(found)) if found.linear_class == "autobitlinear" => Ok(ScaleMeaning::Multiply),
        (None, Some(found)) if found.linear_class == "bitlinear" => Ok(ScaleMeaning::Divide),
        (None, Some(found)) => Err(format!(
            "is packed, and its scale depends on linear_class, which is {}, want autobitlinear or bitlinear; \
             ConvertOptions::scale says what weight_scale means: multiply or divide",
            found.linear_class.escape_debug()
        )),
        (None, None) => {
            Err("is packed, and config.json has no quantization_config; ConvertOptions::scale says \
                             what weight_scale means: multiply or divide"
                .to_owned())
        }
    };
    let masters = match () {
        () if options.ternary.is_some() || arch.masters || has_input_norms || online == Some(true) => {
            Ok(true)
        }
        () if is_bitnet || quantization.is_some() => {
            Err("is neither packed nor said to be a master weight (quantization_mode online); \
                 ConvertOptions::ternary absmean rounds such weights by BitNet's rule"
                .to_owned())
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
        Some(false) => Err(ConvertError::tensor(arch.head, "is missing, and tie_word_embeddings is false")),
        None if arch.tied || !has_head => {
            if !arch.tied {
                notes.push(format!("there is no {}: the embedding is the head", arch.head));
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

/// A JSON file whole.
fn read_json(path: &Path) -> Result<Json, ConvertError> {
    let bytes = std::fs::read(path).map_err(|err| ConvertError::file(path, err))?;
    serde_json::from_slice(&bytes)
        .map_err(|err| ConvertError::file(path, format!("is not valid JSON: {err}")))
}
