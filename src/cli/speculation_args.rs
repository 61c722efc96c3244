//! Flags of speculative decoding, with llama.cpp's names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::CliError;
use super::model_args::{ModelArgs, word};
use super::source::Source;
use super::units::count;
use crate::backend::GpuLayers;
use crate::engine::{DraftHead, DraftModel, Engine, EngineOptions, Mtp, MtpDrafts, NgramLookup, Speculation};
use crate::gguf::{Gguf, OpenOptions};
use crate::model::DraftKind;

/// Speculative decoding options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculative decoding (same text, several tokens per step)")]
pub struct SpeculationArgs {
    /// Source of drafts: none, ngram-simple (what followed the last tokens in the prompt or the text),
    /// draft-simple (a draft model), draft-mtp (the block for multi-token prediction in the model's file, or
    /// in one of its own, or Gemma 4's assistant), draft-eagle3 (an EAGLE-3 head), auto (what the file of
    /// --model-draft is for, draft-mtp if the model's file has the block, or none) [default: none, or auto
    /// with --model-draft]
    #[arg(long, value_name = "TYPE", value_parser = spec_type)]
    #[arg(alias = "LLAMA_ARG_SPEC_TYPE")]
    spec_type: Option<SpecType>,
    /// GGUF file of a draft model with the vocabulary of the model, or of an MTP block, an EAGLE-3 head or an
    /// assistant that was made for the model (also -md)
    #[arg(long, value_name = "FILE", alias = "spec-draft-model")]
    #[arg(aliases = ["-md", "LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"])]
    model_draft: Option<PathBuf>,
    /// Limits the head of an MTP block, EAGLE-3 head or assistant to frequent tokens, which makes drafts
    /// cheaper, and rarer words are not drafted: the number of first tokens of the vocabulary, or a file with
    /// a token id per line [default: all]
    #[arg(long, value_name = "N|FILE", value_parser = draft_head)]
    draft_head: Option<DraftHead>,
    /// Maximum tokens of a draft, 0 for none; drafts become shorter when they do not pay off [default: 3 with
    /// a draft model or block, 48 with n-grams]
    #[arg(long, value_name = "N", value_parser = count, visible_alias = "spec-draft-n-max")]
    #[arg(aliases = ["draft", "draft-n", "spec-ngram-simple-size-m", "spec-ngram-size-m"])]
    #[arg(aliases = ["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"])]
    draft_max: Option<usize>,
    /// Minimum tokens of a draft by a model or block; shorter ones are discarded
    #[arg(long, value_name = "N", default_value_t = 0, visible_alias = "spec-draft-n-min")]
    #[arg(aliases = ["draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN", "LLAMA_ARG_DRAFT_MIN"])]
    draft_min: usize,
    /// Minimum probability of a token of the draft model or block; a draft ends before a less likely one
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    #[arg(visible_alias = "spec-draft-p-min")]
    #[arg(aliases = ["p-min", "LLAMA_ARG_SPEC_DRAFT_P_MIN"])]
    draft_p_min: f32,
    /// Layers of the draft model whose weights cuda keeps in VRAM, as --gpu-layers (also -ngld)
    /// [default: all]
    #[arg(long, value_name = "N", aliases = ["spec-draft-ngl", "n-gpu-layers-draft"])]
    #[arg(value_parser = word::<GpuLayers>())]
    #[arg(aliases = ["-ngld", "LLAMA_ARG_N_GPU_LAYERS_DRAFT"])]
    gpu_layers_draft: Option<GpuLayers>,
    /// Number of tokens that ngram-simple looks up
    #[arg(long, value_name = "N", default_value_t = NgramLookup::default().size, value_parser = count)]
    #[arg(visible_alias = "spec-ngram-simple-size-n")]
    spec_ngram_size_n: usize,
}

/// Reads the value of `--draft-p-min`.
pub(super) fn probability(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "want 0 to 1".to_owned())
}

