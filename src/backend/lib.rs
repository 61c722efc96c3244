//! Backends, which run a [`Program`]. A backend owns all memory: weights, buffers, KV caches.
//!
//! A backend must never know a model, a file, or another backend. Start at [`Backend`], then `cpu/`, which
//! has one file per stage.
#![deny(unsafe_code)]

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod layout;
mod memory;
mod options;
pub mod rates;
mod registry;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use memory::{CardRates, DeviceMemory, Macs, MemoryKind, MemoryPart, Overhead};
pub use options::{
    Auto, CardOnPaper, DeviceOptions, Entry, GpuLayers, Int8, MinBatch, Numa, Octets, Opened, OptionId,
    Profile, Proportions, Resident, SplitMode,
};
pub use registry::{NAMES, REGISTRY, auto, devices, open};

use ggml_types::{HostTensor, QuantType};

use sterna_program::{ActQuant, Buf, Program, Sampling, Step, WeightDecl};

/// Opens the CPU backend, for a backend that offloads some of its work to it.
///
/// # Errors
/// [`BackendError::Device`] if its threads cannot be started.
pub fn processor(threads: usize) -> Opened {
    Ok(Box::new(cpu::Cpu::new(threads)?))
}

/// Handle of a weight on a backend. Stale handles are bugs and panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// Handle of a compiled program with its buffers and KV caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exec(pub u32);

/// Memory that a program needs on a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All weights on the device, and the staging buffers of streamed ones.
    pub weights_bytes: u64,
    /// All KV caches.
    pub kv_bytes: u64,
    /// Activation buffers and scratch.
    pub bufs_bytes: u64,
    /// Page-locked host memory, for weights that do not fit on the device.
    pub host_bytes: u64,
    /// Free memory, if the backend can tell.
    pub free_bytes: Option<u64>,
}

impl Plan {
    /// Checks that there is enough free memory for everything but the weights of a compiled program.
    fn check_free(&self, backend: &'static str) -> Result<(), BackendError> {
        let need = self.kv_bytes.saturating_add(self.bufs_bytes);
        match self.free_bytes.filter(|free| need > *free) {
            Some(free) => Err(BackendError::OutOfMemory { backend, need, free }),
            None => Ok(()),
        }
    }
}

/// Asserts that weights have the type, rows and columns that a program declares.
///
/// # Panics
/// If they do not.
fn assert_declared(
    p: &Program,
    weights: impl ExactSizeIterator<Item = (&'static dyn QuantType, usize, usize)>,
) {
    assert_eq!(weights.len(), p.weights.len(), "one weight for each declaration");
    for ((ty, rows, cols), decl) in weights.zip(&p.weights) {
        let (name, want) = (&decl.name, decl.ty.name());
        let fits = ty.is(decl.ty) && (rows, cols) == (decl.rows, decl.cols);
        assert!(
            fits,
            "{name}: want [{}, {}] {want}, have [{rows}, {cols}] {}",
            decl.rows,
            decl.cols,
            ty.name()
        );
    }
}

/// A page number of the KV caches of a program. It refers to the page of that number in every cache with such
/// pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPage {
    /// A page of caches that keep all positions; its form is that of the cache type, quantised or not.
    Quantised(u32),
    /// A page of caches that keep a sliding window.
    Sliding(u32),
    /// A page of exact (f16) copies, which windowed codecs keep in addition.
    Exact(u32),
    /// A slot of recurrent states.
    State(u32),
}

/// Time spent in one stage of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Number of runs.
    pub calls: u64,
    /// Device time of all runs, in nanoseconds.
    pub nanoseconds: u64,
}

/// A weight whose rows are read on demand, so that a large one is never in memory as a whole.
pub trait WeightRows {
    /// The declaration in the program.
    fn decl(&self) -> &WeightDecl;

