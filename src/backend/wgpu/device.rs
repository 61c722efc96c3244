//! Devices through wgpu: the list of adapters, an opened device, its memory, and its errors.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wgpu::{
    Adapter, AdapterInfo, BindGroupLayout, Buffer, BufferUsages, DeviceType, Features, SubmissionIndex,
};

use super::NAME;
use super::alloc::{Allocator, BufferPart, buffer_bytes, sum};
use super::cache::DiskCache;
use super::shader::{self, Binding, Caps, Kernel, LANES};
use super::trusted;
use super::wait::{self, now};
use crate::{BackendError, OptionId};

/// Largest size of a single write or read.
const PIECE_BYTES: usize = 16 << 20;

/// Intended length of a submission in milliseconds. Windows resets a GPU that does not finish one in two
/// seconds, and a display that shares the GPU waits for it.
pub const SUBMISSION_MS: f64 = 50.0;

/// Options of a device. Options that are not set are left to the device.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Number in [`list`], or a part of the name.
    pub device: Option<String>,
    /// Bytes of the largest part of a weight, if smaller than the largest buffer. Tests use it to split
    /// weights.
    pub max_part_bytes: Option<u64>,
    /// Bytes of the largest buffer, overriding the device's limit. Only for tests, like the next two.
    pub max_buffer_bytes: Option<u64>,
    /// Bytes of all buffers together. Allocations beyond it fail as on a full device.
    pub memory_bytes: Option<u64>,
    /// Upper bounds on limits of the device, by their names in [`NEEDED`].
    pub at_most: Vec<(&'static str, u32)>,
    /// False to treat the device as one without timestamps.
    pub timestamps: Option<bool>,
    /// True to reduce with subgroup operations, false to use only workgroup memory.
    pub subgroups: Option<bool>,
    /// True to compute int8 products in packed integers, false in floats.
    pub packed: Option<bool>,
    /// Threads that share a row of weights, if fewer than usual, so that subgroups are divided on devices
    /// with small ones. Only for tests, like the next one.
    pub lanes: Option<u32>,
    /// Intended milliseconds of a submission.
    pub submission_ms: Option<f64>,
    /// True to time stages.
    pub profile: bool,
    /// Folder that keeps compiled kernels for the next run, if wgpu supports it; `None` for no cache.
    pub cache_dir: Option<PathBuf>,
}

/// Limits that kernels need: name in messages, and smallest value.
pub const NEEDED: [(&str, u32); 3] =
    [("storage buffers", 8), ("threads of a workgroup", 256), ("bytes of workgroup memory", 16 << 10)];

/// Advice in errors about an unusable device.
const WAY_OUT: [&str; 3] = ["; choose another with ", OptionId::Device.path(), ", or use the cpu backend"];

/// An opened device. Cheap to share; the tests run all their backends on one.
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: AdapterInfo,
    pub(super) caps: Caps,
    /// Intended milliseconds of a submission.
    pub(super) submission_ms: f64,
    /// Bytes of the largest storage buffer.
    pub(super) max_buffer_bytes: u64,
    /// Bytes of the largest part of a weight.
    pub(super) max_part_bytes: u64,
    /// Bytes that all buffers may take, if limited.
    memory_bytes: Option<u64>,
    taken_bytes: AtomicU64,
    /// Bytes uploaded since the last wait.
    queued_bytes: AtomicUsize,
    /// Alignment of parameters in their buffer, in bytes.
    pub(super) params_align: u64,
    /// Nanoseconds per timestamp unit, if stages are timed.
    pub(super) tick: Option<f32>,
    /// First failure outside a call that could return it.
    failure: Arc<Mutex<Option<String>>>,
    pipelines: Mutex<HashMap<Kernel, wgpu::ComputePipeline>>,
    cache: Option<DiskCache>,
    layouts: Mutex<HashMap<&'static [Binding], BindGroupLayout>>,
    /// Buffer to read data back to the host.
    staging: Mutex<Option<Buffer>>,
}

fn adapters() -> Vec<Adapter> {
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = wgpu::Backends::VULKAN
        | wgpu::Backends::METAL
        | wgpu::Backends::DX12
        | wgpu::Backends::BROWSER_WEBGPU;
    desc.flags = wgpu::InstanceFlags::empty();
    now(wgpu::Instance::new(desc).enumerate_adapters(wgpu::Backends::all()))
}

