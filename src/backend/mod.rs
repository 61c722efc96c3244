//! What runs a [`Program`]. A backend owns all memory: weights, buffers, KV caches.
//!
//! It must never know a model, a file, or another backend. Start at [`Backend`], then `cpu/`,
//! which has one file a stage.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
#[cfg(feature = "wgpu")]
pub mod wgpu;

use ggml_types::HostTensor;

use crate::program::{Buf, Program, Sampling, Step};

/// A weight that a backend holds. Stale handles are bugs and panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// A compiled program with its buffers and KV caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exec(pub u32);

/// Memory that a program will take on a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All weights.
    pub weights_bytes: u64,
    /// All KV caches.
    pub kv_bytes: u64,
    /// Activation buffers and scratch.
    pub bufs_bytes: u64,
    /// What is free now, where the backend can tell.
    pub free_bytes: Option<u64>,
}

/// Which device of a backend, and how it is used.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Number in the backend's list, or a part of a name; the backend's choice where there is none.
    pub device: Option<String>,
    /// For backends that run on the processor.
    pub threads: usize,
    /// For wgpu.
    pub int8: Int8,
    /// Whether [`Backend::stage_times`] are taken; runs wait for their end then.
    pub profile: bool,
}

/// How products of int8 activations are made where a device may do them in two ways. Both are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Int8 {
    /// As a list says that is faster: floats on Metal, whose devices have no instruction for four products, packed elsewhere.
    #[default]
    Auto,
    /// Four at a time.
    Packed,
    /// As floats.
    Floats,
}

impl std::str::FromStr for Int8 {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "packed" => Ok(Self::Packed),
            "floats" => Ok(Self::Floats),
            _ => Err("want auto, packed or floats".into()),
        }
    }
}

/// A page of the KV caches of a program: of all of them, because a page number means the same in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPage {
    /// One of those that every position has.
    Kept(u32),
    /// One of those beside them that windowed codecs keep positions in exactly, and what lies with it.
    Exact(u32),
}

/// What one stage of a program has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Runs.
    pub calls: u64,
    /// Of the device, all of them together.
    pub nanoseconds: u64,
}

/// Runs programs.
pub trait Backend: Send {
    /// The word for it in `--backend`.
    fn name(&self) -> &'static str;

    /// What runs the program, for people: processor and kernels, or card and driver.
    fn device(&self) -> String;

    /// What a user should be told of this device before it runs anything, if anything.
    fn note(&self) -> Option<String> {
        None
    }

    /// The memory a program needs, before anything is allocated or uploaded.
    ///
    /// # Errors
    /// [`BackendError::Program`] for a program that does not check; [`BackendError::Missing`] with every
    /// missing kernel at once.
    fn plan(&self, p: &Program) -> Result<Plan, BackendError>;

    /// Takes a weight; may repack it, or keep sharing the caller's bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError>;

    /// Makes a program ready to run: allocates its buffers and KV caches, captures or binds what the
    /// device wants. `weights[i]` stands for `p.weights[i]` and may serve several programs.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`BackendError::OutOfMemory`].
    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError>;

    /// Queues one run; never waits, never allocates.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where the step exceeds the program's limits, or names a token, slot or page that is not there; where a row is
    /// [`PICKED`](crate::program::Row::PICKED) and no run has picked a token for its slot yet, or the last one that did
    /// left the pick to the host.
    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError>;

    /// Waits, and copies rows of a buffer from `first_row` on: `out` is `[n, cols]`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError>;

    /// Overwrites rows of a buffer: how tests put a stage in front of chosen values.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError>;

    /// Waits, and copies the tokens that the last run's `Sample` picked for output rows from `first_row` on. The
    /// entry of a row whose sampling is `None` is left as it is. Where the device cannot pick as a row asks, the
    /// host does so here, from that row's logits.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where the last run had fewer rows to pick for.
    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError>;

