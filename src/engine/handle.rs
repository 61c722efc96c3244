//! The handle of a loaded model: its properties, its device and its memory use.

use std::sync::{Arc, OnceLock};

use super::adapter::Adapter;
use super::error::Error;
use super::pool::Pooler;
use super::runner::{RunnerLease, RunnerSlot};
use super::sampler::SamplerOptions;
use super::vision::Vision;
use super::vision::picture::{ImageError, ImageRows, Picture};
use sterna_backend::{Plan, StageTime};
use sterna_gguf::Gguf;
use sterna_model::{Hyper, Pooling};
use sterna_program::{Cost, PageTable, Program, Row, Step};
use sterna_tokenizer::{PreTokenizer, Special, Tokenizer, TokenizerOptions};

/// A loaded model on a backend. Clones share it; it is freed when the last clone and the last session are
/// gone.
#[derive(Clone)]
pub struct Engine {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub gguf: Gguf,
    pub adapters: Vec<Adapter>,
    pub hyper: Hyper,
    pub program: Program,
    pub plan: Plan,
    pub n_ctx: usize,
    /// Maximum number of drafted tokens per step.
    pub drafts: usize,
    /// Bytes that the MTP block reads per drafted token, if it is loaded.
    pub mtp_cost: Option<u64>,
    pub backend_name: &'static str,
    pub device: String,
    pub threads: usize,
    pub warnings: Vec<String>,
    pub tokenizer_pre: Option<PreTokenizer>,
    pub tokenizer: OnceLock<Tokenizer>,
    pub runner_slot: RunnerSlot,
    pub pooler: Pooler,
    pub vision: Option<Vision>,
}

