//! `sterna plan`: predicts the memory of a model, and what fits, without loading it.

mod json;
mod table;

use std::io::{self, Write};

use clap::Args;
use ggml_types::{KvCodec, kv};

use super::fit_args::wish;
use super::mmproj_args::MmprojArgs;
use super::model_args::LoadArgs;
use super::source::Source;
use super::speculation_args::MtpArgs;
use super::units::{count, memory_size};
use super::{CliError, names};
use crate::backend::{
    self, Backend, BackendError, CardOnPaper, DeviceMemory, DeviceOptions, GpuLayers, OptionId, Resident,
};
use crate::engine::fit::{self, CODECS, Choice, Codecs, Fit, Room};
use crate::engine::speed::{Bound, HostRates, SpeedWithHost};
use crate::engine::{self, EngineOptions, Error};
use crate::gguf::Gguf;
use crate::model::{self, Hyper};
use crate::program::PAGE;

/// Shows the memory that a model needs, part by part, and the contexts that fit a device.
///
/// Only the header of the file is read, also of a model of the hub or at a URL, and nothing is allocated.
/// With --vram or --card, the device is an NVIDIA GPU that need not be in this machine. Weights, KV cache and
/// buffers are counted by the code that allocates them; the driver's own memory is an estimate, and marked as
/// one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna plan -m model.gguf
  sterna plan -m model.gguf --vram 16G
  sterna plan -m model.gguf --card 'rtx 4090' -c 65536 -ctk q8_0 -ctv q8_0 -np 4
  sterna plan -m model.gguf --vram 16G --json | jq .best")]
pub struct PlanArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Context length [default: the trained one, at most 4096]
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = count)]
    ctx_size: usize,
    /// Number of sequences that run at a time (also -np)
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    #[command(flatten)]
    drafts: MtpArgs,
    #[command(flatten)]
    mmproj: MmprojArgs,
    /// Plan for an NVIDIA GPU with this much memory, such as 16G
    #[arg(long, value_name = "SIZE", value_parser = memory_size, conflicts_with = "device")]
    vram: Option<u64>,
    /// Plan for this NVIDIA GPU, given by words of its name, such as 'rtx 5080' [default: one with --vram]
    #[arg(long, value_name = "NAME", conflicts_with = "device")]
    card: Option<String>,
    /// MiB to leave free on each device [default: on a GPU 3 % of the free memory, at least 512]
    #[arg(long, value_name = "MIB")]
    fit_target: Option<u32>,
    /// Write JSON
    #[arg(long)]
    json: bool,
}

/// The report.
struct Shown {
    source: String,
    file_bytes: u64,
    hyper: Hyper,
    /// Requested options, with the default context filled in.
    options: EngineOptions,
    /// Value of --op-offload-min-batch, if it is a number.
    min_batch: Option<usize>,
    backend: &'static str,
    devices: Vec<(DeviceMemory, Room)>,
    /// Upper bound of the speed, if one GPU has all layers and its rates are known.
    bound: Option<Bound>,
    /// The same together with this CPU, if some layers are offloaded.
    with_cpu: Option<SpeedWithHost>,
    /// The same plan with layers offloaded, if not all of them fit.
    streamed: Option<Streamed>,
    /// Cache types of keys and values, one pair per column.
    codecs: Vec<Codecs>,
    /// One row per context, with one cell per pair of cache types.
    rows: Vec<(usize, Vec<Option<Cell>>)>,
    /// Longest context per pair, `None` if none fits; empty if the free memory is unknown.
    longest: Vec<Option<usize>>,
    /// Longest context that was tried.
    most_ctx: usize,
    best: Option<Choice>,
}

/// A device with some layers offloaded.
struct Streamed {
    device: DeviceMemory,
    room: Room,
    bound: Option<Bound>,
    with_cpu: Option<SpeedWithHost>,
}

/// Memory of one context with one pair of cache types.
#[derive(Clone, Copy)]
struct Cell {
    /// Bytes on all devices.
    bytes: u64,
    /// True if it fits; `None` if that is unknown.
    fits: Option<bool>,
}

impl Shown {
    /// True if the options fit; `None` if the free memory is unknown.
    fn fits(&self) -> Option<bool> {
        all_fit(self.devices.iter().map(|(_, room)| *room))
    }
}

