//! Flags shared by all subcommands that load a model, and the loading itself.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Args, Command};
use ggml_types::{Dialect, KvCodec, kv};
use indicatif::{ProgressBar, ProgressStyle};

use super::control_args::ControlArgs;
use super::fit_args::FitArgs;
use super::hub_args::HubArgs;
use super::lora_args::LoraArgs;
use super::source::Source;
use super::units::{Threads, count, threads};
use super::{CliError, names, trust};
use crate::backend::{
    Backend, BackendError, DeviceOptions, GpuLayers, Int8, MinBatch, Numa, Octets, Opened, OptionId, Plan,
    Profile, Proportions, REGISTRY, Resident, SplitMode,
};
use crate::engine::fit::Codecs;
use crate::engine::{self, ACT_TYPES, ActType, Engine, EngineOptions, Error, HEAD_TYPES, HeadType, Mmproj};
use crate::gguf::{Access, Gguf, OpenOptions};
use crate::model;
use crate::program::{KvWindow, PAGE};
use crate::tokenizer::PreTokenizer;

/// Model and runtime options.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Threads [default: physical cores]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    #[arg(alias = "LLAMA_ARG_THREADS")]
    threads: Option<Threads>,
}

/// The same without the number of threads.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// GGUF file of the model [default: the built-in demo model]
    #[arg(short, long, value_name = "FILE")]
    #[arg(alias = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    /// A model of the hub instead.
    #[command(flatten)]
    pub hub: HubArgs,
    /// Backend: auto, or one that `sterna devices` lists
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: String,
    /// Device of the backend.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Skip the self-test before the first run on a device
    #[arg(long)]
    pub no_self_test: bool,
    /// Maximum tokens per prefill step
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = count)]
    #[arg(visible_alias = "ubatch-size")]
    #[arg(aliases = ["-ub", "LLAMA_ARG_BATCH", "LLAMA_ARG_UBATCH", "max-num-batched-tokens"])]
    pub batch_size: usize,
    /// Type of the output head
    #[arg(long, value_name = "TYPE", default_value = HEAD_TYPES[0], help = head_types())]
    pub head_type: HeadType,
    /// Quantisation of the inputs of linear layers
    #[arg(long, value_name = "HOW", default_value = ACT_TYPES[0], help = act_types())]
    pub act_type: ActType,
    /// Adapters.
    #[command(flatten)]
    pub lora: LoraArgs,
    /// Control vectors.
    #[command(flatten)]
    pub control: ControlArgs,
    /// KV cache.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Overrides for facts that are missing in the file.
    #[command(flatten)]
    pub file: FileArgs,
}

