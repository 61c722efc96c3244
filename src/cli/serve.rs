//! `sterna serve`: serves a model over HTTP.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;

use super::chat::template_source;
use super::ctrl_c::on_ctrl_c;
use super::fit_args::FitArgs;
use super::grpc_args::{GrpcArgs, list};
use super::listener_args::ListenerArgs;
use super::lora_args::LoraModules;
use super::mmproj_args::MmprojArgs;
use super::model_args::{ContextArgs, ModelArgs};
use super::models_args::ModelFile;
use super::models_args::ModelsArgs;
use super::pooling_args::PoolingArgs;
use super::sampling_args::SamplingArgs;
use super::source::Source;
use super::speculation_args::SpeculationArgs;
use super::{CliError, Interrupted, names};
use crate::demo;
use crate::engine::{EngineOptions, Pooling};
use crate::serve::{
    AdapterFolder, InProcess, Loaded, ModelSource, Opened, ServeError, ServeOptions, Server, SlotLimits,
};

/// Serves the APIs of OpenAI, llama-server, Anthropic and ollama over HTTP.
///
/// A chat page is at /. On ctrl-C or SIGTERM the server finishes the running answers and exits; a second
/// signal ends it at once. llama-server's environment variables (`LLAMA_ARG_PORT`, ...) set flags that are
/// not given.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna serve
  sterna serve -m model.gguf -c 8192 -np 8 --port 8000
  sterna serve -hf user/repo:Q4_K_M
  sterna serve --models-dir models --models-max 2
  sterna serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt --metrics
  curl 127.0.0.1:8080/completion -d '{\"prompt\": \"Once upon a time\", \"n_predict\": 32}'")]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    lora: LoraModules,
    #[command(flatten)]
    mmproj: MmprojArgs,
    #[command(flatten)]
    models: ModelsArgs,
    #[command(flatten)]
    listener: ListenerArgs,
    #[command(flatten)]
    grpc: GrpcArgs,
    /// Seconds after which a step of the engine is considered hung and the process exits [default: by the
    /// model's size, at least 30]
    #[arg(long, value_name = "S")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    step_timeout: Option<u64>,
    /// Number of sequences that run at a time (also -np) [default: 4, or 32 for a model that only embeds]
    #[arg(long, value_name = "N", alias = "max-num-seqs")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: Option<u16>,
    #[arg(skip)]
    is_in_process: bool,
    /// Positions of the KV cache shared by all sequences [default: parallel x context, or fewer for a model
    /// that only embeds]
    #[arg(long, value_name = "N")]
    kv_positions: Option<usize>,
    /// Name of the model, or several, comma-separated: the first is its id, requests may use all [default:
    /// the one in its file]
    #[arg(short, long, value_name = "NAMES")]
    #[arg(aliases = ["LLAMA_ARG_ALIAS", "served-model-name"])]
    alias: Option<String>,
    /// Maximum tokens of an answer if the request sets none; -1 fills the context
    #[arg(short, long, value_name = "N", default_value_t = -1)]
    #[arg(allow_negative_numbers = true, visible_alias = "predict")]
    n_predict: i64,
    #[command(flatten)]
    pooling: PoolingArgs,
    /// Score documents (/v1/rerank): the same as --pooling rank
    #[arg(long, alias = "rerank", conflicts_with = "pooling")]
    #[arg(alias = "LLAMA_ARG_RERANKING")]
    reranking: bool,
    /// Chat template in place of the model's: bitnet, chatml, llama3, or a Jinja file
    #[arg(long, value_name = "NAME|FILE", visible_alias = "chat-template-file")]
    chat_template: Option<String>,
    /// Folder for KV caches saved by /slots/N?action=save
    #[arg(long, value_name = "DIR")]
    #[arg(alias = "LLAMA_ARG_SLOT_SAVE_PATH")]
    slot_save_path: Option<PathBuf>,
    /// Maximum number of saved slots per API key
    #[arg(long, value_name = "N", default_value_t = SlotLimits::default().files as u32)]
    slot_save_max: u32,
    /// Maximum MiB of the saved slots of each API key
    #[arg(long, value_name = "MIB", default_value_t = (SlotLimits::default().bytes >> 20) as u32)]
    slot_save_space: u32,
    /// Do not reuse cached prompts unless the request asks for it
    #[arg(long, alias = "no-enable-prefix-caching")]
    no_cache_prompt: bool,
    /// MiB of host memory for KV pages of preempted sequences, which are copied back later; pages that do not
    /// fit are recomputed
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    swap_space: u32,
}

