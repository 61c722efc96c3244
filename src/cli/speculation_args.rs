//! Flags of speculative decoding, with llama.cpp's names.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::CliError;
use super::model_args::{ModelArgs, word};
use super::source::Source;
use super::units::count;
use crate::backend::GpuLayers;
use crate::engine::{DraftModel, Engine, EngineOptions, Mtp, MtpDrafts, NgramLookup, Speculation};

/// Speculative decoding options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculative decoding (same text, several tokens per step)")]
pub struct SpeculationArgs {
    /// Source of drafts: none, ngram-simple (what followed the last tokens in the prompt or the text),
    /// draft-simple (a draft model), draft-mtp (the block for multi-token prediction in the model's file),
    /// auto (draft-simple with --model-draft, draft-mtp if the file has the block, or none)
    /// [default: none, or draft-simple with --model-draft]
    #[arg(long, value_name = "TYPE", value_parser = spec_type)]
    #[arg(alias = "LLAMA_ARG_SPEC_TYPE")]
    spec_type: Option<SpecType>,
    /// GGUF file of a draft model with the vocabulary of the model (also -md)
    #[arg(long, value_name = "FILE", alias = "spec-draft-model")]
    #[arg(aliases = ["-md", "LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"])]
    model_draft: Option<PathBuf>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecType {
    None,
    NgramSimple,
    DraftSimple,
    DraftMtp,
    Auto,
}

/// Reads the value of `--spec-type`.
fn spec_type(name: &str) -> Result<SpecType, String> {
    match name {
        "none" => Ok(SpecType::None),
        "ngram-simple" => Ok(SpecType::NgramSimple),
        "draft-simple" => Ok(SpecType::DraftSimple),
        "draft-mtp" => Ok(SpecType::DraftMtp),
        "auto" => Ok(SpecType::Auto),
        _ => {
            Err("want one of none, ngram-simple (for every kind of n-grams), draft-simple (for every draft \
                  model), draft-mtp and auto"
                .into())
        }
    }
}

/// Drafts by the block for multi-token prediction, for subcommands without other drafts.
#[derive(Args, Clone, Debug)]
pub struct MtpArgs {
    /// Drafts: none, or draft-mtp (the block for multi-token prediction in the model's file)
    #[arg(long, value_name = "TYPE", value_parser = ["none", "draft-mtp"], default_value = "none")]
    spec_type: String,
    /// Maximum tokens of a draft; drafts become shorter when they do not pay off
    #[arg(long, value_name = "N", default_value_t = MtpDrafts::MAX, value_parser = count)]
    draft_max: usize,
}

impl MtpArgs {
    /// Maximum tokens of a draft; 0 for none.
    pub fn max(&self) -> usize {
        if self.spec_type == "none" { 0 } else { self.draft_max }
    }

    /// Adds the block and room for drafts to the options.
    pub fn with_drafts(&self, options: EngineOptions) -> EngineOptions {
        match self.max() {
            0 => options,
            max => with_room(max, Mtp::Needed, options),
        }
    }
}

/// Adds room for drafts of up to `max` tokens; a step of many sequences has at most 64 draft tokens.
fn with_room(max: usize, mtp: Mtp, options: EngineOptions) -> EngineOptions {
    EngineOptions { drafts: max.saturating_mul(options.n_seqs).min(max.max(64)), mtp, ..options }
}

/// Drafting options, with the draft model if there is one.
#[derive(Clone, Debug)]
pub struct Drafting {
    args: SpeculationArgs,
    draft: Option<Engine>,
}

impl SpeculationArgs {
    fn spec_type(&self) -> SpecType {
        match self.spec_type {
            None | Some(SpecType::Auto) if self.model_draft.is_some() => SpecType::DraftSimple,
            given => given.unwrap_or(SpecType::None),
        }
    }

    /// Maximum tokens of a draft.
    fn max(&self) -> usize {
        self.draft_max.unwrap_or(match self.spec_type() {
            SpecType::None => 0,
            SpecType::NgramSimple => NgramLookup::default().max,
            SpecType::DraftSimple => DraftModel::MAX,
            SpecType::DraftMtp | SpecType::Auto => MtpDrafts::MAX,
        })
    }

    /// Adds the MTP block and room for drafts to the options.
    pub fn with_drafts(&self, options: EngineOptions) -> EngineOptions {
        let max = if self.spec_type() == SpecType::None { 0 } else { self.max() };
        let mtp = match self.spec_type() {
            SpecType::DraftMtp => Mtp::Needed,
            SpecType::Auto => Mtp::IfPresent,
            SpecType::None | SpecType::NgramSimple | SpecType::DraftSimple => Mtp::Off,
        };
        with_room(max, mtp, options)
    }

    /// Loads the draft model, if there is one, before the main model uses the remaining memory: on the same
    /// backend, with the sequences of `options`.
    ///
    /// # Errors
    /// Any error from loading; a draft model that is missing, or given without being used.
    pub fn load(&self, model: &ModelArgs, options: &EngineOptions) -> Result<Drafting, CliError> {
        let draft = match (&self.model_draft, self.spec_type()) {
            (Some(path), SpecType::DraftSimple) => {
                let (model, n_ctx) = (model.of_draft(self.gpu_layers_draft), options.n_ctx);
                let options = EngineOptions { n_seqs: options.n_seqs, ..model.options(n_ctx)? };
                Some(model.load(&Source::File(path.clone()), &options)?)
            }
            (None, SpecType::DraftSimple) => {
                return Err("--spec-type draft-simple needs a draft model: pass it with -md FILE".into());
            }
            (Some(_), _) => return Err("--model-draft works only with --spec-type draft-simple".into()),
            (None, _) => None,
        };
        Ok(Drafting { args: self.clone(), draft })
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
        let (args, max) = (&self.args, self.args.max());
        Ok(match (&self.draft, args.spec_type()) {
            (Some(draft), _) => {
                let mut model = DraftModel::new(engine, draft.clone())?;
                (model.max, model.min, model.p_min) = (max, args.draft_min, args.draft_p_min);
                Some(Arc::new(model))
            }
            (None, SpecType::NgramSimple) => {
                Some(Arc::new(NgramLookup { size: args.spec_ngram_size_n, max }))
            }
            (None, SpecType::DraftMtp | SpecType::Auto) if max > 0 && engine.has_mtp() => {
                let (min, p_min) = (args.draft_min, args.draft_p_min);
                Some(Arc::new(MtpDrafts { max, min, p_min, ..MtpDrafts::new(engine)? }))
            }
            (None, _) => None,
        })
    }
}