/// Options of a backend.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Device of the backend: its number in `sterna devices` or a part of its name; for cuda also several
    /// numbers, as in 0,2
    #[arg(long, value_name = "N|NAME")]
    #[arg(aliases = ["-dev", "LLAMA_ARG_DEVICE"])]
    device: Option<String>,
    /// How cuda uses several GPUs: none uses one, layer divides the layers among them (also -sm) [default:
    /// none, or layer with --tensor-split]
    #[arg(long, value_name = "MODE", value_parser = word::<SplitMode>())]
    #[arg(aliases = ["-sm", "LLAMA_ARG_SPLIT_MODE"])]
    split_mode: Option<SplitMode>,
    /// Proportions of the model per GPU, as in 3,1 (also -ts) [default: by free memory]
    #[arg(long, value_name = "LIST", value_parser = word::<Proportions>())]
    #[arg(aliases = ["-ts", "LLAMA_ARG_TENSOR_SPLIT"])]
    tensor_split: Option<Proportions>,
    /// How wgpu multiplies int8 activations: auto, packed (four at a time), floats [default: auto]
    #[arg(long, value_name = "HOW", value_parser = word::<Int8>())]
    int8: Option<Int8>,
    /// Layers whose weights cuda keeps in VRAM: all, auto (as many as fit), or a number; the others stay in
    /// host memory, see --op-offload-min-batch (also -ngl) [default: all]
    #[arg(long, value_name = "N", alias = "n-gpu-layers", allow_negative_numbers = true)]
    #[arg(value_parser = word::<GpuLayers>())]
    #[arg(aliases = ["-ngl", "LLAMA_ARG_N_GPU_LAYERS"])]
    gpu_layers: Option<GpuLayers>,
    /// Matrices that cuda keeps in host memory: PATTERN=CPU, or in VRAM: PATTERN=CUDA0; a comma-separated
    /// list, of which the first match applies (also -ot)
    #[arg(long, value_name = "LIST")]
    #[arg(aliases = ["-ot", "LLAMA_ARG_OVERRIDE_TENSOR"])]
    override_tensor: Vec<String>,
    /// Keep the weights of all experts in host memory (also -cmoe)
    #[arg(long)]
    #[arg(aliases = ["-cmoe", "LLAMA_ARG_CPU_MOE"])]
    cpu_moe: bool,
    /// Keep the expert weights of the first N layers in host memory (also -ncmoe)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16))]
    #[arg(aliases = ["-ncmoe", "LLAMA_ARG_N_CPU_MOE"])]
    n_cpu_moe: Option<u16>,
    /// Offloaded layers in VRAM at a time, 1 to 8 [default: 2]; on the CPU, blocks of 8 MiB that are read
    /// ahead, 1 to 64 [default: 4]
    #[arg(long, value_name = "N", value_parser = count)]
    stream_slots: Option<usize>,
    /// Smallest batch for which offloaded weights are copied to the GPU; for smaller ones the CPU computes
    /// their layers: auto (measured), a number of rows (1: always copy), or off (never copy) [default: auto]
    #[arg(long, value_name = "N", value_parser = word::<MinBatch>())]
    op_offload_min_batch: Option<MinBatch>,
    /// Kernels of a GPU for steps of several rows that stream weights through shared memory: auto (if the
    /// self-test has found them right and faster), on, off (cuda) [default: auto]
    #[arg(long, value_name = "WHEN", value_parser = word::<Octets>())]
    octets: Option<Octets>,
    /// Layers whose weights the CPU backend keeps in memory: auto (as many as fit), all, none (nor the output
    /// head), or a number; the others are read from the file in every step [default: auto]
    #[arg(long, value_name = "N", value_parser = resident_layers)]
    resident_layers: Option<Resident>,
    /// Placement of the CPU threads on a machine with NUMA nodes: distribute (evenly over the nodes), isolate
    /// (on the node of the main thread), numactl (as numactl allows)
    #[arg(long, value_name = "HOW", value_parser = word::<Numa>())]
    #[arg(alias = "LLAMA_ARG_NUMA")]
    numa: Option<Numa>,
}

/// Fastest backend that `auto` would choose and whose device is available.
fn fastest() -> &'static str {
    let there = REGISTRY.iter().filter_map(|entry| Some((entry.auto.as_ref()?, entry.name)));
    let there = there.filter(|(auto, _)| (auto.is_there)());
    there.max_by_key(|(auto, _)| auto.rank).map_or("cpu", |(_, name)| name)
}

/// Parser of the value of a backend option, with errors in the form of the backend's own.
pub(super) fn word<T>() -> Word<T> {
    Word(PhantomData)
}

/// See [`word`].
#[derive(Clone)]
pub(super) struct Word<T>(PhantomData<T>);

impl<T> TypedValueParser for Word<T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, _: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        let flag = arg.and_then(Arg::get_long).unwrap_or_default();
        let wrong = |why: String| clap::Error::raw(ErrorKind::ValueValidation, format!("--{flag}: {why}\n"));
        value.to_string_lossy().parse::<T>().map_err(wrong)
    }
}

/// Reads the value of `--resident-layers`; `--load-mode mmap` is [`Resident::Mapped`].
fn resident_layers(value: &str) -> Result<Resident, String> {
    let parsed = value.parse::<Resident>().ok().filter(|resident| *resident != Resident::Mapped);
    parsed.ok_or_else(|| "want auto, all, none or a number of layers".into())
}

/// llama.cpp's pattern for the names of expert matrices.
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";