/// Default number of sequences that run at a time.
const SLOTS: usize = 4;
/// The same inside a process, where many texts are asked for at a time. They share the KV cache of `SLOTS`.
const SLOTS_IN_PROCESS: usize = 16;
/// The same for a model that only makes embeddings, whose texts share steps.
const TEXTS: usize = 32;
/// Minimum rows per step whose logits are kept.
const SCORED_ROWS: usize = 32;

/// Groups of flags without a meaning inside a process: of listeners, their clients, and several models.
pub const OF_LISTENERS: [&str; 3] = ["ListenerArgs", "GrpcArgs", "ModelsArgs"];

impl ServeArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// An address that cannot be listened on, any error from loading, a failed engine.
    pub fn run(self) -> Result<(), CliError> {
        let single = self.model.file()?;
        let names = self.names();
        let has_single = single.is_some();
        let files = self.models.files(single.as_deref(), &names, &self.model.hub().access)?;
        // Without a list there is one model, which may be the demo model.
        let source = files.is_empty().then(|| Source::or_demo(single, "-m FILE")).transpose()?;
        if !has_single && !files.is_empty() && !names.is_empty() {
            return Err("--alias names the model of -m; use --models NAME=FILE to name others".into());
        }
        self.listener.log();
        let (options, companions) = (self.options()?, self.grpc.companions()?);
        if !files.is_empty() && (self.model.has_adapters() || !self.lora.is_empty()) {
            let why = "--lora, --lora-modules and --lora-dir are for one model: use -m without --models";
            return Err(why.into());
        }
        let folder = self.adapter_folder()?;
        let of_model = self.engine_options(folder.is_some())?;
        let options = ServeOptions { lora_folder: folder.clone(), ..options };
        let (has_keys, has_hosts) = (!options.keys.is_empty(), !options.hosts.is_empty());
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let listener = self.listener.bind()?;
        let server = match source {
            Some(source) => Server::start(listener, options, companions, self.only(source, of_model, folder)),
            None => {
                let sources = files.into_iter().map(|ModelFile { name, aliases, path }| {
                    let open = self.loader(Source::File(path.clone()), of_model.clone(), None, None);
                    ModelSource { aliases, ..with_file(&path, ModelSource::new(&name, open)) }
                });
                Server::start_many(listener, options, companions, sources.collect())
            }
        };
        let server = server.map_err(|err| err.to_string())?;
        let address = server.address();
        eprintln!("listening on {scheme}://{address}");
        server.endpoints().for_each(|endpoint| eprintln!("{} on {}", endpoint.service, endpoint.address));
        let warnings = server.endpoints().filter_map(|endpoint| endpoint.warning.as_ref());
        warnings.for_each(|warning| eprintln!("warning: {warning}"));
        if !address.ip().is_loopback() && !has_keys {
            eprintln!(
                "warning: anyone who can reach {address} can use this model; --api-key makes the server ask \
                 for a key"
            );
        }
        if !address.ip().is_loopback() && !has_hosts {
            let names = match has_keys {
                true => "any host name, because they need a key; --allowed-hosts limits the names",
                false => "IP addresses and private host names only; --allowed-hosts adds names",
            };
            eprintln!("note: requests may be for {names}");
        }
        let (stopper, was_told) = (server.stopper(), AtomicBool::new(false));
        on_ctrl_c(move || {
            if was_told.swap(true, Ordering::Relaxed) {
                std::process::exit(Interrupted::EXIT_CODE.into());
            }
            stopper.stop();
        })?;
        Ok(server.wait()?)
    }

    /// Loads the model for use inside this process.
    ///
    /// # Errors
    /// Any error from loading.
    pub fn in_process(mut self) -> Result<InProcess, CliError> {
        self.is_in_process = true;
        let source = match self.model.file()? {
            Some(path) => Source::File(path),
            None => Source::demo("-m FILE")?,
        };
        let folder = self.adapter_folder()?;
        let options = ServeOptions { on_hang: None, lora_folder: folder.clone(), ..self.options()? };
        let of_model = self.engine_options(folder.is_some())?;
        match InProcess::start(options, self.only(source, of_model, folder)) {
            Err(ServeError::Load(err)) => Err(err),
            started => Ok(started?),
        }
    }

    /// The folder of adapters that clients may load, with those that requests may name from the start.
    fn adapter_folder(&self) -> Result<Option<AdapterFolder>, CliError> {
        let model = self.model.clone();
        self.lora.folder(move || model.header())
    }

    /// Engine options with all adapters; without those that requests may name if they are in a folder's list.
    fn engine_options(&self, are_listed: bool) -> Result<EngineOptions, CliError> {
        let mut options = self.model.options(self.context.n_ctx())?;
        if !are_listed {
            options.adapters.extend(self.lora.adapters(|| self.model.header())?);
        }
        Ok(options)
    }

    /// The names of `--alias`, each once.
    fn names(&self) -> Vec<String> {
        let (mut names, mut known) = (list(&self.alias), BTreeSet::new());
        names.retain(|name| known.insert(name.clone()));
        names
    }

    /// The only model of a server. With a folder of adapters it is loaded again when its list changes.
    fn only(&self, source: Source, options: EngineOptions, folder: Option<AdapterFolder>) -> ModelSource {
        let is_once = folder.is_none();
        let open = self.loader(source.clone(), options, Some(self.context.fit.clone()), folder);
        let of_name = move |name: &str| match is_once {
            true => ModelSource::once(name, move || (open()?.load)()),
            false => ModelSource::new(name, open),
        };
        let aliases = self.names().into_iter().skip(1).collect();
        let model = match source {
            Source::File(path) => {
                let name = path.file_stem().map_or("model".into(), |stem| stem.to_string_lossy());
                with_file(&path, of_name(&name))
            }
            Source::Demo(bytes) => {
                let parts = [demo::NAME.as_bytes(), env!("CARGO_PKG_VERSION").as_bytes()];
                let digest = ModelSource::digest(parts.into_iter().chain([&bytes.len().to_le_bytes()[..]]));
                ModelSource { digest, ..of_name(demo::NAME) }
            }
        };
        ModelSource { aliases, ..model }
    }

    /// A function that opens a model and then loads it. Several models are not fitted to the free memory:
    /// others are unloaded when one needs room. With a folder of adapters, the model is loaded with those of
    /// its list, and with the options that were chosen when it was loaded first.
    fn loader(
        &self,
        source: Source,
        options: EngineOptions,
        fit: Option<FitArgs>,
        folder: Option<AdapterFolder>,
    ) -> impl Fn() -> Result<Opened, CliError> + Send + Sync + use<> {
        let (model, sampling, speculation) =
            (self.model.clone(), self.sampling.clone(), self.speculation.clone());
        let mmproj = self.mmproj.clone();
        let parallel = self.parallel.map(usize::from);
        let n_seqs = parallel.unwrap_or(SLOTS);
        let options = EngineOptions {
            n_seqs,
            // Prompts are scored in steps of that many rows: /v1/completions with echo and logprobs.
            outputs: n_seqs.max(SCORED_ROWS),
            pooling: if self.reranking { Some(Pooling::Rank) } else { self.pooling.pooling },
            kv_positions: self.kv_positions,
            ..options
        };
        let widens = self.is_in_process && parallel.is_none() && self.kv_positions.is_none();
        let of_flags = options.adapters.clone();
        let chosen: Mutex<Option<EngineOptions>> = Mutex::new(None);
        move || {
            let listed = |options: &EngineOptions| {
                let named = folder.iter().flat_map(AdapterFolder::named);
                let adapters = options.adapters.iter().cloned().chain(named).collect();
                EngineOptions { adapters, ..options.clone() }
            };
            let before = chosen.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (opened, drafting, options) = match before {
                Some(before) => {
                    let options = listed(&before);
                    let drafting = speculation.load(&model, &options)?;
                    (model.open(&source, &options)?, drafting, options)
                }
                None => {
                    let first = speculation.with_drafts(listed(&options))?;
                    // A draft model has as many sequences.
                    let widens = widens && first.drafts == 0;
                    let drafting = speculation.load(&model, &first)?;
                    let mmproj = mmproj.mmproj(&source)?;
                    let opened = model.open(&source, &first)?;
                    let first = opened.with_mmproj(first, mmproj);
                    let first = match opened.is_encoder(&first) {
                        true => opened.for_texts(first, parallel.unwrap_or(TEXTS))?,
                        false => first,
                    };
                    let (opened, first) = match &fit {
                        Some(fit) => opened.fitted(first, fit)?,
                        None => (opened, first),
                    };
                    let first = match widens && !opened.is_encoder(&first) {
                        true => opened.shared(first, SLOTS_IN_PROCESS)?,
                        false => first,
                    };
                    (opened, drafting, first)
                }
            };
            if folder.is_some() {
                // The list of the folder may have changed by then.
                let again = EngineOptions { adapters: of_flags.clone(), ..options.clone() };
                *chosen.lock().unwrap_or_else(PoisonError::into_inner) = Some(again);
            }
            let bytes = opened.bytes(&options) + drafting.bytes();
            let sampling = sampling.clone();
            let load = move || {
                let engine = opened.load(&options)?;
                engine.tokenizer()?.notices().iter().for_each(|notice| names::note("note", notice));
                let sampler = sampling.options(&engine)?;
                let speculation = drafting.speculation(&engine)?;
                Ok(Loaded { engine, sampler, speculation })
            };
            Ok(Opened { bytes, load: Box::new(load) })
        }
    }

    fn options(&self) -> Result<ServeOptions, CliError> {
        if let Some(folder) = self.slot_save_path.as_deref().filter(|folder| !folder.is_dir()) {
            return Err(format!("--slot-save-path {}: there is no such folder", folder.display()).into());
        }
        Ok(ServeOptions {
            alias: self.names().into_iter().next(),
            step_time: self.step_timeout.map(Duration::from_secs),
            // A hung device may also block an orderly exit.
            on_hang: Some(|| std::process::abort()),
            slot_folder: self.slot_save_path.clone(),
            slot_limits: SlotLimits {
                files: self.slot_save_max as usize,
                bytes: u64::from(self.slot_save_space) << 20,
            },
            template: self.chat_template.as_deref().map(template_source).transpose()?,
            max_tokens: usize::try_from(self.n_predict).ok(),
            embd_normalize: self.pooling.embd_normalize,
            cache_prompt: !self.no_cache_prompt,
            swap_bytes: (self.swap_space as usize) << 20,
            models_max: self.models.max(),
            models_bytes: self.models.bytes(),
            ..self.listener.options()?
        })
    }
}

/// The model with the size of its file, and a digest of the file's path, size and time of change.
fn with_file(path: &Path, model: ModelSource) -> ModelSource {
    let Ok(file) = path.metadata() else { return model };
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let time = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let (size, time) = (file.len().to_le_bytes(), time.as_nanos().to_le_bytes());
    let digest = ModelSource::digest([path.as_os_str().as_encoded_bytes(), &size, &time]);
    ModelSource { file_bytes: file.len(), digest, ..model }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_follows_path_size_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let digest = |name: &str| {
            with_file(&folder.path().join(name), ModelSource::new("a", || Err("not opened".into()))).digest
        };
        let no_file = digest("a.gguf");
        std::fs::write(folder.path().join("a.gguf"), "1").unwrap();
        std::fs::write(folder.path().join("b.gguf"), "1").unwrap();
        let first = digest("a.gguf");
        assert!(first == digest("a.gguf") && first != no_file && first != digest("b.gguf"));
        std::fs::write(folder.path().join("a.gguf"), "12").unwrap();
        assert!(first != digest("a.gguf") && first.len() == 64);
    }
}