/// True if there is an adapter that is not a software implementation.
///
/// Linux has a device file for every GPU. Without one, no driver is loaded, which would take time.
pub fn has_gpu() -> bool {
    let files = ["/dev/dri", "/dev/nvidiactl", "/dev/dxg"];
    let possible = !cfg!(target_os = "linux") || files.iter().any(|file| Path::new(file).exists());
    possible && adapters().iter().any(|adapter| adapter.get_info().device_type != DeviceType::Cpu)
}

/// Every adapter with its number, as text.
pub fn list() -> Vec<Result<String, BackendError>> {
    let adapters = adapters();
    if adapters.is_empty() {
        return vec![Err(nothing())];
    }
    let line = |(i, adapter)| Ok(format!("{i}: {}; wgpu does not report free memory", description(adapter)));
    adapters.iter().enumerate().map(line).collect()
}

/// Description of an adapter: name, kind, driver, and the relevant features and limits.
fn description(adapter: &Adapter) -> String {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let has = |feature, word| if features.contains(feature) { word } else { "" };
    let mut known: Vec<String> =
        [has(Features::SHADER_F16, "f16"), has(Features::TIMESTAMP_QUERY, "timestamps")]
            .iter()
            .filter(|word| !word.is_empty())
            .map(|word| (*word).to_owned())
            .collect();
    if features.contains(Features::SUBGROUP) {
        known.insert(0, format!("subgroups of {} to {}", info.subgroup_min_size, info.subgroup_max_size));
    }
    let caps = Caps::of(adapter, &Options::default());
    known.push(format!("int8 products of {}", if caps.packed { "packed integers" } else { "floats" }));
    format!(
        "{}, buffers of {} MiB, {} KiB of workgroup memory; {}",
        short(&info),
        max_buffer_bytes(&limits) >> 20,
        limits.max_compute_workgroup_storage_size >> 10,
        known.join(", ")
    )
}

fn short(info: &AdapterInfo) -> String {
    let kind = match info.device_type {
        DeviceType::DiscreteGpu => "discrete GPU",
        DeviceType::IntegratedGpu => "integrated GPU",
        DeviceType::VirtualGpu => "virtual GPU",
        DeviceType::Cpu => "software on the CPU",
        DeviceType::Other => "device of unknown kind",
    };
    let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
    let driver = if driver.trim().is_empty() { String::new() } else { format!(", {}", driver.trim()) };
    format!("{} ({kind}, {:?}{driver})", info.name, info.backend)
}

fn max_buffer_bytes(limits: &wgpu::Limits) -> u64 {
    limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)
}

/// The adapter selected by number or name; else the fastest kind of adapter, software last.
fn choose(device: Option<&str>) -> Result<Adapter, BackendError> {
    let mut adapters = adapters();
    let Some(word) = device else {
        return adapters.into_iter().min_by_key(rank).ok_or_else(nothing);
    };
    let names: Vec<String> = adapters.iter().map(|adapter| adapter.get_info().name).collect();
    let of_name = |name: &String| name.to_lowercase().contains(&word.to_lowercase());
    let at = word.parse().ok().or_else(|| names.iter().position(of_name)).filter(|at| *at < names.len());
    at.map(|at| adapters.swap_remove(at)).ok_or_else(|| {
        let all: Vec<_> = names.iter().enumerate().map(|(i, name)| format!("{i}: {name}")).collect();
        let detail = format!("no device `{word}`; this machine has {}", all.join(", "));
        BackendError::option(NAME, OptionId::Device, detail)
    })
}