impl DeviceArgs {
    /// Placement overrides of matrices in the syntax of the cuda backend, if there are any.
    fn overrides(&self) -> Option<String> {
        let of_layers = (0..self.n_cpu_moe.unwrap_or(0)).map(|layer| format!(r"blk\.{layer}{EXPERTS}=CPU"));
        let all = self.cpu_moe.then(|| format!("{EXPERTS}=CPU"));
        let list: Vec<String> = self.override_tensor.iter().cloned().chain(all).chain(of_layers).collect();
        (!list.is_empty()).then(|| list.join(","))
    }

    /// Options of a backend. Values that ask for the default are left out, so that every backend accepts
    /// them: `--int8 auto`, and `-ngl 99`, with which llama.cpp's users ask for all layers, on backends that
    /// always have all layers in one place.
    pub(super) fn options(&self, backend: &str) -> Result<DeviceOptions, BackendError> {
        let device: DeviceOptions = backend.parse()?;
        let streams = device.has(OptionId::GpuLayers);
        let is_choice = |layers: &GpuLayers| match layers {
            // The CPU backend always has all layers in host memory.
            GpuLayers::Count(0) => streams || backend != "cpu",
            GpuLayers::All | GpuLayers::Auto | GpuLayers::Count(99..) => streams,
            GpuLayers::Count(_) => true,
        };
        // The CPU backend always has all matrices in host memory.
        let is_there = |list: &String| backend == "cpu" && list.split(',').all(|part| part.ends_with("=CPU"));
        Ok(DeviceOptions {
            device: self.device.clone(),
            split_mode: self.split_mode,
            tensor_split: self.tensor_split.clone(),
            int8: self.int8.filter(|how| *how != Int8::Auto),
            gpu_layers: self.gpu_layers.filter(is_choice),
            override_tensor: self.overrides().filter(|list| !is_there(list)),
            stream_slots: self.stream_slots,
            op_offload_min_batch: self.op_offload_min_batch,
            octets: self.octets.filter(|how| *how != Octets::Auto),
            resident_layers: self.resident_layers,
            // Other backends have no CPU threads.
            numa: self.numa.filter(|_| backend == "cpu"),
            ..device
        })
    }

    /// Options of a backend that offloads the layers that do not fit, if it can do that and the user did not
    /// set related options.
    fn streaming(&self, backend: &str) -> Option<DeviceOptions> {
        let device = self.options(backend).ok()?;
        let is_open = device.gpu_layers.is_none() && device.split_mode.is_none();
        let can = is_open && device.has(OptionId::GpuLayers);
        can.then_some(DeviceOptions { gpu_layers: Some(GpuLayers::Auto), ..device })
    }

    /// Value of --op-offload-min-batch, if it is a number.
    pub(super) fn min_batch(&self) -> Option<usize> {
        match self.op_offload_min_batch {
            Some(MinBatch::Rows(n)) => Some(n),
            _ => None,
        }
    }
}

/// Context length.
#[derive(Args, Clone, Debug)]
pub struct ContextArgs {
    /// Context length; 0 is the trained one, at most 4096
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = count)]
    #[arg(aliases = ["LLAMA_ARG_CTX_SIZE", "max-model-len"])]
    pub ctx_size: usize,
    /// Choices for flags that are not given.
    #[command(flatten)]
    pub fit: FitArgs,
}

impl ContextArgs {
    /// The context length as the engine's option.
    pub fn n_ctx(&self) -> Option<usize> {
        (self.ctx_size > 0).then_some(self.ctx_size)
    }
}

/// KV cache types.
#[derive(Args, Clone, Debug, Default)]
pub struct CacheArgs {
    /// Type of keys and values
    #[arg(long, value_name = "TYPE", help = cache_types())]
    pub kv_cache_type: Option<&'static dyn KvCodec>,
    /// The same for the keys only (also -ctk)
    #[arg(long, value_name = "TYPE")]
    #[arg(aliases = ["-ctk", "LLAMA_ARG_CACHE_TYPE_K"])]
    pub cache_type_k: Option<&'static dyn KvCodec>,
    /// The same for the values only (also -ctv)
    #[arg(long, value_name = "TYPE")]
    #[arg(aliases = ["-ctv", "LLAMA_ARG_CACHE_TYPE_V"])]
    pub cache_type_v: Option<&'static dyn KvCodec>,
    /// First positions that are kept as f16
    #[arg(long, value_name = "N", value_parser = count)]
    #[arg(help = window("First", KvWindow::DEFAULT_SINKS))]
    pub kv_sinks: Option<usize>,
    /// Latest positions that are kept as f16
    #[arg(long, value_name = "N", value_parser = count)]
    #[arg(help = window("Latest", KvWindow::DEFAULT_NEWEST))]
    pub kv_window: Option<usize>,
    /// Keep all positions in sliding-window layers too: uses more memory, but truncating a sequence needs no
    /// recomputation
    #[arg(long)]
    #[arg(alias = "LLAMA_ARG_SWA_FULL")]
    pub swa_full: bool,
}

