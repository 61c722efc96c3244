//! Loads a file into an engine: options, the check that it fits, and the upload.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ggml_types::{Dialect, KvCodec, KvSide, QuantType, kv, kv_on};

use super::act::ActType;
use super::adapter::Adapter;
use super::control::{self, ControlVector};
use super::error::Error;
use super::handle::Engine;
use super::handle::Shared;
use super::head::HeadType;
use super::key_stats;
use super::mtp::{Block, DraftHead, Mtp};
use super::pages::{Pages, SLOTS, Sliding, exact_pages_for, pages_for, row_slots};
use super::pool::{Pooler, RowNorm};
use super::runner::{Runner, RunnerSlot};
use super::upload::{Checked, Progress, of_weight, upload};
use super::vision::{Mmproj, Vision};
use super::{act, head, mtp};
use sterna_backend::{
    self as backend, Backend, BackendError, DeviceMemory, DeviceOptions, Exec, MemoryKind, MemoryPart, Plan,
    WeightId, WeightRows,
};
use sterna_gguf::{Access, Gguf, GgufError, OpenOptions, Source};
use sterna_model as model;
use sterna_model::{DraftBlock, Hyper, Model, Options, Pooling};
use sterna_program::{ActQuant, KvWindow, Limits, Linear, Logits, Part, Program, Weight, WeightDecl};
use sterna_tokenizer::{PreTokenizer, TokenizerOptions};

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Backend and its options: one of [`backend::REGISTRY`] as in `"cpu".parse()?`, or the fastest. Set
    /// options, such as [`DeviceOptions::gpu_layers`].
    pub device: DeviceOptions,
    /// Threads of the CPU backend; `None` is one per physical core.
    pub threads: Option<usize>,
    /// Context per sequence; `None` is the trained context, at most [`EngineOptions::DEFAULT_CTX`].
    pub n_ctx: Option<usize>,
    /// Maximum number of tokens per step.
    pub batch: usize,
    /// Maximum number of tokens per step with logits, for
    /// [`Session::logits_each`](super::Session::logits_each); at least one per sequence.
    pub outputs: usize,
    /// Maximum number of drafted tokens ([`Speculation`](super::Speculation)) that one step verifies, summed
    /// over its sequences; 0 disables drafting. Each takes a row of logits, and in models with recurrent
    /// states one slot, up to 8; there, each sequence takes one more slot as well.
    pub drafts: usize,
    /// Use of the multi-token prediction (MTP) block, for [`MtpDrafts`](super::MtpDrafts). Only with drafts;
    /// a block that is not used is not loaded.
    pub mtp: Mtp,
    /// A file that drafts for the model in place of an MTP block in the model's own file: that block alone,
    /// an EAGLE-3 head, or Gemma 4's assistant ([`DraftKind`](sterna_model::DraftKind)).
    pub draft: Option<Arc<Gguf>>,
    /// Tokens of the head of the MTP block, or of the file that drafts; `None` for all. The text does not
    /// depend on it, but a token that the head does not have is never drafted.
    pub draft_head: Option<DraftHead>,
    /// Maximum number of sequences with pages: sessions, or running sequences of a [`Batch`](super::Batch).
    pub n_seqs: usize,
    /// Positions in the KV cache for all sequences together; `None` is `n_ctx` for each of `n_seqs`. With
    /// fewer, a session's step may find no free page, and sequences of a batch may have to wait.
    pub kv_positions: Option<usize>,
    /// Additional positions that the prefix cache of a [`Batch`](super::Batch) can resume from, if the KV
    /// cache is windowed (`turboquant`) or layers keep a sliding window; the current positions of sequences
    /// are not included. `None` is one per sequence, or 0 if there is one sequence. Each takes exact pages or
    /// sliding-window pages.
    pub checkpoints: Option<usize>,
    /// Codec of keys in the cache: one of [`kv::REGISTRY`], as in `"turboquant".parse()?`.
    pub cache_type_k: &'static dyn KvCodec,
    /// Codec of values in the cache.
    pub cache_type_v: &'static dyn KvCodec,
    /// Number of first positions that codecs with a window (`turboquant`, `turboquant-4`) keep as f16, in
    /// pages of 64; `None` is [`KvWindow::DEFAULT_SINKS`].
    pub kv_sinks: Option<usize>,
    /// Number of newest positions that these codecs keep as f16; `None` is [`KvWindow::DEFAULT_NEWEST`].
    pub kv_window: Option<usize>,
    /// True if sliding-window layers keep keys and values of all positions: a sequence can then be cut back
    /// by any length, or share any common prefix, without recomputing.
    pub swa_full: bool,
    /// Pooling of token vectors; `None` is the file's, or else the last row for a decoder and the mean for an
    /// encoder.
    pub pooling: Option<Pooling>,
    /// Type of the output head.
    pub head_type: HeadType,
    /// Quantisation of the inputs of linear layers.
    pub act_type: ActType,
    /// Dialect that defines the type ids of the file, if they are ambiguous.
    pub dialect: Option<Dialect>,
    /// Access mode for the bytes of a file.
    pub access: Access,
    /// Pre-tokenizer, if the file specifies none or a wrong one.
    pub tokenizer_pre: Option<PreTokenizer>,
    /// LoRA adapters, which sequences may use; an adapter's id is its index.
    pub adapters: Vec<Adapter>,
    /// Control vectors, whose sum is added to the residual stream.
    pub control: Vec<ControlVector>,
    /// Layers after which control vectors are added, counted from 0; `None` for all of them.
    pub control_layers: Option<RangeInclusive<usize>>,
    /// The mmproj file with the vision tower; without one, prompts have no images.
    pub mmproj: Option<Mmproj>,
}