    /// Reads some of its rows as a separate tensor, with any data that the type stores after the rows.
    ///
    /// # Errors
    /// [`BackendError::Weight`].
    ///
    /// # Panics
    /// For rows out of range, and if the range splits rows that are
    /// [stored together](QuantType::rows_together).
    fn read(&self, rows: std::ops::Range<usize>) -> Result<HostTensor, BackendError>;

    /// Reader of its raw bytes, usable at any time; `None` if they are converted when the weight is loaded.
    /// Codes are not checked.
    fn reader(&self) -> Option<std::sync::Arc<dyn WeightBytes>> {
        None
    }
}

/// Bytes of a weight that any thread can read repeatedly.
pub trait WeightBytes: Send + Sync {
    /// Fills `into` with the weight's bytes from `at` on.
    ///
    /// # Errors
    /// I/O errors; a file that was truncated gives [`std::io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, at: usize, into: &mut [u8]) -> std::io::Result<()>;
}

/// A set of kernels that a device can use instead of its usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherKernels {
    /// Name in messages.
    pub name: &'static str,
    /// Rows of steps, each of which takes other kernels of the set.
    pub rows: &'static [usize],
}

impl OtherKernels {
    /// Most rows of such a step.
    pub const MOST_ROWS: usize = 128;
}

/// Runs programs.
pub trait Backend: Send {
    /// Its name in [`REGISTRY`].
    fn name(&self) -> &'static str;

    /// Description of the device: processor and kernels, or card and driver.
    fn device(&self) -> String;

    /// Note to show the user before the device runs anything.
    fn note(&self) -> Option<String> {
        None
    }

    /// Key of the self-test that the device should pass before it runs a model, identifying device, driver
    /// and kernels: an earlier pass is valid for the same key. `None` if no test is needed.
    fn self_test_key(&self) -> Option<String> {
        None
    }

    /// Sets of kernels for stages of a program that the device has besides its usual ones, if no option
    /// chooses between them: a self-test may compare each set with the usual ones and choose the faster.
    fn other_kernels(&self, _p: &Program) -> Vec<OtherKernels> {
        Vec::new()
    }

    /// Chooses between a set of kernels and the usual ones for the programs that are compiled from now on.
    /// Uploaded weights serve both.
    fn use_other_kernels(&mut self, _kernels: OtherKernels, _yes: bool) {}

    /// Number of devices that share the layers of a program.
    fn n_devices(&self) -> usize {
        1
    }

    /// The memory a program needs, before anything is allocated or uploaded.
    ///
    /// # Errors
    /// [`BackendError::Program`] for an invalid program; [`BackendError::Missing`] with all missing kernels.
    fn plan(&self, p: &Program) -> Result<Plan, BackendError>;