/// The help of `--kv-cache-type`, from the registry.
fn cache_types() -> String {
    format!("Type of the KV cache: {} [default: f16]", ggml_types::kv::names_with_notes())
}

impl CacheArgs {
    /// Cache types of keys and values.
    pub fn codecs(&self) -> Codecs {
        let default = EngineOptions::default().cache_type_k;
        [self.cache_type_k, self.cache_type_v].map(|own| own.or(self.kv_cache_type).unwrap_or(default))
    }

    /// True if one of them was given.
    pub fn is_given(&self) -> bool {
        [self.kv_cache_type, self.cache_type_k, self.cache_type_v].iter().any(Option::is_some)
    }
}

/// The help of `--head-type`.
fn head_types() -> String {
    let [keep, types @ ..] = HEAD_TYPES;
    let types = types.join(" or ");
    format!(
        "Type of the output head, which is most of what is read per token: {keep}, or {types}, to which it \
         is converted"
    )
}

/// The help of `--act-type`.
fn act_types() -> String {
    let [auto, trained, f32, token, block] = ACT_TYPES;
    format!(
        "Quantisation of the inputs of linear layers: {auto} (as trained; if the model does not say, {block} \
         on CPU and CUDA), {trained} (as trained), {f32} (none), {token} (per token), {block} (per 32 \
         inputs, CPU and CUDA: close to llama.cpp)"
    )
}

/// The help of `--kv-sinks` and `--kv-window`, with the windowed codecs from the registry.
fn window(which: &str, default: usize) -> String {
    let windowed = kv::REGISTRY.iter().filter(|codec| codec.windowed()).map(|codec| codec.name());
    let windowed = windowed.collect::<Vec<_>>().join(", ");
    format!("{which} positions that {windowed} keep as f16, in pages of {PAGE} [default: {default}]")
}

/// Facts about a file that are missing in it.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// Origin of the file's type ids if ambiguous: ggml, bitnet
    #[arg(long, value_name = "NAME", value_parser = dialect)]
    pub dialect: Option<Dialect>,
    /// Pre-tokenizer, if the file names none or a wrong one: llama-bpe, gpt-2, default, ...
    #[arg(long, value_name = "NAME", value_parser = pre_tokenizer)]
    pub tokenizer_pre: Option<PreTokenizer>,
    /// Read the file instead of mapping it; on the CPU, weights then count as memory of the process
    #[arg(long)]
    #[arg(alias = "LLAMA_ARG_NO_MMAP")]
    no_mmap: bool,
    /// Lock the mapped file in memory; RLIMIT_MEMLOCK must allow it
    #[arg(long, conflicts_with = "no_mmap")]
    #[arg(alias = "LLAMA_ARG_MLOCK")]
    mlock: bool,
    /// llama-bench's flag: 0 reads the file
    #[arg(long, value_name = "0|1", hide = true, num_args = 0..=1, conflicts_with = "no_mmap")]
    #[arg(default_missing_value = "1", value_parser = clap::value_parser!(u8).range(..=1))]
    #[arg(alias = "-mmp")]
    mmap: Option<u8>,
    /// How weights are loaded (also -lm): auto maps the file, and reads layers that do not fit in memory in
    /// every step; mmap always maps it and leaves paging to the system; none is --no-mmap; mlock, or
    /// mmap+mlock, is --mlock [default: auto]
    #[arg(long, value_name = "HOW", value_enum, conflicts_with_all = ["no_mmap", "mlock", "mmap"])]
    #[arg(aliases = ["-lm", "LLAMA_ARG_LOAD_MODE"])]
    load_mode: Option<LoadMode>,
}