impl EngineOptions {
    /// Default context, in positions.
    pub const DEFAULT_CTX: usize = 4096;

    /// These options with other codecs. Sinks and window are removed if neither codec is windowed.
    pub fn with_cache(&self, [k, v]: [&'static dyn KvCodec; 2]) -> Self {
        let windowed = k.windowed() || v.windowed();
        Self {
            cache_type_k: k,
            cache_type_v: v,
            kv_sinks: self.kv_sinks.filter(|_| windowed),
            kv_window: self.kv_window.filter(|_| windowed),
            ..self.clone()
        }
    }

    /// Positions that windowed caches keep exactly.
    pub fn exact(&self) -> KvWindow {
        let sinks = self.kv_sinks.unwrap_or(KvWindow::DEFAULT_SINKS);
        KvWindow::of_positions(sinks, self.kv_window.unwrap_or(KvWindow::DEFAULT_NEWEST))
    }

    /// The options that concern the file.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions { dialect: self.dialect, access: self.access }
    }

    /// Threads of the CPU backend: the requested number, or one per physical core.
    pub fn n_threads(&self) -> usize {
        self.threads.unwrap_or_else(backend::physical_cores)
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: DeviceOptions::default(),
            threads: None,
            n_ctx: None,
            batch: 512,
            outputs: 1,
            drafts: 0,
            mtp: Mtp::Off,
            draft: None,
            draft_head: None,
            n_seqs: 1,
            kv_positions: None,
            checkpoints: None,
            cache_type_k: kv::F16,
            cache_type_v: kv::F16,
            kv_sinks: None,
            kv_window: None,
            swa_full: false,
            pooling: None,
            head_type: HeadType::default(),
            act_type: ActType::default(),
            dialect: None,
            access: Access::default(),
            tokenizer_pre: None,
            adapters: Vec::new(),
            control: Vec::new(),
            control_layers: None,
            mmproj: None,
        }
    }
}

impl Engine {
    /// Loads a model file.
    ///
    /// # Errors
    /// [`Error::Gguf`], [`Error::Model`] for a file that is damaged or unknown; [`Error::Option`];
    /// [`Error::DoesNotFit`] before anything is allocated; [`Error::Backend`].
    pub fn open(path: impl AsRef<Path>, options: &EngineOptions) -> Result<Self, Error> {
        Self::open_with_progress(path, options, |_| ())
    }