    /// The same in detail, for each device that runs a part of the program. [`plan`](Self::plan) returns the
    /// sums.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    fn memory(&self, p: &Program) -> Result<Vec<DeviceMemory>, BackendError> {
        let Plan { weights_bytes, kv_bytes, bufs_bytes, host_bytes, free_bytes } = self.plan(p)?;
        let part = |kind, name: &str, bytes| MemoryPart { kind, name: name.to_owned(), bytes };
        let parts = vec![
            part(MemoryKind::Weights, "weights", weights_bytes),
            part(MemoryKind::Kv, "KV cache", kv_bytes),
            part(MemoryKind::Buffers, "buffers", bufs_bytes),
        ];
        Ok(vec![DeviceMemory { host_bytes, free_bytes, ..DeviceMemory::of(self.device(), parts) }])
    }

    /// Announces a program before its weights are uploaded: a backend that cannot hold all of them decides
    /// here which ones stay on the device.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    fn prepare(&mut self, _p: &Program) -> Result<(), BackendError> {
        Ok(())
    }

    /// Uploads a weight; may repack it, or share the caller's bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError>;

    /// The same for a weight that is read by rows, for backends that copy weights anyway.
    ///
    /// # Errors
    /// As [`upload`](Self::upload); [`BackendError::Weight`] with the reader's error.
    fn upload_rows(&mut self, w: &dyn WeightRows) -> Result<WeightId, BackendError> {
        self.upload(&w.read(0..w.decl().rows)?)
    }

    /// Prepares a program to run: allocates its buffers and KV caches, and records or binds what the device
    /// needs. `weights[i]` is the handle of `p.weights[i]` and may be used by several programs.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`BackendError::OutOfMemory`].
    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError>;

    /// True if a program can read the KV caches of another one
    /// ([`compile_reading`](Self::compile_reading)).
    fn shares_caches(&self) -> bool {
        false
    }

    /// As [`compile`](Self::compile), for a program that declares all KV caches of program `of`, with the
    /// same numbers, and writes none of them: it uses those of `of`, and has no pages of its own.
    /// Declarations may differ in their sliding windows.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    ///
    /// # Panics
    /// If the backend does not [share caches](Self::shares_caches).
    fn compile_reading(
        &mut self,
        _p: &Program,
        _weights: &[WeightId],
        _of: Exec,
    ) -> Result<Exec, BackendError> {
        unreachable!("backend {} does not share caches", self.name())
    }

    /// Queues one run; never allocates, and waits only if it does not [return early](Self::returns_early).
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If the step exceeds the program's limits, or names a token, slot or page that does not exist; if a row
    /// is [`PICKED`](sterna_program::Row::PICKED) and no run has picked a token for its slot yet, or the last
    /// one left the pick to the host.
    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError>;

    /// Waits, then copies rows of a buffer from `first_row` on; `out` is `[n, cols]`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError>;

    /// Overwrites rows of a buffer; tests use it to give a stage chosen inputs.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError>;

    /// Waits, then copies the tokens that the last run's `Sample` picked for output rows from `first_row` on.
    /// Entries of rows whose sampling is `None` are not changed. If the device does not support a row's
    /// sampling, the host samples here, from that row's logits.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If the last run picked for fewer rows.
    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError>;

    /// Default quantisation of activations for weights of that type, if neither the model nor the user
    /// chooses one: none, unless quantising is much faster at almost no cost in quality.
    fn default_act_quant(&self, _weights: &dyn QuantType) -> ActQuant {
        ActQuant::None
    }

    /// True if it is worth queueing another run after one in which a row is sampled by `how` and fed back
    /// ([`PICKED`](sterna_program::Row::PICKED)). False if runs end before they return, or if the host
    /// samples. The other rows of the step make no difference.
    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool;

    /// Most [token changes](sterna_program::TokenChange) per row that the device applies before sampling; 0
    /// if the host has to.
    fn most_changes(&self) -> usize {
        0
    }

    /// True if a run of this many rows returns before it has ended, so that another may be queued after it.
    fn returns_early(&self, _e: Exec, _rows: usize) -> bool {
        true
    }

    /// Waits for the token that a run picked for slot `seq`: the newest if `back` is 0, the one before if it
    /// is 1. Does not wait for later runs, or for tokens that the host samples. If one run samples several
    /// output rows of a slot, the last one is returned.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If there is no such token, or the host had to sample it.
    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError>;

    /// True if the logits that [`picked`](Self::picked) sampled from were
    /// [broken](sterna_program::sampling::is_broken). `None` on a backend that does not check all of them:
    /// the token is 0 there if all are NaN.
    ///
    /// # Panics
    /// As [`picked`](Self::picked).
    fn picked_from_broken(&self, _e: Exec, _seq: u32, _back: usize) -> Option<bool> {
        None
    }

    /// The same for an output row of the last run, and its token from [`tokens`](Self::tokens).
    ///
    /// # Panics
    /// If the last run picked for fewer rows.
    fn row_is_broken(&self, _e: Exec, _row: usize) -> Option<bool> {
        None
    }

    /// Time of each stage of a program since it was compiled; `None` unless the backend was opened with
    /// [`DeviceOptions::profile`].
    fn stage_times(&self, _e: Exec) -> Option<Vec<StageTime>> {
        None
    }

    /// Waits, then returns the number of keys and values that were clamped since the program was compiled:
    /// elements that were not finite or exceeded f16, in a codec that stores finite values instead. A vector
    /// may be counted twice: when it is stored exactly, and when it is encoded. `None` on a backend that does
    /// not count.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError>;

    /// Bytes of a page as [`read_page`](Self::read_page) returns it; pages of one kind have equal sizes.
    fn page_bytes(&self, e: Exec, page: KvPage) -> usize;

    /// Waits, then copies the contents of a page of the KV caches, in the backend's own format; `out` has
    /// [`page_bytes`](Self::page_bytes).
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError>;

    /// Overwrites a page with the bytes that [`read_page`](Self::read_page) returned, from this program or
    /// one with the same caches.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError>;

    /// Runs only the stages `range` of the program over the same step, for stage diffs and profiles.
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