/// Ways to load weights, with llama.cpp's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LoadMode {
    Auto,
    #[value(name = "none")]
    Read,
    Mmap,
    #[value(alias = "mmap+mlock")]
    Mlock,
}

impl FileArgs {
    /// Options for opening the file.
    pub fn open_options(&self) -> OpenOptions {
        let is_read = self.no_mmap || self.mmap == Some(0) || self.load_mode == Some(LoadMode::Read);
        let access = match (self.mlock || self.load_mode == Some(LoadMode::Mlock), is_read) {
            (true, _) => Access::Lock,
            (false, true) => Access::Read,
            (false, false) => Access::Map,
        };
        OpenOptions { dialect: self.dialect, access }
    }

    /// True if the file is mapped even if it does not fit in memory.
    fn is_always_mapped(&self) -> bool {
        self.load_mode == Some(LoadMode::Mmap)
    }
}

/// Reads the value of `--dialect`.
pub(super) fn dialect(name: &str) -> Result<Dialect, String> {
    match name {
        "ggml" => Ok(Dialect::Ggml),
        "bitnet" => Ok(Dialect::BitNet),
        _ => Err("want ggml (llama.cpp) or bitnet (microsoft/BitNet)".into()),
    }
}

/// Reads the value of `--tokenizer-pre`.
///
/// # Errors
/// The known names.
pub(super) fn pre_tokenizer(name: &str) -> Result<PreTokenizer, String> {
    name.parse().map_err(|_| {
        let known: Vec<_> = PreTokenizer::all().map(PreTokenizer::name).collect();
        format!("want one of {}", known.join(", "))
    })
}

impl ModelArgs {
    /// Chooses the model.
    ///
    /// # Errors
    /// Same as [`Source::choose`].
    pub fn source(&self) -> Result<Source, CliError> {
        self.load.source()
    }

    /// Engine options for sessions of `n_ctx` positions.
    ///
    /// # Errors
    /// Same as [`LoadArgs::device`].
    pub fn options(&self, n_ctx: Option<usize>) -> Result<EngineOptions, CliError> {
        self.load.options(n_ctx, self.threads.and_then(|n| n.0))
    }

    /// Loads the model, with a progress bar on a terminal, and prints its warnings.
    ///
    /// # Errors
    /// Any error of [`Engine::open`].
    pub fn load(&self, source: &Source, options: &EngineOptions) -> Result<Engine, CliError> {
        self.load.load(source, options)
    }

    /// Opens the model's file and the candidate backends.
    ///
    /// # Errors
    /// Same as [`Source::open`].
    pub fn open(&self, source: &Source, options: &EngineOptions) -> Result<OpenModel, CliError> {
        self.load.open(source, options)
    }

    /// The named file, or the file of the hub model, which is downloaded first; `None` if neither was named.
    ///
    /// # Errors
    /// Same as [`HubArgs::local`].
    pub fn file(&self) -> Result<Option<PathBuf>, CliError> {
        self.load.hub.local(self.load.model.as_deref())
    }

    /// The same arguments for a draft model, whose KV cache type is the default.
    pub fn of_draft(&self, gpu_layers: Option<GpuLayers>) -> Self {
        let mut args = self.clone();
        args.load.device.gpu_layers = gpu_layers;
        args.load.cache = CacheArgs::default();
        (args.load.file, args.load.head_type) = (FileArgs::default(), HeadType::default());
        (args.load.lora, args.load.control) = (LoraArgs::default(), ControlArgs::default());
        args
    }

    /// Opens the header of the model.
    ///
    /// # Errors
    /// As [`LoadArgs::header`].
    pub fn header(&self) -> Result<Gguf, CliError> {
        self.load.header()
    }

    /// True if adapters were given.
    pub fn has_adapters(&self) -> bool {
        self.load.lora.is_given()
    }

    /// Options of the hub.
    pub fn hub(&self) -> &HubArgs {
        &self.load.hub
    }
}

impl LoadArgs {
    /// Chooses the model.
    ///
    /// # Errors
    /// Same as [`Source::choose`].
    pub fn source(&self) -> Result<Source, CliError> {
        Source::choose(self.model.as_deref(), &self.hub, "-m FILE")
    }