    /// Like [`open`](Self::open), and reports progress.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_progress(
        path: impl AsRef<Path>,
        options: &EngineOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self, Error> {
        Self::from_gguf(Gguf::open_with(path.as_ref(), options.open_options())?, options, progress)
    }

    /// Loads a model from bytes in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Bytes, options: &EngineOptions) -> Result<Self, Error> {
        Self::from_gguf(Gguf::from_bytes_with(bytes, options.open_options())?, options, |_| ())
    }

    /// Loads a model whose bytes come from a reader: each tensor is read, checked, uploaded and dropped. A
    /// backend with its own memory needs a few MB at a time; the CPU backend keeps the bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_source(
        source: Arc<dyn Source>,
        options: &EngineOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self, Error> {
        Self::from_gguf(Gguf::from_source(source, options.open_options())?, options, progress)
    }

    /// Loads a model from a file that is already open.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_gguf(
        gguf: Gguf,
        options: &EngineOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self, Error> {
        Self::on_first(gguf, options, options.device.candidates(options.n_threads()), progress)
    }

    /// Loads a model onto the first of the given backends that could be opened and has all kernels that the
    /// model needs; skipped backends are listed in [`warnings`](Self::warnings).
    ///
    /// # Errors
    /// As [`open`](Self::open); the last backend's error if no backend qualifies.
    ///
    /// # Panics
    /// If `backends` is empty.
    pub fn on_first(
        gguf: Gguf,
        options: &EngineOptions,
        backends: Vec<Result<Box<dyn Backend>, BackendError>>,
        progress: impl FnMut(Progress),
    ) -> Result<Self, Error> {
        let mut passed = Vec::new();
        let last = backends.len() - 1;
        for (at, backend) in backends.into_iter().enumerate() {
            let why = match backend {
                Ok(backend) if at == last => return Self::load(gguf, options, backend, passed, progress),
                Ok(backend) => match plan(&gguf, options, &*backend) {
                    Err(Error::Backend(err @ BackendError::Missing { .. })) => err,
                    _ => return Self::load(gguf, options, backend, passed, progress),
                },
                Err(err) if at == last => return Err(err.into()),
                Err(err) => err,
            };
            passed.push(format!("{why}; trying the next backend"));
        }
        unreachable!("the last backend was returned")
    }

    /// Loads a model onto a backend of the caller; `options.device` is ignored.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn on_backend(
        gguf: Gguf,
        options: &EngineOptions,
        backend: Box<dyn Backend>,
        progress: impl FnMut(Progress),
    ) -> Result<Self, Error> {
        Self::load(gguf, options, backend, Vec::new(), progress)
    }

    /// Loads the model; `notes` come before the other warnings.
    fn load(
        gguf: Gguf,
        options: &EngineOptions,
        mut backend: Box<dyn Backend>,
        mut notes: Vec<String>,
        progress: impl FnMut(Progress),
    ) -> Result<Self, Error> {
        if gguf.is_header() {
            return Err(GgufError::HeaderOnly.into());
        }
        let (model, n_ctx) = build(&gguf, options, |ty| backend.default_act_quant(ty))?;
        let plan = plan_of(&model, options, &*backend)?;
        fits(&plan, n_ctx)?;
        let Model { mut program, weights, hyper, pooling, mtp, deepstack, notes: of_file } = model;
        let vision = match &options.mmproj {
            Some(mmproj) => {
                let model = Vision::read(mmproj, options.open_options())?;
                Vision::check_text(&model, &mmproj.file, &program, hyper.dim, deepstack.len())?;
                Some(tower(model, mmproj.on_cpu, options, backend.name())?)
            }
            None => None,
        };
        let pooler = Pooler::read(&pooling, &weights, options.pooling)?;
        let norm = RowNorm::read(&pooling.norm, &weights)?;
        let ids = upload(&mut *backend, weights, &program, options.n_threads(), progress)?;
        if key_stats::are_missing(&program) {
            let tokenizer = TokenizerOptions { pre: options.tokenizer_pre };
            key_stats::add_bases(&mut program, &gguf, tokenizer, &mut *backend, &ids)?;
        }
        let exec = backend.compile(&program, &ids)?;
        let threads = options.n_threads();
        let block = mtp
            .map(|mtp| load_block(&mut *backend, mtp, (&program, &ids, exec), norm, threads))
            .transpose()?;

        notes.extend(backend.note());
        let (backend_name, device) = (backend.name(), backend.device());
        let Limits { seqs, pages, exact_pages, sliding_pages, states, .. } = program.limits;
        let pages = Pages::new(options.exact(), seqs, pages_for(n_ctx), pages, exact_pages)
            .with_sliding(Sliding::of(&program), sliding_pages)
            .with_states(states, row_slots(options.drafts));
        notes.extend(long_context(&hyper, n_ctx));
        notes.extend(of_file);
        notes.extend(other_codec(&program, options));
        let shared = Shared {
            warnings: notes,
            backend_name,
            device,
            threads: options.n_threads(),
            tokenizer_pre: options.tokenizer_pre,
            tokenizer: OnceLock::new(),
            mtp_cost: block.as_ref().map(|block| block.cost),
            runner_slot: RunnerSlot::new(Runner::new(backend, exec, pages, &program, deepstack, block)),
            pooler,
            adapters: options.adapters.clone(),
            vision,
            gguf,
            hyper,
            program,
            plan,
            n_ctx,
            drafts: options.drafts,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// Uploads those weights of the MTP block that the model does not have, and compiles its program. `norm` is
/// that of the model's last layer.
fn load_block(
    backend: &mut dyn Backend,
    mut block: DraftBlock,
    (trunk, ids, of_trunk): (&Program, &[WeightId], Exec),
    norm: RowNorm,
    threads: usize,
) -> Result<Block, Error> {
    if block.form.reads_model {
        // The bases of the model's keys may have been measured since.
        let caches = block.program.kvs.iter_mut().zip(&trunk.kvs);
        caches.for_each(|(own, of_model)| own.basis.clone_from(&of_model.basis));
    }
    backend.prepare(&block.program)?;
    let mut own = Vec::with_capacity(block.weights.len());
    for (at, (tensor, decl)) in block.weights.iter().cloned().zip(&block.program.weights).enumerate() {
        own.push(match mtp::shared(&block, at, trunk) {
            Some(Weight(at)) => ids[at as usize],
            None => backend.upload_rows(&Checked { tensor, decl, threads }).map_err(of_weight)?,
        });
    }
    let exec = match block.form.reads_model {
        true => backend.compile_reading(&block.program, &own, of_trunk)?,
        false => backend.compile(&block.program, &own)?,
    };
    Block::new(exec, &block, norm, trunk)
}

/// Loads a vision tower on a backend of this name or on the CPU.
fn tower(
    model: model::vision::Vision,
    on_cpu: bool,
    options: &EngineOptions,
    device: &str,
) -> Result<Vision, Error> {
    let threads = options.n_threads();
    let backend = match on_cpu {
        true => backend::processor(threads)?,
        false => {
            let all = options.device.candidates(threads).into_iter();
            let same = |backend: &Result<Box<dyn Backend>, BackendError>| {
                backend.as_ref().is_ok_and(|backend| backend.name() == device)
            };
            all.into_iter().find(same).unwrap_or_else(|| backend::processor(threads))?
        }
    };
    for half in model.halves() {
        fits(&backend.plan(&half.program)?, options.n_ctx.unwrap_or(EngineOptions::DEFAULT_CTX))?;
    }
    Vision::load(model, backend, threads)
}

/// The plan of a backend for a model, without loading it: the memory that it would need.
///
/// # Errors
/// [`Error::Model`], [`Error::Option`]; [`Error::Backend`] with every missing kernel; [`Error::DoesNotFit`].
pub fn plan(gguf: &Gguf, options: &EngineOptions, backend: &dyn Backend) -> Result<Plan, Error> {
    let (model, n_ctx) = build(gguf, options, |ty| backend.default_act_quant(ty))?;
    let plan = plan_of(&model, options, backend)?;
    fits(&plan, n_ctx)?;
    Ok(plan)
}

/// The bytes of the vision tower of these options by kind, if it runs on the backend of the text model.
fn tower_bytes(
    model: &Model,
    options: &EngineOptions,
    backend: &dyn Backend,
) -> Result<[u64; MemoryKind::ALL.len()], Error> {
    let here = |mmproj: &&Mmproj| !mmproj.on_cpu || backend.name() == "cpu";
    let mut bytes = [0; MemoryKind::ALL.len()];
    let Some(mmproj) = options.mmproj.as_ref().filter(here) else { return Ok(bytes) };
    let vision = Vision::read(mmproj, options.open_options())?;
    Vision::check_text(&vision, &mmproj.file, &model.program, model.hyper.dim, model.deepstack.len())?;
    for half in vision.halves() {
        for device in backend.memory(&half.program)? {
            MemoryKind::ALL.iter().zip(&mut bytes).for_each(|(kind, sum)| *sum += device.bytes_of(*kind));
        }
    }
    let [_, _, buffers] = &mut bytes;
    *buffers += vision.host_bytes();
    Ok(bytes)
}

/// The plan of a model, with its vision tower, its MTP block, and the program that measures its keys, if it
/// needs that one.
fn plan_of(model: &Model, options: &EngineOptions, backend: &dyn Backend) -> Result<Plan, Error> {
    let mut plan = backend.plan(&model.program)?;
    let [weights, kv, buffers] = tower_bytes(model, options, backend)?;
    plan.weights_bytes = plan.weights_bytes.saturating_add(weights);
    plan.kv_bytes = plan.kv_bytes.saturating_add(kv);
    plan.bufs_bytes = plan.bufs_bytes.saturating_add(buffers);
    if key_stats::are_missing(&model.program) {
        let Plan { kv_bytes, bufs_bytes, .. } = backend.plan(&key_stats::program(&model.program).0)?;
        plan.bufs_bytes = plan.bufs_bytes.saturating_add(kv_bytes).saturating_add(bufs_bytes);
    }
    let Some(block) = &model.mtp else { return Ok(plan) };
    let own = block_plan(block, model, backend)?;
    Ok(Plan {
        weights_bytes: plan.weights_bytes + own.weights_bytes,
        kv_bytes: plan.kv_bytes + own.kv_bytes,
        bufs_bytes: plan.bufs_bytes + own.bufs_bytes,
        ..plan
    })
}

/// The plan of what a block needs in addition to the model.
fn block_plan(block: &DraftBlock, model: &Model, backend: &dyn Backend) -> Result<Plan, Error> {
    if block.form.reads_model && !backend.shares_caches() {
        let missing = vec![format!("reading the KV cache of the model ({})", block.program.name)];
        return Err(BackendError::Missing { backend: backend.name(), missing }.into());
    }
    Ok(mtp::own_plan(block, &model.program, backend.plan(&block.program)?))
}

/// The memory that a model would need on a backend, part by part, even if that much is not free.
///
/// # Errors
/// [`Error::Model`], [`Error::Option`]; [`Error::Backend`] with every missing kernel.
pub fn memory(
    gguf: &Gguf,
    options: &EngineOptions,
    backend: &dyn Backend,
) -> Result<Vec<DeviceMemory>, Error> {
    let (model, _) = build(gguf, options, |ty| backend.default_act_quant(ty))?;
    let mut devices = backend.memory(&model.program)?;
    if let Some(device) = devices.first_mut() {
        let names = ["vision tower", "keys and values of the vision tower", "buffers of the vision tower"];
        let bytes = tower_bytes(&model, options, backend)?;
        let parts = MemoryKind::ALL.into_iter().zip(names).zip(bytes).filter(|(_, bytes)| *bytes > 0);
        let part =
            |((kind, name), bytes): ((MemoryKind, &str), u64)| MemoryPart { kind, name: name.into(), bytes };
        device.parts.extend(parts.map(part));
    }
    if let Some(block) = &model.mtp {
        mtp::add_memory(&mut devices, block, block_plan(block, &model, backend)?);
    }
    Ok(devices)
}

/// A model's forward pass, without a backend.
///
/// # Errors
/// [`Error::Model`], [`Error::Option`].
pub fn program(gguf: &Gguf, options: &EngineOptions) -> Result<Program, Error> {
    Ok(build(gguf, options, |_| ActQuant::None)?.0.program)
}

/// A model as a program, with its weights, without a backend.
pub fn model(gguf: &Gguf, options: &EngineOptions) -> Result<Model, Error> {
    Ok(build(gguf, options, |_| ActQuant::None)?.0)
}

/// A few of a model's layers for the self-test of a backend: one of each kind, and at least as many as the
/// backend has devices.
#[derive(Debug)]
pub struct FewLayers {
    /// Program of these layers.
    pub program: Program,
    /// Index in `whole` of each of its weights.
    weights: Vec<Weight>,
    whole: Model,
    threads: usize,
}

impl FewLayers {
    /// Selects the layers, for steps with these numbers of rows, one after the other. An output head is cut
    /// to its first rows.
    ///
    /// # Errors
    /// [`Error::Model`], [`Error::Option`].
    pub fn of(
        gguf: &Gguf,
        options: &EngineOptions,
        backend: &dyn Backend,
        steps: &[usize],
    ) -> Result<Self, Error> {
        /// Maximum rows of the output head.
        const TOKENS: usize = 4096;
        let (whole, _) = build(gguf, options, |ty| backend.default_act_quant(ty))?;
        let Part { mut program, weights, .. } = whole.program.layers_of_each_kind(backend.n_devices());
        let rows = steps.iter().copied().max().unwrap_or(1);
        let pages = pages_for(steps.iter().sum());
        let exact_pages = if program.is_windowed() { pages } else { 0 };
        let states = usize::from(!program.states.is_empty());
        program.limits =
            Limits { rows, outputs: rows, seqs: 1, pages, exact_pages, sliding_pages: 0, states };
        program.kvs.iter_mut().for_each(|kv| kv.sliding = None);
        if let Some(Logits { w: Linear { w, norm: None, bias: None, .. }, logits, .. }) =
            program.logits().cloned()
        {
            let tokens = &mut program.weights[w.0 as usize].rows;
            *tokens = TOKENS.min(*tokens);
            program.bufs[logits.0 as usize].cols = *tokens;
        }
        Ok(Self { program, weights, whole, threads: options.n_threads() })
    }

    /// Reads the weights of the layers.
    ///
    /// # Errors
    /// [`Error::Backend`] if the file cannot be read.
    pub fn read(self) -> Result<Model, Error> {
        let Self { program, weights, whole, threads } = self;
        let read = |(decl, w): (&WeightDecl, &Weight)| {
            let tensor = whole.weights[w.0 as usize].clone();
            Ok(Checked { tensor, decl, threads }.read(0..decl.rows)?.into())
        };
        let weights = program.weights.iter().zip(&weights).map(read).collect::<Result<_, Error>>()?;
        Ok(Model { program, weights, ..whole })
    }
}

/// Builds the program of a model for these options, and returns the context size. `rounding` is the
/// backend's.
fn build(
    gguf: &Gguf,
    options: &EngineOptions,
    rounding: impl Fn(&dyn QuantType) -> ActQuant,
) -> Result<(Model, usize), Error> {
    let k = kv_on(KvSide::Keys, options.cache_type_k);
    let v = kv_on(KvSide::Values, options.cache_type_v);
    let hyper = model::hyper(gguf)?;
    let n_ctx = options.n_ctx.unwrap_or(hyper.n_ctx_train.min(EngineOptions::DEFAULT_CTX));
    let mut limits = limits(options, n_ctx)?;
    check_window(options, k, v)?;
    let window = options.exact();
    let checkpoints = options.checkpoints.unwrap_or(if limits.seqs > 1 { limits.seqs } else { 0 });
    in_range("EngineOptions::checkpoints", checkpoints.max(1), MAX_ROWS)?;
    let pages_a_seq = pages_for(n_ctx).min(limits.pages);
    if k.windowed() || v.windowed() {
        let held = exact_pages_for(window, limits.seqs, pages_a_seq, limits.rows);
        limits.exact_pages = held + checkpoints * (window.newest_pages + 1);
    }
    let (wants_block, images) = (options.mtp != Mtp::Off && options.drafts > 0, options.mmproj.is_some());
    let draft = options.draft.as_ref().filter(|_| wants_block);
    let of_own_file = wants_block && draft.is_none();
    let options_of_model = Options { limits, k, v, window, n_ctx, mtp: of_own_file, images };
    let mut model = Model::build(gguf, hyper, &options_of_model)?;
    if let Some(draft) = draft {
        let block = model::draft_block(draft, &model, gguf, &options_of_model);
        model.mtp = Some(block.map_err(|error| Error::Draft { error })?);
    }
    if wants_block && options.mtp == Mtp::Needed && model.mtp.is_none() {
        return Err(mtp::none_loaded());
    }
    if let (Some(block), Some(head)) = (&mut model.mtp, &options.draft_head) {
        let tokens = head.tokens(gguf.metadata(), model.hyper.n_vocab)?;
        block.limit_head(&tokens).map_err(|error| Error::Draft { error })?;
    }
    key_stats::add_from_file(&mut model.program, gguf.metadata())?;
    if model.program.sees_ahead() || model.program.sees_whole_images() {
        for (option, codec) in [("EngineOptions::cache_type_k", k), ("EngineOptions::cache_type_v", v)] {
            if codec.windowed() {
                let want = "a KV cache type that keeps no window, for a model whose rows see later ones";
                return Err(Error::Option { option, want: want.into(), got: codec.name().into() });
            }
        }
    }
    if model.program.sees_ahead() {
        // A text runs in one step.
        model.program.limits.rows = limits.rows.max(n_ctx);
    }
    if let Some(learned) = model.program.learned_positions() {
        in_range("EngineOptions::n_ctx", n_ctx, learned)?;
    }
    // A separate pool that is no smaller would gain nothing, and would lose long cuts and prefixes.
    if let Some(window) = model.program.attend_window().filter(|_| !options.swa_full) {
        let sliding = Sliding::new(window as usize);
        let pages = sliding.pages_for(limits.seqs, pages_a_seq, limits.rows, checkpoints);
        if pages < limits.pages {
            model.program.keep_windows(pages);
        }
    }
    if !model.program.states.is_empty() {
        let slots = SLOTS + usize::from(options.drafts > 0);
        model.program.limits.states = slots * limits.seqs + checkpoints + row_slots(options.drafts);
    }
    head::retype(&mut model.program, &mut model.weights, options.head_type)?;
    act::round(&mut model.program, options.act_type, &rounding);
    if let Some(DraftBlock { program, weights, form }) = &mut model.mtp {
        program.limits = Limits { sliding_pages: 0, states: 0, ..model.program.limits };
        if form.reads_model {
            program.limits.sliding_pages = model.program.limits.sliding_pages;
            program.kvs.clone_from(&model.program.kvs);
            // Its rows are one position before the newest, which is not in the window yet.
            program.kvs.iter_mut().for_each(|kv| kv.sliding = kv.sliding.map(|window| window - 1));
        }
        head::retype(program, weights, options.head_type)?;
        act::round(program, options.act_type, rounding);
    }
    control::attach(&options.control, options.control_layers.as_ref(), &mut model)?;
    options.adapters.iter().try_for_each(|adapter| adapter.attach(gguf, &mut model))?;
    Ok((model, n_ctx))
}

/// Checks that sinks and window are set only if a codec is windowed.
fn check_window(options: &EngineOptions, k: &dyn KvCodec, v: &dyn KvCodec) -> Result<(), Error> {
    let asked =
        [("EngineOptions::kv_sinks", options.kv_sinks), ("EngineOptions::kv_window", options.kv_window)];
    for (option, asked) in asked {
        let Some(asked) = asked else { continue };
        if !k.windowed() && !v.windowed() {
            let with: Vec<_> = kv::REGISTRY.iter().filter(|c| c.windowed()).map(|c| c.name()).collect();
            let want = format!("a KV cache type that keeps some positions exactly: {}", with.join(", "));
            return Err(Error::Option {
                option,
                want,
                got: format!("{asked} with {} and {}", k.name(), v.name()),
            });
        }
        in_range(option, asked, MAX_POSITIONS)?;
    }
    Ok(())
}

/// Positions are u32 on every device, and no page pool may exceed them.
const MAX_POSITIONS: usize = 1 << 31;

fn in_range(option: &'static str, got: usize, max: usize) -> Result<usize, Error> {
    match (1..=max).contains(&got) {
        true => Ok(got),
        false => Err(Error::Option { option, want: format!("1 to {max}"), got: got.to_string() }),
    }
}

/// Larger steps gain nothing, and would only need larger buffers.
const MAX_ROWS: usize = 1 << 16;

fn limits(options: &EngineOptions, n_ctx: usize) -> Result<Limits, Error> {
    let seqs = in_range("EngineOptions::n_seqs", options.n_seqs, MAX_ROWS)?;
    in_range("EngineOptions::n_ctx", n_ctx, MAX_POSITIONS)?;
    let pages = match options.kv_positions {
        Some(positions) => pages_for(in_range("EngineOptions::kv_positions", positions, MAX_POSITIONS)?),
        None => seqs * pages_for(in_range("EngineOptions::n_ctx", n_ctx, MAX_POSITIONS / seqs)?),
    };
    let rows = in_range("EngineOptions::batch", options.batch, MAX_ROWS)?.min(n_ctx.saturating_mul(seqs));
    let outputs = in_range("EngineOptions::outputs", options.outputs, MAX_ROWS)?;
    if options.drafts > MAX_ROWS {
        let (want, got) = (format!("0 to {MAX_ROWS}"), options.drafts.to_string());
        return Err(Error::Option { option: "EngineOptions::drafts", want, got });
    }
    let outputs = outputs.max(seqs + options.drafts).min(rows);
    Ok(Limits { rows, outputs, seqs, pages, exact_pages: 0, sliding_pages: 0, states: 0 })
}

/// Returns an error if a plan needs more memory than is free.
pub fn fits(plan: &Plan, n_ctx: usize) -> Result<(), Error> {
    let Plan { weights_bytes, kv_bytes, bufs_bytes, free_bytes, .. } = *plan;
    let need = weights_bytes.saturating_add(kv_bytes).saturating_add(bufs_bytes);
    match free_bytes {
        Some(free_bytes) if need > free_bytes => {
            Err(Error::DoesNotFit { weights_bytes, kv_bytes, bufs_bytes, free_bytes, n_ctx })
        }
        _ => Ok(()),
    }
}

/// A warning if the context is longer than the trained one.
fn long_context(hyper: &Hyper, n_ctx: usize) -> Option<String> {
    let trained = hyper.n_ctx_train;
    (n_ctx > trained).then(|| {
        format!("the context of {n_ctx} positions is larger than the {trained} the model was trained with")
    })
}

/// A warning if values are stored with another codec than requested.
fn other_codec(p: &Program, options: &EngineOptions) -> Option<String> {
    let (asked, have) = (options.cache_type_v, p.kvs.first()?.v.name());
    // A remark in the list of types says so as well.
    let other = asked.name() != have && asked.note().is_some();
    other.then(|| {
        format!(
            "KV cache type {} is for keys only; values are stored as {have}, which is more accurate for them",
            asked.name()
        )
    })
}