impl Engine {
    /// The file's tokenizer; built at the first call.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the file has no usable tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        let shared = &*self.shared;
        if let Some(tokenizer) = shared.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = Tokenizer::from_gguf(&shared.gguf, TokenizerOptions { pre: shared.tokenizer_pre })?;
        Ok(shared.tokenizer.get_or_init(|| tokenizer))
    }

    /// True if the model's MTP block is loaded ([`EngineOptions::mtp`](super::EngineOptions::mtp)).
    pub fn has_mtp(&self) -> bool {
        self.shared.mtp_cost.is_some()
    }

    /// The model's hyperparameters.
    pub fn hyper(&self) -> &Hyper {
        &self.shared.hyper
    }

    /// The model's program.
    pub fn program(&self) -> &Program {
        &self.shared.program
    }

    /// The model's file.
    pub fn gguf(&self) -> &Gguf {
        &self.shared.gguf
    }

    /// Context of one sequence, in positions.
    pub fn n_ctx(&self) -> usize {
        self.shared.n_ctx
    }

    /// The backend's name.
    pub fn backend_name(&self) -> &'static str {
        self.shared.backend_name
    }

    /// Name of the device that runs the model, for display.
    pub fn device(&self) -> &str {
        &self.shared.device
    }

    /// Threads from the options, or one per physical core.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Memory use of the model on the backend.
    pub fn plan(&self) -> Plan {
        self.shared.plan
    }

    /// Default sampling options: the file's recommendations, and the defaults for the rest.
    ///
    /// # Errors
    /// [`Error::Gguf`] if a recommendation has the wrong type.
    pub fn sampler_options(&self) -> Result<SamplerOptions, Error> {
        Ok(SamplerOptions::recommended(self.gguf().metadata(), self.n_ctx())?)
    }

    /// Warnings about this file and these options for the user, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// Bytes and operations of one decode step at `position`, with logits.
    pub fn decode_cost(&self, position: usize) -> Cost {
        self.decode_costs(position).into_iter().sum()
    }

    /// Like [`decode_cost`](Self::decode_cost), per stage of the program.
    pub fn decode_costs(&self, position: usize) -> Vec<Cost> {
        let row = Row { token: 0, pos: position as u32, seq: 0, logits: true };
        let (program, pages) = (&self.shared.program, PageTable::new(0, 0));
        let step = Step { rows: &[row], pages: &pages, sampling: &[], changes: &[] };
        program.stages.iter().map(|(_, stage)| program.stage_cost(stage, &step)).collect()
    }

    /// Bytes and operations of the largest step: the maximum number of rows, at the end of the context.
    pub fn most_cost(&self) -> Cost {
        let (n_rows, n_ctx) = (self.shared.program.limits.rows, self.n_ctx());
        let row = |at: usize| Row {
            token: 0,
            pos: (n_ctx.saturating_sub(n_rows) + at).min(n_ctx - 1) as u32,
            seq: 0,
            logits: at == 0,
        };
        let rows: Vec<Row> = (0..n_rows).map(row).collect();
        let pages = PageTable::new(0, 0);
        self.shared.program.cost(&Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] })
    }

    /// Times of the stages of the program; `None` unless the backend was opened with the option `profile`.
    ///
    /// # Errors
    /// [`Error::InBatch`].
    pub fn stage_times(&self) -> Result<Option<Vec<StageTime>>, Error> {
        let runner = self.runner()?;
        Ok(runner.backend.stage_times(runner.exec))
    }

    /// Number of keys and values that the KV cache had to clamp, because they were NaN, infinite or beyond
    /// the f16 range. A model that produces such values is broken, or not meant for f16. `None` if the
    /// backend does not count them.
    ///
    /// # Errors
    /// [`Error::Backend`], [`Error::InBatch`].
    pub fn clamped(&self) -> Result<Option<u64>, Error> {
        let mut runner = self.runner()?;
        let exec = runner.exec;
        Ok(runner.backend.clamped(exec)?)
    }

    /// True if the model generates tokens. An encoder only makes embeddings.
    pub fn generates(&self) -> bool {
        self.shared.program.logits().is_some()
    }

    /// Pooling of token vectors to an embedding or a score ([`Request::pooled`](super::Request::pooled)).
    pub fn pooling(&self) -> Pooling {
        self.shared.pooler.kind()
    }

    /// The vision tower, if an mmproj file was loaded.
    pub fn vision(&self) -> Option<&Vision> {
        self.shared.vision.as_ref()
    }

    /// Encodes a picture for prompts of this model. Takes seconds for a large tower on a CPU, on the thread
    /// of the caller.
    ///
    /// # Errors
    /// [`Error::Image`], also without an mmproj file; [`Error::Backend`].
    pub fn encode_image(&self, picture: &Picture) -> Result<Arc<ImageRows>, Error> {
        let vision = self.vision().ok_or(ImageError::NoTower)?;
        vision.encode(picture, |text| self.marks(text))
    }

    /// The rows of an encoded picture with this [id](Picture::id), if they are still known.
    pub fn known_image(&self, id: &[u8; 32]) -> Option<Arc<ImageRows>> {
        self.vision()?.known(id)
    }

    /// Number of tokens of a picture in a prompt, without encoding it.
    ///
    /// # Errors
    /// [`Error::Image`], also without an mmproj file.
    pub fn image_tokens(&self, picture: &Picture) -> Result<usize, Error> {
        let vision = self.vision().ok_or(ImageError::NoTower)?;
        vision.n_tokens(picture, |text| self.marks(text))
    }

    /// Tokens of the texts between the tiles of an image.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn marks(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, Special::Parse, false))
    }

    /// Length of an embedding, per text or (without pooling) per token; for scores, the number of labels.
    pub fn vector_len(&self) -> usize {
        self.shared.pooler.len()
    }

    /// True if scores are probabilities, as for a decoder with several labels. Otherwise they are logits.
    pub fn scores_are_probabilities(&self) -> bool {
        self.shared.pooler.has_probabilities()
    }

    /// Returns an error if the model is an encoder, which cannot generate.
    pub(super) fn check_generates(&self) -> Result<(), Error> {
        match self.generates() {
            true => Ok(()),
            false => Err(Error::NoHead { architecture: self.hyper().architecture.clone() }),
        }
    }

    /// Name of the output head's weight type.
    pub fn head_type(&self) -> &'static str {
        let program = &self.shared.program;
        program.logits().map_or("none", |logits| program.weight_decl(logits.w.w).ty.name())
    }

    pub(super) fn runner_slot(&self) -> &RunnerSlot {
        &self.shared.runner_slot
    }

    pub(super) fn runner(&self) -> Result<RunnerLease<&RunnerSlot>, Error> {
        RunnerSlot::take(&self.shared.runner_slot)
    }

    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let n_vocab = self.hyper().n_vocab;
        match tokens.iter().find(|&&token| token as usize >= n_vocab) {
            Some(&token) => Err(Error::Token { token, n_vocab }),
            None => Ok(()),
        }
    }

    /// Checks that a step, next to `others` rows, can hold the rows of an image that it must not split.
    pub(super) fn check_image(&self, rows: &ImageRows, others: usize) -> Result<(), Error> {
        let room = self.max_rows().saturating_sub(others);
        match self.program().sees_whole_images() && rows.len() > room {
            true => Err(ImageError::Batch { rows: rows.len(), room }.into()),
            false => Ok(()),
        }
    }

    pub(super) fn max_rows(&self) -> usize {
        self.shared.program.limits.rows
    }

    pub(super) fn max_outputs(&self) -> usize {
        self.shared.program.limits.outputs
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = &*self.shared;
        f.debug_struct("Engine")
            .field("architecture", &shared.hyper.architecture)
            .field("device", &shared.device)
            .field("n_ctx", &shared.n_ctx)
            .finish_non_exhaustive()
    }
}