    /// The backend, where other flags decide what `--backend auto` leaves open: `-ngl 0` means the CPU, a
    /// smaller number than all layers needs CUDA, which can offload layers, and resident layers are an option
    /// of the CPU. Matrices in host memory, stream slots, NUMA and a file that is always mapped mean the
    /// fastest device of this machine, since not every backend has these options.
    pub(super) fn backend(&self) -> &str {
        match (self.backend.as_str(), self.device.gpu_layers) {
            ("auto", Some(GpuLayers::Count(0))) => "cpu",
            ("auto", Some(GpuLayers::Count(1..99))) => "cuda",
            ("auto", _) if self.device.resident_layers.is_some() => "cpu",
            ("auto", _)
                if self.file.is_always_mapped()
                    || self.device.overrides().is_some()
                    || self.device.stream_slots.is_some()
                    || self.device.numa.is_some() =>
            {
                fastest()
            }
            (backend, _) => backend,
        }
    }

    /// The given options of a backend.
    pub(super) fn options_of(&self, backend: &str) -> Result<DeviceOptions, BackendError> {
        let mut device = self.device.options(backend)?;
        if self.file.is_always_mapped() && backend == "cpu" {
            device.resident_layers.get_or_insert(Resident::Mapped);
        }
        Ok(device)
    }

    /// The backend with the given options, and with the timing of stages.
    ///
    /// # Errors
    /// If there is no such backend, or it does not have the option.
    pub fn device(&self, profile: Option<Profile>) -> Result<DeviceOptions, CliError> {
        let backend = match self.backend() {
            "auto" if profile.is_some() => fastest(),
            backend => backend,
        };
        let device = self.options_of(backend).and_then(|device| {
            let device = DeviceOptions { profile, ..device };
            device.check().map(|()| device)
        });
        device.map_err(|err| self.way_out(&err).map_or_else(|| err.into(), Into::into))
    }

    /// A backend error with a hint, if `-ngl` chose that backend.
    fn way_out(&self, err: &BackendError) -> Option<String> {
        let GpuLayers::Count(n) = self.device.gpu_layers.filter(|_| self.backend() != self.backend)? else {
            return None;
        };
        let way_out = "-ngl 0 runs on the CPU, and without -ngl the fastest device is used";
        let err = names::with_flags(err);
        Some(format!("-ngl {n} needs an NVIDIA GPU: {err}; {way_out}"))
    }

    /// Engine options for sessions of `n_ctx` positions.
    ///
    /// # Errors
    /// Same as [`device`](Self::device).
    pub fn options(&self, n_ctx: Option<usize>, threads: Option<usize>) -> Result<EngineOptions, CliError> {
        self.options_on(self.device(None)?, n_ctx, threads)
    }

    /// The same on a given backend.
    ///
    /// # Errors
    /// Any error from opening an adapter.
    pub fn options_on(
        &self,
        device: DeviceOptions,
        n_ctx: Option<usize>,
        threads: Option<usize>,
    ) -> Result<EngineOptions, CliError> {
        let cache = &self.cache;
        let [cache_type_k, cache_type_v] = cache.codecs();
        Ok(EngineOptions {
            device,
            threads,
            n_ctx,
            batch: self.batch_size,
            cache_type_k,
            cache_type_v,
            kv_sinks: cache.kv_sinks,
            kv_window: cache.kv_window,
            swa_full: cache.swa_full,
            head_type: self.head_type,
            act_type: self.act_type,
            dialect: self.file.dialect,
            access: self.file.open_options().access,
            tokenizer_pre: self.file.tokenizer_pre,
            adapters: self.lora.adapters(|| self.header())?,
            control: self.control.vectors()?,
            control_layers: self.control.layers(),
            ..EngineOptions::default()
        })
    }

    /// Opens the header of the model.
    ///
    /// # Errors
    /// Any error from finding or reading the file.
    pub fn header(&self) -> Result<Gguf, CliError> {
        let options = self.file.open_options();
        Ok(match self.hub.local(self.model.as_deref())? {
            Some(path) => Gguf::open_header(&path, options)?,
            None => Source::demo("-m FILE")?.open(options)?,
        })
    }