    /// Whether there is a gain in queueing a run behind one in which a row is sampled so, fed with its token
    /// ([`PICKED`](crate::program::Row::PICKED)): not where runs end before they return, or where the host picks.
    /// The other rows of the step make no difference.
    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool;

    /// Waits for the token that a run has picked for slot `seq`: the newest of them where `back` is 0, the one
    /// before where it is 1. Runs that came later go on, and no pick of the host's is waited for. Of several output
    /// rows of a slot in one run, the last that is sampled counts.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where there is no such pick, or the host had to make it.
    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError>;

    /// What each stage of a program has taken since it was compiled; nothing where the backend was not opened to
    /// [`profile`](DeviceOptions::profile).
    fn stage_times(&self, _e: Exec) -> Option<Vec<StageTime>> {
        None
    }

    /// Waits, and says how many keys and values the caches could not keep as they were since the program was compiled: what was no
    /// finite number or beyond f16, in a codec that then puts something finite in its place. One may count twice: when it is kept
    /// exactly, and when it is encoded. `None` on a backend that does not count.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn repaired(&mut self, e: Exec) -> Result<Option<u64>, BackendError>;

    /// Bytes of a page, as [`read_page`](Self::read_page) gives them; pages of one kind are equally large.
    fn page_bytes(&self, e: Exec, page: KvPage) -> usize;

    /// Waits, and copies what the KV caches hold of a page, in the backend's own form: `out` is of
    /// [`page_bytes`](Self::page_bytes).
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError>;

    /// Overwrites a page by what [`read_page`](Self::read_page) gave of one, of this program or of one with the same caches.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError>;

    /// Runs only the stages `range` of the program over the same step: stage diffs and profiles.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn run_stages(
        &mut self,
        e: Exec,
        range: std::ops::Range<usize>,
        step: &Step<'_>,
    ) -> Result<(), BackendError>;
}

/// Words for `--backend`, besides `auto`.
pub const NAMES: &[&str] = &[
    "cpu",
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "simt")]
    "cuda-simt",
    #[cfg(feature = "wgpu")]
    "wgpu",
];

/// What there is to run on: the word of a backend, and the device or why there is none. `threads` is for backends
/// that run on the processor.
pub fn devices(threads: usize) -> Vec<(&'static str, Result<String, BackendError>)> {
    let of = |name: &&'static str| -> Vec<_> {
        #[cfg(feature = "cuda")]
        if *name == "cuda" {
            return match cuda::driver::real::cards() {
                Ok(cards) => {
                    let line = |(i, card)| (*name, Ok(format!("{i}: {card}")));
                    cards.into_iter().enumerate().map(line).collect()
                }
                Err(err) => vec![(*name, Err(err))],
            };
        }
        #[cfg(feature = "wgpu")]
        if *name == "wgpu" {
            return wgpu::device::list().into_iter().map(|device| (*name, device)).collect();
        }
        vec![(*name, open(name, threads).map(|backend| backend.device()))]
    };
    NAMES.iter().flat_map(of).collect()
}

/// The backends that `auto` stands for, the fastest first: those whose device is there, and the CPU. An error is a device
/// that is there and cannot be used. What runs on the processor in a GPU's place is none of them.
pub fn auto(threads: usize) -> Vec<Result<Box<dyn Backend>, BackendError>> {
    #[cfg(feature = "cuda")]
    let card = cuda::driver::real::cards().is_ok().then(|| open("cuda", threads));
    #[cfg(not(feature = "cuda"))]
    let card = None;
    #[cfg(feature = "wgpu")]
    let gpu = wgpu::device::has_gpu().then(|| open("wgpu", threads));
    #[cfg(not(feature = "wgpu"))]
    let gpu = None;
    card.into_iter().chain(gpu).chain([open("cpu", threads)]).collect()
}

