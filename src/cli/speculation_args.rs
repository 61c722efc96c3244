//! Flags of speculative decoding, spelled as llama.cpp's users type them.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::CliError;
use super::model_args::ModelArgs;
use super::source::Source;
use super::units::count;
use crate::engine::{DraftModel, Engine, EngineOptions, NgramLookup, Speculation};

/// How tokens are drafted.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculative decoding (the text is the same; several tokens a step)")]
pub struct SpeculationArgs {
    /// How tokens are drafted: none, ngram-simple (what followed the last tokens in the prompt or the text),
    /// draft-simple (a draft model) [default: none, or draft-simple with --model-draft]
    #[arg(long, value_name = "TYPE", value_parser = spec_type)]
    #[arg(alias = "LLAMA_ARG_SPEC_TYPE")]
    spec_type: Option<SpecType>,
    /// GGUF file of a draft model with the vocabulary of the model (also -md)
    #[arg(long, value_name = "FILE", alias = "spec-draft-model")]
    #[arg(aliases = ["-md", "LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"])]
    model_draft: Option<PathBuf>,
    /// Maximum tokens of a draft; fewer are drafted where they do not pay [default: 3 of a draft model, 48
    /// of n-grams]
    #[arg(long, value_name = "N", value_parser = count, visible_alias = "spec-draft-n-max")]
    #[arg(aliases = ["draft", "draft-n", "spec-ngram-simple-size-m", "spec-ngram-size-m"])]
    #[arg(aliases = ["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX", "EngineOptions::drafts"])]
    draft_max: Option<usize>,
    /// Minimum tokens of a draft of a draft model; shorter ones are not used
    #[arg(long, value_name = "N", default_value_t = 0, visible_alias = "spec-draft-n-min")]
    #[arg(aliases = ["draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN", "LLAMA_ARG_DRAFT_MIN"])]
    draft_min: usize,
    /// Smallest probability of a token of a draft model; a draft ends before one below it
    #[arg(long, value_name = "P", default_value_t = 0.0, visible_alias = "spec-draft-p-min")]
    #[arg(alias = "LLAMA_ARG_SPEC_DRAFT_P_MIN")]
    draft_p_min: f32,
    /// Layers of the draft model whose weights cuda keeps in VRAM, as --gpu-layers (also -ngld)
    /// [default: all]
    #[arg(long, value_name = "N", aliases = ["spec-draft-ngl", "n-gpu-layers-draft"])]
    #[arg(aliases = ["-ngld", "LLAMA_ARG_N_GPU_LAYERS_DRAFT"])]
    gpu_layers_draft: Option<String>,
    /// Tokens that ngram-simple looks for
    #[arg(long, value_name = "N", default_value_t = NgramLookup::default().size, value_parser = count)]
    #[arg(visible_alias = "spec-ngram-simple-size-n", alias = "NgramLookup::size")]
    spec_ngram_size_n: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecType {
    None,
    NgramSimple,
    DraftSimple,
}

/// Reads the value of `--spec-type`.
fn spec_type(name: &str) -> Result<SpecType, String> {
    match name {
        "none" => Ok(SpecType::None),
        "ngram-simple" => Ok(SpecType::NgramSimple),
        "draft-simple" => Ok(SpecType::DraftSimple),
        _ => Err("want one of none, ngram-simple (for every kind of n-grams) and draft-simple (for every \
                  draft model)"
            .into()),
    }
}

/// What drafts, once the model is there.
#[derive(Clone, Debug)]
pub struct Drafting {
    args: SpeculationArgs,
    draft: Option<Engine>,
}

impl SpeculationArgs {
    fn spec_type(&self) -> SpecType {
        let by_model = if self.model_draft.is_some() { SpecType::DraftSimple } else { SpecType::None };
        self.spec_type.unwrap_or(by_model)
    }

    /// Most tokens of a draft.
    fn max(&self) -> usize {
        self.draft_max.unwrap_or(match self.spec_type() {
            SpecType::None => 0,
            SpecType::NgramSimple => NgramLookup::default().max,
            SpecType::DraftSimple => DraftModel::MAX,
        })
    }

    /// Options with room for the drafts, of which a step of many sequences has no more than 64 tokens.
    pub fn with_drafts(&self, options: EngineOptions) -> EngineOptions {
        let max = if self.spec_type() == SpecType::None { 0 } else { self.max() };
        EngineOptions { drafts: max.saturating_mul(options.n_seqs).min(max.max(64)), ..options }
    }

    /// Loads the draft model, if there is one, before the model takes what memory is left: on the same
    /// backend, for sequences as `options` has them.
    ///
    /// # Errors
    /// Whatever loading returns; a draft model that is missing, or not asked for.
    pub fn load(&self, model: &ModelArgs, options: &EngineOptions) -> Result<Drafting, CliError> {
        let draft = match (&self.model_draft, self.spec_type()) {
            (Some(path), SpecType::DraftSimple) => {
                let (model, n_ctx) = (model.of_draft(self.gpu_layers_draft.clone()), options.n_ctx);
                let options = EngineOptions { n_seqs: options.n_seqs, ..model.options(n_ctx)? };
                Some(model.load(&Source::File(path.clone()), &options)?)
            }
            (None, SpecType::DraftSimple) => {
                return Err("--spec-type draft-simple needs a draft model: -md FILE names it".into());
            }
            (Some(_), _) => return Err("--model-draft needs --spec-type draft-simple, or no type".into()),
            (None, _) => None,
        };
        Ok(Drafting { args: self.clone(), draft })
    }
}

impl Drafting {
    /// Bytes that the draft model has taken.
    pub fn bytes(&self) -> u64 {
        let plan = self.draft.as_ref().map(Engine::plan);
        plan.map_or(0, |plan| plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes)
    }

    /// How tokens are drafted for the model; `None` if they are not.
    ///
    /// # Errors
    /// As [`DraftModel::new`].
    pub fn of(&self, engine: &Engine) -> Result<Option<Arc<dyn Speculation>>, CliError> {
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
            (None, _) => None,
        })
    }
}