/// Folder for caches of the user: `$XDG_CACHE_HOME/sterna`, or `~/.cache/sterna`; on Windows
/// `%LOCALAPPDATA%\\sterna`.
pub fn cache_dir() -> Option<std::path::PathBuf> {
    let of = |name| std::env::var_os(name).map(std::path::PathBuf::from).filter(|path| path.is_absolute());
    let home = || of("HOME").map(|home| home.join(".cache"));
    of("XDG_CACHE_HOME").or_else(home).or_else(|| of("LOCALAPPDATA")).map(|dir| dir.join("sterna"))
}

/// Number of physical cores that this process may use, the useful number of threads for arithmetic.
pub fn physical_cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    num_cpus::get_physical().clamp(1, usable)
}

/// Reason why a backend cannot run a program.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The program itself is wrong.
    #[error(transparent)]
    Program(#[from] sterna_program::CheckError),
    /// The backend has no kernels for the program.
    #[error("backend {backend} has no kernel for: {}; the cpu backend has all of them", .missing.join(", "))]
    Missing {
        /// Name of the backend.
        backend: &'static str,
        /// All missing ones, as `stage__type`.
        missing: Vec<String>,
    },
    /// A weight that cannot be read.
    #[error("{0}")]
    Weight(Box<dyn std::error::Error + Send + Sync>),
    /// Not enough memory.
    #[error("backend {backend}: {need} bytes needed, {free} bytes free")]
    OutOfMemory {
        /// Name of the backend.
        backend: &'static str,
        /// Bytes that the program needs.
        need: u64,
        /// Bytes that are free on the device.
        free: u64,
    },
    /// A device call failed.
    #[error("backend {backend}: {call}: {detail}")]
    Device {
        /// Name of the backend.
        backend: &'static str,
        /// The call.
        call: &'static str,
        /// Message of the device.
        detail: String,
    },
    /// The backend does not have this option or this value of it.
    #[error("backend {backend}: {option}: {detail}")]
    Option {
        /// Name of the backend.
        backend: &'static str,
        /// The option.
        option: OptionId,
        /// Supported values, or backends that have the option.
        detail: String,
    },
    /// An error that an option avoids.
    #[error("{error}{}", way_out.concat())]
    Avoidable {
        /// The error.
        error: Box<BackendError>,
        /// The text before the option, the option by its path, and the text after it.
        way_out: [&'static str; 3],
    },
    /// There is no backend of that name in this build.
    #[error("no backend `{name}`: {detail}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Backends and cards that exist.
        detail: String,
    },
}

impl BackendError {
    fn option(backend: &'static str, option: OptionId, detail: impl Into<String>) -> Self {
        Self::Option { backend, option, detail: detail.into() }
    }

    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    fn avoided_by(self, way_out: [&'static str; 3]) -> Self {
        Self::Avoidable { error: Box::new(self), way_out }
    }
}