/// Rank of an adapter's kind, the fastest first.
fn rank(adapter: &Adapter) -> u32 {
    match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

fn nothing() -> BackendError {
    error("looking for a device", "no Vulkan, Metal or DirectX 12 driver offers one".to_owned())
}

impl Caps {
    fn of(adapter: &Adapter, options: &Options) -> Self {
        let info = adapter.get_info();
        // Threads that share a row of weights must be in one subgroup.
        let subgroups = adapter.features().contains(Features::SUBGROUP) && info.subgroup_min_size >= LANES;
        // Apple's GPUs have no instruction for four packed products.
        let packed = info.backend != wgpu::Backend::Metal;
        Self {
            subgroups: subgroups && options.subgroups.unwrap_or(true),
            packed: options.packed.unwrap_or(packed),
            browser: info.backend == wgpu::Backend::BrowserWebGpu,
            lanes: options.lanes.unwrap_or(LANES),
        }
    }
}

impl Allocator for &Gpu {
    type Buffer = Buffer;

    fn buffer(
        &mut self,
        usage: BufferUsages,
        _: &dyn Display,
        parts: &[BufferPart<'_>],
    ) -> Result<Buffer, BackendError> {
        Gpu::buffer(self, sum(parts), usage)
    }
}

impl Gpu {
    /// Opens a device.
    ///
    /// # Errors
    /// [`BackendError::Device`] if no device is found, it does not start, or it lacks a limit that the
    /// kernels need.
    pub fn open(options: &Options) -> Result<Self, BackendError> {
        let adapter = choose(options.device.as_deref())?;
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let has = [
            limits.max_storage_buffers_per_shader_stage,
            limits.max_compute_invocations_per_workgroup,
            limits.max_compute_workgroup_storage_size,
        ];
        for ((limit, needs), has) in NEEDED.into_iter().zip(has) {
            let capped = options.at_most.iter().filter(|(name, _)| *name == limit).map(|(_, most)| *most);
            let has = capped.fold(has, u32::min);
            if has < needs {
                let detail = format!("{} has {has} {limit}, and {needs} are needed", short(&info));
                return Err(error("opening a device", detail).avoided_by(WAY_OUT));
            }
        }
        let caps = Caps::of(&adapter, options);
        let timestamps =
            options.timestamps.unwrap_or(true) && adapter.features().contains(Features::TIMESTAMP_QUERY);
        if options.profile && !timestamps {
            let detail = format!("{} has no timestamps", short(&info));
            return Err(BackendError::option(NAME, OptionId::Profile, detail).avoided_by(WAY_OUT));
        }
        let mut features = Features::empty();
        features.set(Features::SUBGROUP, caps.subgroups);
        features.set(Features::TIMESTAMP_QUERY, options.profile);
        features |= adapter.features() & Features::PIPELINE_CACHE;
        let desc = wgpu::DeviceDescriptor {
            label: Some("sterna"),
            required_features: features,
            required_limits: limits.clone(),
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) =
            now(adapter.request_device(&desc)).map_err(|err| error("opening a device", err.to_string()))?;
        let failure = Arc::new(Mutex::new(None));
        let note = |failure: &Arc<Mutex<Option<String>>>| {
            let failure = Arc::clone(failure);
            // The first error is the cause.
            move |what: String| {
                locked(&failure).get_or_insert(what);
            }
        };
        let (lost, uncaptured) = (note(&failure), note(&failure));
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                lost(format!("the device was lost: {message}"));
            }
        });
        device.on_uncaptured_error(Arc::new(move |err: wgpu::Error| uncaptured(err.to_string())));
        let most = options.max_buffer_bytes.unwrap_or_else(|| max_buffer_bytes(&limits));
        let cache = options.cache_dir.as_deref().and_then(|dir| DiskCache::open(&device, &info, dir));
        Ok(Self {
            cache,
            tick: options.profile.then(|| queue.get_timestamp_period()),
            device,
            queue,
            info,
            caps,
            submission_ms: options.submission_ms.unwrap_or(SUBMISSION_MS),
            max_buffer_bytes: most,
            max_part_bytes: options.max_part_bytes.map_or(most, |bytes| bytes.min(most)),
            memory_bytes: options.memory_bytes,
            taken_bytes: AtomicU64::new(0),
            queued_bytes: AtomicUsize::new(0),
            params_align: u64::from(limits.min_uniform_buffer_offset_alignment),
            failure,
            pipelines: Mutex::default(),
            layouts: Mutex::default(),
            staging: Mutex::default(),
        })
    }

    /// Short description of the device.
    pub(super) fn description(&self) -> String {
        short(&self.info)
    }

    /// Adapter, driver, kernel variant and a hash of the kernel sources: a passed self-test remains valid
    /// while these are the same. Software devices are tested as well, because they run models on machines
    /// without a GPU.
    pub(super) fn self_test_key(&self) -> String {
        let AdapterInfo { vendor, device, .. } = self.info;
        format!("{} {vendor:04x}:{device:04x}, {:?}, {}", short(&self.info), self.caps, shader::id())
    }

    /// True if the device is a software implementation.
    pub(super) fn is_software(&self) -> bool {
        self.info.device_type == DeviceType::Cpu
    }

    /// Free bytes, if known: wgpu does not report them.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.memory_bytes.map(|most| most.saturating_sub(self.taken_bytes.load(Ordering::Relaxed)))
    }

    /// Allocates a zeroed buffer of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if less is known to be free, [`BackendError::Device`] if the driver
    /// refuses.
    pub(super) fn buffer(&self, bytes: u64, usage: BufferUsages) -> Result<Buffer, BackendError> {
        let size = buffer_bytes(bytes);
        if let Some(free) = self.free_bytes().filter(|free| size > *free) {
            return Err(BackendError::OutOfMemory { backend: NAME, need: size, free });
        }
        let (memory, valid) = (
            self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory),
            self.device.push_error_scope(wgpu::ErrorFilter::Validation),
        );
        let desc = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&desc);
        let (valid, memory) = (now(valid.pop()), now(memory.pop()));
        match valid.or(memory) {
            Some(err) => {
                let detail =
                    format!("{size} bytes: {err}; a shorter context or a KV cache of q8_0 takes less memory");
                Err(error("allocating memory", detail))
            }
            None => {
                self.taken_bytes.fetch_add(size, Ordering::Relaxed);
                Ok(buffer)
            }
        }
    }

    /// Stops counting buffers of these bytes, which are no longer used.
    pub(super) fn forget(&self, bytes: u64) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Allocates `n` timestamps.
    ///
    /// # Errors
    /// [`BackendError::Device`] if `n` exceeds wgpu's limit.
    pub(super) fn timestamps(&self, n: u32) -> Result<wgpu::QuerySet, BackendError> {
        if n > wgpu::QUERY_SET_MAX_QUERIES {
            let most = wgpu::QUERY_SET_MAX_QUERIES;
            return Err(error("making timestamps", format!("want at most {most}, got {n}")));
        }
        Ok(self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: n,
        }))
    }

    /// Queues a write. The length of `bytes` is a multiple of 4.
    pub(super) fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.queue.write_buffer(buffer, offset, bytes);
    }

    /// Writes data of any size. Waits for the device after every 16 MiB, across calls, so that queued copies
    /// do not pile up. `offset` is a multiple of 4; `bytes` is padded with zeros to a multiple of 4.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub(super) fn upload(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let (whole, last) = bytes.split_at(bytes.len() / 4 * 4);
        for (at, piece) in (offset..).step_by(PIECE_BYTES).zip(whole.chunks(PIECE_BYTES)) {
            self.write(buffer, at, piece);
            let queued = self.queued_bytes.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
            if queued >= PIECE_BYTES {
                self.queued_bytes.store(0, Ordering::Relaxed);
                self.submit(self.encoder())?;
                self.wait(None)?;
            }
        }
        if !last.is_empty() {
            let mut word = [0; 4];
            word[..last.len()].copy_from_slice(last);
            self.write(buffer, offset + whole.len() as u64, &word);
        }
        self.check()
    }

    pub(super) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Submits the commands of an encoder.
    ///
    /// # Errors
    /// [`BackendError::Device`] for any failure so far.
    pub(super) fn submit(&self, encoder: wgpu::CommandEncoder) -> Result<SubmissionIndex, BackendError> {
        let run = self.queue.submit([encoder.finish()]);
        self.check().map(|()| run)
    }

    /// Waits for a submission, or for all queued work if it is `None`.
    ///
    /// # Errors
    /// [`BackendError::Device`] if the device was lost or hangs.
    fn wait(&self, submission_index: Option<SubmissionIndex>) -> Result<(), BackendError> {
        let waited = wait::done(&self.device, &self.queue, submission_index);
        self.check()?;
        waited.map_err(|detail| error("waiting for the device", detail))
    }

    /// Waits, and copies bytes from a buffer. Offset and length are multiples of 4.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub(super) fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let mut staging = locked(&self.staging);
        for (i, piece) in out.chunks_mut(PIECE_BYTES).enumerate() {
            let bytes = piece.len() as u64;
            let there = match staging.take() {
                Some(there) if there.size() >= bytes => there,
                _ => {
                    let usage = BufferUsages::COPY_DST | BufferUsages::MAP_READ;
                    self.buffer(bytes.next_power_of_two(), usage)?
                }
            };
            let mut encoder = self.encoder();
            let from = offset + (i * PIECE_BYTES) as u64;
            encoder.copy_buffer_to_buffer(buffer, from, &there, 0, bytes);
            self.submit(encoder)?;
            self.fetch(&there, None, piece)?;
            *staging = Some(there);
        }
        Ok(())
    }

    /// Waits for the submission that writes the buffer, or for all queued work, and copies the first bytes of
    /// this mappable buffer.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub(super) fn fetch(
        &self,
        staging: &Buffer,
        run: Option<SubmissionIndex>,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        if out.is_empty() {
            return Ok(());
        }
        let range = 0..out.len() as u64;
        let failed = |detail: String| error("mapping memory", detail);
        wait::mapped(staging, range.end, || self.wait(run.clone()))?.map_err(failed)?;
        let view = staging.get_mapped_range(range).map_err(|err| failed(err.to_string()))?;
        out.copy_from_slice(&view);
        drop(view);
        staging.unmap();
        Ok(())
    }

    /// Returns a kernel's pipeline, compiled on first use.
    ///
    /// # Errors
    /// [`BackendError::Device`] if the driver rejects it.
    pub(super) fn pipeline(&self, kernel: Kernel) -> Result<wgpu::ComputePipeline, BackendError> {
        if let Some(pipeline) = locked(&self.pipelines).get(&kernel) {
            return Ok(pipeline.clone());
        }
        let name = kernel.name();
        let (valid, internal) = (
            self.device.push_error_scope(wgpu::ErrorFilter::Validation),
            self.device.push_error_scope(wgpu::ErrorFilter::Internal),
        );
        let source = wgpu::ShaderSource::Wgsl(kernel.source(self.caps).into());
        let desc = wgpu::ShaderModuleDescriptor { label: Some(&name), source };
        let module = trusted::module(&self.device, desc);
        let bindings = self.layout(kernel.bindings());
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 0,
        });
        // Kernels write workgroup memory before they read it.
        let compilation_options = wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..wgpu::PipelineCompilationOptions::default()
        };
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options,
            cache: self.cache.as_ref().map(|kept| &kept.cache),
        });
        let (internal, valid) = (now(internal.pop()), now(valid.pop()));
        if let Some(err) = valid.or(internal) {
            return Err(error("compiling a kernel", format!("{name}: {err}")));
        }
        locked(&self.pipelines).insert(kernel, pipeline.clone());
        Ok(pipeline)
    }

    /// Saves the compiled kernels for the next run.
    pub(super) fn keep_pipelines(&self) {
        self.cache.iter().for_each(DiskCache::save);
    }

    /// Creates the bind group of a dispatch, parameters first. `params` is a buffer, offset and size.
    pub(super) fn bind(
        &self,
        kernel: Kernel,
        params: (&Buffer, u64, u64),
        buffers: &[&Buffer],
    ) -> wgpu::BindGroup {
        let (params, offset, bytes) = params;
        let params = wgpu::BufferBinding { buffer: params, offset, size: wgpu::BufferSize::new(bytes) };
        let mut entries =
            vec![wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(params) }];
        entries.extend(buffers.iter().enumerate().map(|(i, buffer)| wgpu::BindGroupEntry {
            binding: i as u32 + 1,
            resource: buffer.as_entire_binding(),
        }));
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.layout(kernel.bindings()),
            entries: &entries,
        })
    }

    fn layout(&self, bindings: &'static [Binding]) -> BindGroupLayout {
        let make = || {
            let storage = bindings
                .iter()
                .map(|binding| wgpu::BufferBindingType::Storage { read_only: *binding == Binding::Read });
            let types = [wgpu::BufferBindingType::Uniform].into_iter().chain(storage).enumerate();
            let entries: Vec<_> = types
                .map(|(i, ty)| wgpu::BindGroupLayoutEntry {
                    binding: i as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                    count: None,
                })
                .collect();
            let desc = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            self.device.create_bind_group_layout(&desc)
        };
        locked(&self.layouts).entry(bindings).or_insert_with(make).clone()
    }

    /// Returns the first failure outside a call that could return it.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub(super) fn check(&self) -> Result<(), BackendError> {
        match &*locked(&self.failure) {
            Some(what) => Err(error("a queued call", what.clone())),
            None => Ok(()),
        }
    }

    /// Destroys the device, as if its driver had crashed, for tests.
    pub fn lose(&self) {
        self.device.destroy();
        locked(&self.failure).get_or_insert_with(|| "the device was lost: given up".to_owned());
    }
}

pub(super) fn error(call: &'static str, detail: String) -> BackendError {
    BackendError::Device { backend: NAME, call, detail }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