    /// Loads the model, with a progress bar on a terminal, and prints its warnings.
    ///
    /// # Errors
    /// Any error of [`Engine::open`].
    pub fn load(&self, source: &Source, options: &EngineOptions) -> Result<Engine, CliError> {
        self.open(source, options)?.load(options)
    }

    /// Opens the model's file and the candidate backends.
    ///
    /// # Errors
    /// Same as [`Source::open`].
    pub fn open(&self, source: &Source, options: &EngineOptions) -> Result<OpenModel, CliError> {
        let gguf = source.open(options.open_options())?;
        let self_test = !self.no_self_test;
        let backends = trust::backends(&gguf, options, self_test);
        if let [Err(err)] = backends.as_slice()
            && let Some(said) = self.way_out(err)
        {
            return Err(said.into());
        }
        Ok(OpenModel {
            gguf,
            backends,
            device: self.device.clone(),
            has_codecs: self.cache.is_given(),
            self_test,
        })
    }
}

/// A model's file and the candidate backends.
pub struct OpenModel {
    gguf: Gguf,
    backends: Vec<Opened>,
    /// Backend options that the user gave.
    device: DeviceArgs,
    /// True if the user chose KV cache types.
    has_codecs: bool,
    /// True if a device must pass a self-test before its first model.
    self_test: bool,
}

impl OpenModel {
    /// Memory that the model needs: weights, KV cache and buffers, regardless of the free memory. 0 if no
    /// backend can run the model, which loading reports.
    pub fn bytes(&self, options: &EngineOptions) -> u64 {
        let plan = |backend: &dyn Backend| match engine::plan(&self.gguf, options, backend) {
            Ok(Plan { weights_bytes, kv_bytes, bufs_bytes, .. })
            | Err(Error::DoesNotFit { weights_bytes, kv_bytes, bufs_bytes, .. }) => {
                Some(weights_bytes + kv_bytes + bufs_bytes)
            }
            Err(_) => None,
        };
        self.backends.iter().flatten().find_map(|backend| plan(&**backend)).unwrap_or(0)
    }

    /// The options with an mmproj file. One that was only found is left out, with a note, if the first
    /// backend cannot run the model with it.
    pub fn with_mmproj(&self, options: EngineOptions, mmproj: Option<(Mmproj, bool)>) -> EngineOptions {
        let Some((mmproj, is_found)) = mmproj else { return options };
        let file = mmproj.file.display().to_string();
        let with = EngineOptions { mmproj: Some(mmproj), ..options.clone() };
        if !is_found {
            return with;
        }
        let first = self.backends.iter().flatten().next();
        let planned = first.map(|backend| engine::plan(&self.gguf, &with, &**backend));
        if let Some(Err(err @ Error::Backend(BackendError::Missing { .. }))) = planned {
            names::note("note", &format!("{file} is not used: {err}; --mmproj uses it"));
            return options;
        }
        names::note("note", &format!("images are read with {file}; --no-mmproj leaves it out"));
        with
    }

    /// True if the model only makes embeddings.
    pub fn is_encoder(&self, options: &EngineOptions) -> bool {
        engine::program(&self.gguf, options).is_ok_and(|program| program.logits().is_none())
    }

    /// The options for embedding `n_seqs` texts. Unless the user set the size of the KV cache, it holds one
    /// step's rows and a partly filled page per text.
    ///
    /// # Errors
    /// Any error from reading the model.
    pub fn for_texts(&self, options: EngineOptions, n_seqs: usize) -> Result<EngineOptions, CliError> {
        let trained = model::hyper(&self.gguf)?.n_ctx_train;
        let n_ctx = options.n_ctx.unwrap_or(EngineOptions::DEFAULT_CTX.min(trained));
        let of_a_step = n_ctx.max(options.batch) + n_seqs * PAGE;
        let kv_positions =
            options.kv_positions.or(Some(of_a_step.min(n_seqs * n_ctx.next_multiple_of(PAGE))));
        Ok(EngineOptions { n_seqs, kv_positions, ..options })
    }