/// Reads the value of `--draft-head`.
fn draft_head(text: &str) -> Result<DraftHead, String> {
    if let Ok(n) = text.parse() {
        return Ok(DraftHead::First(n));
    }
    let lines = std::fs::read_to_string(text).map_err(|err| format!("neither a number nor a file: {err}"))?;
    let words = lines.split_whitespace();
    let id = |word: &str| word.parse().map_err(|_| format!("want token ids in the file, found `{word}`"));
    Ok(DraftHead::Tokens(words.map(id).collect::<Result<_, String>>()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecType {
    None,
    NgramSimple,
    DraftSimple,
    DraftMtp,
    DraftEagle3,
    Auto,
}

impl SpecType {
    /// True if drafts come from the model's own rows.
    fn is_of_rows(self) -> bool {
        matches!(self, Self::DraftMtp | Self::DraftEagle3 | Self::Auto)
    }
}

/// Reads the value of `--spec-type`.
fn spec_type(name: &str) -> Result<SpecType, String> {
    match name {
        "none" => Ok(SpecType::None),
        "ngram-simple" => Ok(SpecType::NgramSimple),
        "draft-simple" => Ok(SpecType::DraftSimple),
        "draft-mtp" => Ok(SpecType::DraftMtp),
        "draft-eagle3" => Ok(SpecType::DraftEagle3),
        "auto" => Ok(SpecType::Auto),
        _ => {
            Err("want one of none, ngram-simple (for every kind of n-grams), draft-simple (for every draft \
                  model), draft-mtp, draft-eagle3 and auto"
                .into())
        }
    }
}

/// The type of drafts that is given, or that the file of `--model-draft` is for.
///
/// # Errors
/// If the file cannot be opened, or is for drafts of another type.
fn spec_type_of(given: Option<SpecType>, model_draft: Option<&Path>) -> Result<SpecType, CliError> {
    let Some(path) = model_draft else {
        return match given {
            Some(SpecType::DraftSimple) => {
                Err("--spec-type draft-simple needs a draft model: pass it with -md FILE".into())
            }
            Some(SpecType::DraftEagle3) => {
                Err("--spec-type draft-eagle3 needs an EAGLE-3 head: pass its GGUF file with -md FILE".into())
            }
            given => Ok(given.unwrap_or(SpecType::None)),
        };
    };
    let kind = DraftKind::of(&Gguf::open_header(path, OpenOptions::default())?);
    let (of_file, what, flag) = match kind {
        None => (SpecType::DraftSimple, "a model of its own", "draft-simple"),
        Some(DraftKind::MtpBlock) => (SpecType::DraftMtp, "an MTP block", "draft-mtp"),
        Some(DraftKind::Gemma4Assistant) => (SpecType::DraftMtp, "Gemma 4's assistant", "draft-mtp"),
        Some(DraftKind::Eagle3) => (SpecType::DraftEagle3, "an EAGLE-3 head", "draft-eagle3"),
    };
    match given {
        None | Some(SpecType::Auto) => Ok(of_file),
        Some(given) if given == of_file => Ok(of_file),
        Some(_) => {
            Err(format!("--model-draft {} is {what}: it works only with --spec-type {flag}", path.display())
                .into())
        }
    }
}

/// Drafts from the model's own rows, for subcommands without other drafts.
#[derive(Args, Clone, Debug)]
pub struct MtpArgs {
    /// Drafts: none, draft-mtp (the block for multi-token prediction in the model's file, or the file of
    /// --model-draft), or draft-eagle3 (the head in the file of --model-draft)
    #[arg(long, value_name = "TYPE", value_parser = ["none", "draft-mtp", "draft-eagle3"])]
    #[arg(default_value = "none")]
    spec_type: String,
    /// GGUF file of an MTP block, an EAGLE-3 head or an assistant that was made for the model (also -md)
    #[arg(long, value_name = "FILE")]
    model_draft: Option<PathBuf>,
    /// Maximum tokens of a draft; drafts become shorter when they do not pay off
    #[arg(long, value_name = "N", default_value_t = MtpDrafts::MAX, value_parser = count)]
    draft_max: usize,
    /// Limits the head that drafts to frequent tokens: the number of first tokens of the vocabulary, or a
    /// file with a token id per line [default: all]
    #[arg(long, value_name = "N|FILE", value_parser = draft_head)]
    draft_head: Option<DraftHead>,
}

impl MtpArgs {
    /// Maximum tokens of a draft; 0 for none.
    pub fn max(&self) -> usize {
        if self.spec_type == "none" { 0 } else { self.draft_max }
    }

    /// Adds the block and room for drafts to the options.
    ///
    /// # Errors
    /// As [`SpeculationArgs::with_drafts`].
    pub fn with_drafts(&self, options: EngineOptions) -> Result<EngineOptions, CliError> {
        let given = spec_type(&self.spec_type)?;
        match (given, &self.model_draft) {
            (SpecType::None, Some(_)) => {
                Err("--model-draft works only with --spec-type draft-mtp or draft-eagle3".into())
            }
            (SpecType::None, None) => Ok(options),
            (given, file) => {
                spec_type_of(Some(given), file.as_deref())?;
                let draft_head = self.draft_head.clone();
                let options = EngineOptions { draft_head, ..with_file(file.as_deref(), options)? };
                Ok(with_room(self.draft_max, Mtp::Needed, options))
            }
        }
    }
}

/// Adds room for drafts of up to `max` tokens; a step of many sequences has at most 64 draft tokens.
fn with_room(max: usize, mtp: Mtp, options: EngineOptions) -> EngineOptions {
    EngineOptions { drafts: max.saturating_mul(options.n_seqs).min(max.max(64)), mtp, ..options }
}

/// Adds the file that drafts for the model, if there is one.
pub(super) fn with_file(file: Option<&Path>, options: EngineOptions) -> Result<EngineOptions, CliError> {
    let draft = file.map(|file| Gguf::open_with(file, options.open_options())).transpose()?;
    Ok(EngineOptions { draft: draft.map(Arc::new), ..options })
}

/// Drafting options, with the draft model if there is one.
#[derive(Clone, Debug)]
pub struct Drafting {
    args: SpeculationArgs,
    spec_type: SpecType,
    draft: Option<Engine>,
}

impl SpeculationArgs {
    fn spec_type(&self) -> Result<SpecType, CliError> {
        spec_type_of(self.spec_type, self.model_draft.as_deref())
    }

    /// Maximum tokens of a draft.
    fn max(&self, spec_type: SpecType) -> usize {
        self.draft_max.unwrap_or(match spec_type {
            SpecType::None => 0,
            SpecType::NgramSimple => NgramLookup::default().max,
            SpecType::DraftSimple => DraftModel::MAX,
            SpecType::DraftMtp | SpecType::DraftEagle3 | SpecType::Auto => MtpDrafts::MAX,
        })
    }

    /// Adds the MTP block, or the file that drafts for the model, and room for drafts to the options.
    ///
    /// # Errors
    /// A file of `--model-draft` that cannot be opened, or is for drafts of another type, and a type of
    /// drafts without its file.
    pub fn with_drafts(&self, options: EngineOptions) -> Result<EngineOptions, CliError> {
        let spec_type = self.spec_type()?;
        let max = if spec_type == SpecType::None { 0 } else { self.max(spec_type) };
        let mtp = match spec_type {
            SpecType::DraftMtp | SpecType::DraftEagle3 => Mtp::Needed,
            SpecType::Auto => Mtp::IfPresent,
            SpecType::None | SpecType::NgramSimple | SpecType::DraftSimple => Mtp::Off,
        };
        let is_of_rows = spec_type.is_of_rows();
        if self.draft_head.is_some() && !is_of_rows {
            return Err("--draft-head works only with --spec-type draft-mtp, draft-eagle3 or auto".into());
        }
        let file = self.model_draft.as_deref().filter(|_| is_of_rows);
        let options = EngineOptions { draft_head: self.draft_head.clone(), ..with_file(file, options)? };
        Ok(with_room(max, mtp, options))
    }

    /// Loads the draft model, if there is one, before the main model uses the remaining memory: on the same
    /// backend, with the sequences of `options`.
    ///
    /// # Errors
    /// Any error from loading; a draft model that is missing, or given without being used.
    pub fn load(&self, model: &ModelArgs, options: &EngineOptions) -> Result<Drafting, CliError> {
        let spec_type = self.spec_type()?;
        let draft = match &self.model_draft {
            Some(path) if spec_type == SpecType::DraftSimple => {
                let (model, n_ctx) = (model.of_draft(self.gpu_layers_draft), options.n_ctx);
                let options = EngineOptions { n_seqs: options.n_seqs, ..model.options(n_ctx)? };
                Some(model.load(&Source::File(path.clone()), &options)?)
            }
            _ => None,
        };
        Ok(Drafting { args: self.clone(), spec_type, draft })
    }
}

impl Drafting {
    /// Bytes that the draft model uses.
    pub fn bytes(&self) -> u64 {
        let plan = self.draft.as_ref().map(Engine::plan);
        plan.map_or(0, |plan| plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes)
    }

    /// Speculative decoding for the model; `None` if it is off.
    ///
    /// # Errors
    /// Same as [`DraftModel::new`].
    pub fn speculation(&self, engine: &Engine) -> Result<Option<Arc<dyn Speculation>>, CliError> {
        let (args, max) = (&self.args, self.args.max(self.spec_type));
        let (min, p_min) = (args.draft_min, args.draft_p_min);
        if let Some(draft) = &self.draft {
            let mut model = DraftModel::new(engine, draft.clone())?;
            (model.max, model.min, model.p_min) = (max, min, p_min);
            return Ok(Some(Arc::new(model)));
        }
        Ok(match self.spec_type {
            SpecType::NgramSimple => Some(Arc::new(NgramLookup { size: args.spec_ngram_size_n, max })),
            of_rows if of_rows.is_of_rows() && max > 0 && engine.has_mtp() => {
                Some(Arc::new(MtpDrafts { max, min, p_min, ..MtpDrafts::new(engine)? }))
            }
            _ => None,
        })
    }
}