/// Opens a backend by its word, on the device that it would choose; `auto` takes the fastest that opens. `threads` is for
/// backends that run on the processor.
///
/// # Errors
/// [`BackendError::Unknown`], and [`BackendError::Device`] where it does not start.
pub fn open(name: &str, threads: usize) -> Result<Box<dyn Backend>, BackendError> {
    open_on(name, &DeviceOptions { threads, ..DeviceOptions::default() })
}

/// As [`open`], with a choice of device and how it is used.
///
/// # Errors
/// As [`open`]; and where there is no such device, or the backend has no such choice.
pub fn open_on(name: &str, how: &DeviceOptions) -> Result<Box<dyn Backend>, BackendError> {
    let DeviceOptions { device, threads, int8, profile } = how;
    let threads = *threads;
    let refused =
        |backend, detail| Err::<(), _>(BackendError::Device { backend, call: "choosing a device", detail });
    let not_wgpu = |backend: &'static str| match (*int8, *profile) {
        (Int8::Packed | Int8::Floats, _) => refused(backend, "--int8 is for --backend wgpu".to_owned()),
        (_, true) => refused(backend, "--profile is for --backend wgpu".to_owned()),
        _ => Ok(()),
    };
    let only_device = |backend: &'static str| match device {
        Some(device) => refused(backend, format!("--device {device} is for --backend cuda and wgpu")),
        None => not_wgpu(backend),
    };
    match name {
        "auto" => {
            only_device("auto")?;
            auto(threads).into_iter().find(Result::is_ok).unwrap_or_else(|| open("cpu", threads))
        }
        "cpu" => {
            only_device("cpu")?;
            Ok(Box::new(cpu::Cpu::new(threads)?))
        }
        #[cfg(feature = "cuda")]
        "cuda" => {
            not_wgpu("cuda")?;
            Ok(Box::new(cuda::Cuda::open(device.as_deref())?))
        }
        #[cfg(feature = "simt")]
        "cuda-simt" => {
            only_device("cuda-simt")?;
            let driver = cuda::driver::simt::Simt::new(threads as u32, 0);
            Ok(Box::new(cuda::Cuda::on(Box::new(driver))))
        }
        #[cfg(feature = "wgpu")]
        "wgpu" => {
            let packed = match int8 {
                Int8::Auto => None,
                int8 => Some(*int8 == Int8::Packed),
            };
            let (device, profile, cache_dir) = (device.clone(), *profile, wgpu::cache::user_dir());
            let options = wgpu::device::Options { device, packed, profile, cache_dir, ..Default::default() };
            Ok(Box::new(wgpu::Wgpu::open(&options)?))
        }
        _ => {
            let detail = format!("this build has auto, {}", NAMES.join(", "));
            Err(BackendError::Unknown { name: name.to_owned(), detail })
        }
    }
}

/// Physical cores that this process may use: how many threads arithmetic gains from.
pub fn physical_cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    num_cpus::get_physical().clamp(1, usable)
}

/// Why a backend cannot run a program.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The program itself is wrong.
    #[error(transparent)]
    Program(#[from] crate::program::CheckError),
    /// Kernels that this backend lacks.
    #[error("backend {backend} has no kernel for: {}; --backend cpu has all of them", .missing.join(", "))]
    Missing {
        /// Name of the backend.
        backend: &'static str,
        /// All of them, as `stage__type`.
        missing: Vec<String>,
    },
    /// Not enough memory.
    #[error("backend {backend}: {need} bytes needed, {free} bytes free")]
    OutOfMemory {
        /// Name of the backend.
        backend: &'static str,
        /// Bytes that the program takes.
        need: u64,
        /// Bytes that the device has left.
        free: u64,
    },
    /// A device call failed.
    #[error("backend {backend}: {call}: {detail}")]
    Device {
        /// Name of the backend.
        backend: &'static str,
        /// The call.
        call: &'static str,
        /// What the device said.
        detail: String,
    },
    /// No backend of that name, or not in this build.
    #[error("no backend `{name}`: {detail}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// What there is.
        detail: String,
    },
}