/// True if everything fits; `None` if that is unknown.
fn all_fit(rooms: impl Iterator<Item = Room>) -> Option<bool> {
    rooms.map(|room| room.fits()).try_fold(true, |all, fits| fits.map(|fits| all && fits))
}

/// Name of a pair of cache types: one name if both are the same.
fn pair_name(codecs: Codecs) -> String {
    let [k, v] = codecs.map(KvCodec::name);
    if k == v { k.to_owned() } else { format!("{k}/{v}") }
}

impl PlanArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A file that is not a model; an unknown backend or GPU; missing kernels; stdout that cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let (source, gguf, local) = self.model()?;
        let mmproj = local.map(|local| self.mmproj.mmproj(&local)).transpose()?.flatten();
        let (options, is_found) = match mmproj {
            Some((mmproj, is_found)) => (EngineOptions { mmproj: Some(mmproj), ..self.options()? }, is_found),
            None => (self.options()?, false),
        };
        let without = EngineOptions { mmproj: None, ..options.clone() };
        let backend = self.backend(&gguf, if is_found { &without } else { &options })?;
        // A file that was only found is left out if the backend cannot run the model with images.
        let options = match engine::memory(&gguf, &options, &*backend) {
            Err(err @ Error::Backend(BackendError::Missing { .. })) if is_found => {
                names::note("note", &format!("the mmproj file is not counted: {err}"));
                without
            }
            _ => options,
        };
        let mut shown = self.plan(&gguf, source, options, &*backend)?;
        if shown.fits() == Some(false) && shown.devices.len() == 1 {
            shown.streamed = self.streamed(&gguf, &shown.options, backend.name())?;
        }
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &json::table(&shown))?;
            writeln!(out)?;
        } else {
            table::write(&shown, &mut out)?;
        }
        Ok(out.flush()?)
    }

    fn options(&self) -> Result<EngineOptions, CliError> {
        let n_ctx = (self.ctx_size > 0).then_some(self.ctx_size);
        let name = self.backend_name();
        let device = match self.on_paper() {
            None => self.load.device(None)?,
            Some(_) if ["auto", "cuda"].contains(&name) => self.options_on("cuda")?,
            Some(_) => {
                return Err(
                    format!("--vram and --card plan for an NVIDIA GPU: leave out --backend {name}").into()
                );
            }
        };
        let options = self.load.options_on(device, n_ctx, None)?;
        self.drafts.with_drafts(EngineOptions { n_seqs: self.parallel.into(), ..options })
    }

    /// The GPU to plan for, if it is not the one of this machine.
    fn on_paper(&self) -> Option<CardOnPaper> {
        let card = CardOnPaper { card: self.card.clone(), memory_bytes: self.vram };
        (card != CardOnPaper::default()).then_some(card)
    }

    /// Name of the backend. A GPU to plan for is never the CPU, even if this machine has nothing else.
    fn backend_name(&self) -> &str {
        if self.on_paper().is_some() && self.load.backend == "auto" { "auto" } else { self.load.backend() }
    }

    /// A backend with the given options.
    fn options_on(&self, backend: &str) -> Result<DeviceOptions, CliError> {
        let DeviceOptions { backend, .. } = backend.parse::<DeviceOptions>()?;
        Ok(DeviceOptions { backend, ..self.load.options_of(self.backend_name())? })
    }

    /// A backend with the given options and a number of offloaded layers, unless the user set it, or the
    /// backend does not offload layers.
    fn with_layers(
        &self,
        backend: &str,
        gpu_layers: GpuLayers,
        resident_layers: Resident,
    ) -> Result<Option<DeviceOptions>, CliError> {
        let device = self.options_on(backend)?;
        if device.has(OptionId::GpuLayers) && device.gpu_layers.is_none() {
            return Ok(Some(DeviceOptions { gpu_layers: Some(gpu_layers), ..device }));
        }
        if device.has(OptionId::ResidentLayers) && device.resident_layers.is_none() {
            return Ok(Some(DeviceOptions { resident_layers: Some(resident_layers), ..device }));
        }
        Ok(None)
    }

    /// Name and header of the model, and the model itself if it is on this machine. Of a remote model, only
    /// the header is downloaded.
    fn model(&self) -> Result<(String, Gguf, Option<Source>), CliError> {
        let open = self.load.file.open_options();
        if let Some((name, headers)) = self.load.hub.headers(self.load.model.as_deref())? {
            return Ok((name, Gguf::from_headers(&headers, open)?, None));
        }
        let source = self.load.source()?;
        Ok((source.name(), source.open_header(open)?, Some(source)))
    }

    /// Devices of the plan: a described GPU, the backend that was named, or the first that can run the model.
    fn backend(&self, gguf: &Gguf, options: &EngineOptions) -> Result<Box<dyn Backend>, CliError> {
        let (device, threads) = (&options.device, options.n_threads());
        if let Some(card) = self.on_paper() {
            return Ok(device.on_paper(&card)?);
        }
        // The CPU streams layers by default, but a plan should show first what does not fit.
        let processor = || match self.with_layers("cpu", GpuLayers::All, Resident::All)? {
            Some(device) => Ok(device.open(threads)?),
            None => Ok::<_, CliError>(device.open(threads)?),
        };
        match device.name() {
            "auto" => {}
            "cpu" => return processor(),
            _ => return Ok(device.open(threads)?),
        }
        let is_missing = |backend: &dyn Backend| {
            let planned = engine::memory(gguf, options, backend);
            matches!(planned, Err(Error::Backend(BackendError::Missing { .. })))
        };
        let opened = backend::auto(threads).into_iter().flatten().find(|backend| !is_missing(&**backend));
        match opened {
            Some(backend) if backend.name() != "cpu" => Ok(backend),
            _ => processor(),
        }
    }

    /// A plan with as many layers on the device as fit and the others offloaded; `None` if that does not fit,
    /// or is the same as without offloading.
    fn streamed(
        &self,
        gguf: &Gguf,
        options: &EngineOptions,
        backend: &'static str,
    ) -> Result<Option<Streamed>, CliError> {
        let device = self.with_layers(backend, GpuLayers::Auto, Resident::Auto)?;
        let Some(device) = device else { return Ok(None) };
        let backend = match self.on_paper() {
            Some(card) => device.on_paper(&card)?,
            None => device.open(options.n_threads())?,
        };
        let margin_bytes = self.fit_target.map(|mib| u64::from(mib) << 20);
        let [device] = <[_; 1]>::try_from(engine::memory(gguf, options, &*backend)?).expect("one card");
        let room = Room::on(&device, margin_bytes);
        if device.streamed_layers == 0 || room.short_bytes() > room.margin_bytes {
            return Ok(None);
        }
        let bound = bound(gguf, options, &device)?;
        let with_cpu = with_cpu(gguf, options, &device)?;
        Ok(Some(Streamed { device, room, bound, with_cpu }))
    }

    /// Columns of the table: the user's choice, and all compared cache types except f32.
    fn pairs(&self, options: &EngineOptions) -> Vec<Codecs> {
        let own = [options.cache_type_k, options.cache_type_v];
        let mut pairs = if self.load.cache.is_given() { vec![own] } else { Vec::new() };
        let all = kv::REGISTRY.iter().filter(|codec| codec.is_compared() && codec.name() != "f32");
        for pair in all.map(|codec| [*codec; 2]) {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    fn plan(
        &self,
        gguf: &Gguf,
        source: String,
        options: EngineOptions,
        backend: &dyn Backend,
    ) -> Result<Shown, CliError> {
        let margin_bytes = self.fit_target.map(|mib| u64::from(mib) << 20);
        let hyper = model::hyper(gguf)?;
        let trained = hyper.n_ctx_train;
        let n_ctx = options.n_ctx.unwrap_or(trained.min(EngineOptions::DEFAULT_CTX));
        let at = EngineOptions { n_ctx: Some(n_ctx), ..options.clone() };
        let with_room = |device: DeviceMemory| (device.clone(), Room::on(&device, margin_bytes));
        let devices: Vec<_> = engine::memory(gguf, &at, backend)?.into_iter().map(with_room).collect();

        let (bound, with_cpu) = match &devices[..] {
            [(device, _)] => (bound(gguf, &at, device)?, with_cpu(gguf, &at, device)?),
            _ => (None, None),
        };
        let most_ctx = trained.max(n_ctx);
        let cell = |n_ctx: usize, codecs: Codecs| -> Result<Option<Cell>, Error> {
            let options = EngineOptions { n_ctx: Some(n_ctx), ..options.with_cache(codecs) };
            let devices = match engine::memory(gguf, &options, backend) {
                Ok(devices) => devices,
                Err(err) if err.is_of_cache_type() => return Ok(None),
                Err(err) => return Err(err),
            };
            let rooms: Vec<_> = devices.iter().map(|device| Room::on(device, margin_bytes)).collect();
            let bytes = rooms.iter().fold(0, |sum: u64, room| sum.saturating_add(room.need_bytes));
            Ok(Some(Cell { bytes, fits: all_fit(rooms.into_iter()) }))
        };
        let codecs = self.pairs(&options);
        let mut rows = Vec::new();
        for n_ctx in contexts(n_ctx, most_ctx) {
            let cells = codecs.iter().map(|pair| cell(n_ctx, *pair)).collect::<Result<_, _>>()?;
            rows.push((n_ctx, cells));
        }
        let is_known = devices.iter().all(|(device, _)| device.free_bytes.is_some());
        let longest_of = |pair: &Codecs| {
            let codecs = vec![*pair];
            let fit = Fit { most_ctx, least_ctx: PAGE, step: PAGE, codecs, margin_bytes };
            Ok::<_, Error>(fit::fit(gguf, &options, backend, &fit)?.map(|choice| choice.n_ctx))
        };
        let pairs = if is_known { codecs.as_slice() } else { &[] };
        let longest = pairs.iter().map(longest_of).collect::<Result<_, _>>()?;
        let best = match is_known {
            true => self.best(gguf, &options, backend, trained, margin_bytes)?,
            false => None,
        };
        Ok(Shown {
            source,
            file_bytes: gguf.file_bytes().sum(),
            hyper,
            options: at,
            min_batch: self.load.device.min_batch(),
            backend: backend.name(),
            devices,
            bound,
            with_cpu,
            streamed: None,
            codecs,
            rows,
            longest,
            most_ctx,
            best,
        })
    }

    /// The longest context with the first of the usual cache types that leaves room for 4096 positions, or
    /// else with any of them; the user's choices are kept.
    fn best(
        &self,
        gguf: &Gguf,
        options: &EngineOptions,
        backend: &dyn Backend,
        trained: usize,
        margin_bytes: Option<u64>,
    ) -> Result<Option<Choice>, Error> {
        let codecs: Vec<_> = match self.load.cache.is_given() {
            true => vec![[options.cache_type_k, options.cache_type_v]],
            false => CODECS.iter().map(|codec| [*codec; 2]).collect(),
        };
        for least in [EngineOptions::DEFAULT_CTX.min(trained), PAGE] {
            let fit = Fit { margin_bytes, ..wish(options, trained, least, codecs.clone()) };
            if let Some(choice) = fit::fit(gguf, options, backend, &fit)? {
                return Ok(Some(choice));
            }
        }
        Ok(None)
    }
}

/// Upper bound of the speed on a GPU whose rates are known.
fn bound(gguf: &Gguf, options: &EngineOptions, device: &DeviceMemory) -> Result<Option<Bound>, Error> {
    let program = engine::program(gguf, options)?;
    Ok(Bound::of(&program, options.n_ctx.unwrap_or_default(), device))
}

/// The same if this CPU, which is measured, computes the layers that do not fit on the GPU.
fn with_cpu(
    gguf: &Gguf,
    options: &EngineOptions,
    device: &DeviceMemory,
) -> Result<Option<SpeedWithHost>, CliError> {
    if device.rates.is_none() || device.shared_bytes == 0 {
        return Ok(None);
    }
    let program = engine::program(gguf, options)?;
    let mut processor = backend::open("cpu", options.n_threads())?;
    let rates = HostRates::measure(&mut *processor, &program)?;
    Ok(SpeedWithHost::of(&program, options.n_ctx.unwrap_or_default(), device, rates))
}

/// Contexts of the table: the requested one, and powers of two up to the maximum.
fn contexts(asked: usize, most: usize) -> Vec<usize> {
    let powers = (10..).map(|power| 1_usize << power).take_while(|n| *n < most).filter(|n| *n >= 2048);
    let mut all: Vec<_> = powers.chain([asked, most]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_context_that_was_asked_for_and_the_trained_one() {
        assert_eq!(contexts(4096, 8192), [2048, 4096, 8192]);
        assert_eq!(contexts(5000, 40_960), [2048, 4096, 5000, 8192, 16_384, 32_768, 40_960]);
        assert_eq!(contexts(512, 512), [512]);
        assert_eq!(contexts(16_384, 16_384), [2048, 4096, 8192, 16_384]);
    }
}