    /// The options for `n_seqs` sequences in the KV cache of fewer, if their states fit.
    ///
    /// # Errors
    /// Any error from reading the model.
    pub fn shared(&self, options: EngineOptions, n_seqs: usize) -> Result<EngineOptions, CliError> {
        let trained = model::hyper(&self.gguf)?.n_ctx_train;
        let n_ctx = options.n_ctx.unwrap_or(EngineOptions::DEFAULT_CTX.min(trained));
        let kv_positions = Some(options.n_seqs * n_ctx.next_multiple_of(PAGE));
        let shared = EngineOptions { n_seqs, kv_positions, ..options.clone() };
        let fits = |backend: &dyn Backend| engine::plan(&self.gguf, &shared, backend).is_ok();
        match self.backends.iter().flatten().any(|backend| fits(&**backend)) {
            true => Ok(shared),
            false => Ok(options),
        }
    }

    /// Fits the options to the backend that the model will run on. If that changes the cache types, the
    /// backends are opened again, so that the self-test covers them.
    ///
    /// # Errors
    /// Any error from planning the model.
    pub fn fitted(self, options: EngineOptions, fit: &FitArgs) -> Result<(Self, EngineOptions), CliError> {
        let runs = |backend: &dyn Backend| {
            let planned = engine::memory(&self.gguf, &options, backend);
            !matches!(planned, Err(Error::Backend(BackendError::Missing { .. })))
        };
        let mut opened = self.backends.iter().flatten();
        let Some(backend) = opened.find(|backend| runs(&***backend)) else { return Ok((self, options)) };
        let Some(fitted) = fit.fitted(&self.gguf, &**backend, &options, self.has_codecs)? else {
            let planned = engine::plan(&self.gguf, &options, &**backend);
            let is_too_large = matches!(planned, Err(Error::DoesNotFit { .. }));
            return match self.device.streaming(backend.name()).filter(|_| is_too_large) {
                Some(device) => {
                    let streaming = EngineOptions { device, ..options.clone() };
                    self.streamed(options, streaming, fit)
                }
                None => {
                    fit.say_what_would_fit(&self.gguf, &options, &**backend)?;
                    Ok((self, options))
                }
            };
        };
        let codecs = |options: &EngineOptions| [options.cache_type_k, options.cache_type_v];
        match codecs(&fitted) == codecs(&options) {
            true => Ok((self, fitted)),
            false => Ok((self.reopened(&fitted), fitted)),
        }
    }

    /// [`fitted`](Self::fitted) for a model that does not fit on the GPU.
    fn streamed(
        self,
        options: EngineOptions,
        streaming: EngineOptions,
        fit: &FitArgs,
    ) -> Result<(Self, EngineOptions), CliError> {
        let streamed = self.reopened(&streaming);
        // If it does not open with these options, for example on several GPUs, it stays as it was.
        if let Some(Ok(backend)) = streamed.backends.first()
            && let Some(fitted) = fit.streamed(&streamed.gguf, &**backend, &streaming)?
        {
            return Ok((streamed, fitted));
        }
        let whole = streamed.reopened(&options);
        if let Some(backend) = whole.backends.iter().flatten().next() {
            fit.say_what_would_fit(&whole.gguf, &options, &**backend)?;
        }
        Ok((whole, options))
    }

    /// The same model with the backends for other options.
    fn reopened(self, options: &EngineOptions) -> Self {
        // A GPU may not have enough memory for both.
        drop(self.backends);
        Self { backends: trust::backends(&self.gguf, options, self.self_test), ..self }
    }

    /// Loads the model, with a progress bar on a terminal, and prints its warnings.
    ///
    /// # Errors
    /// Any error of [`Engine::open`].
    pub fn load(self, options: &EngineOptions) -> Result<Engine, CliError> {
        let bar = progress_bar();
        let loaded = Engine::on_first(self.gguf, options, self.backends, |progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        });
        bar.finish_and_clear();
        let engine = loaded?;
        engine.warnings().iter().for_each(|warning| names::note("warning", warning));
        Ok(engine)
    }
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("loading {bar:40} {binary_bytes}/{binary_total_bytes}")
        .expect("the template is well-formed");
    ProgressBar::new(0).with_style(style)
}
