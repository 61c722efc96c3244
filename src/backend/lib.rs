//! Backends, which run a [`Program`]. A backend owns all memory: weights, buffers, KV caches.
//!
//! It must never know a model, a file, or another backend. Start at [`Backend`], then `cpu/`,
//! which has one file a stage.
#![deny(unsafe_code)]

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod device;
mod memory;
mod options;
pub mod rates;
mod registry;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use memory::{CardRates, DeviceMemory, Macs, MemoryKind, MemoryPart, Overhead};
pub use options::{Auto, CardOnPaper, Chosen, DeviceOption, Entry, Open, Opened, PROFILE};
pub use registry::{DeviceOptions, NAMES, REGISTRY, auto, devices, open, open_on};

use ggml_types::{HostTensor, QuantType};

use sterna_program::{ActQuant, Buf, Program, Sampling, Step, WeightDecl};

/// The processor, for a backend that leaves some of its work to it.
///
/// # Errors
/// [`BackendError::Device`] where its threads cannot be started.
pub fn processor(threads: usize) -> Opened {
    Ok(Box::new(cpu::Cpu::new(threads)?))
}

/// A weight that a backend holds. Stale handles are bugs and panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// A compiled program with its buffers and KV caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exec(pub u32);

/// Memory that a program will take on a backend, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All weights; of those that are streamed, what they pass through.
    pub weights_bytes: u64,
    /// All KV caches.
    pub kv_bytes: u64,
    /// Activation buffers and scratch.
    pub bufs_bytes: u64,
    /// Page-locked memory of the host, for weights that the device has no room for.
    pub host_bytes: u64,
    /// Bytes that are free now, if the backend can tell.
    pub free_bytes: Option<u64>,
}

impl Plan {
    /// Checks that the memory that a compiled program takes besides its weights is free.
    fn check_free(&self, backend: &'static str) -> Result<(), BackendError> {
        let need = self.kv_bytes.saturating_add(self.bufs_bytes);
        match self.free_bytes.filter(|free| need > *free) {
            Some(free) => Err(BackendError::OutOfMemory { backend, need, free }),
            None => Ok(()),
        }
    }
}

/// Asserts that weights, by type, rows and columns, are those that a program declares.
///
/// # Panics
/// Where they are not.
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

/// A page of the KV caches of a program: of all that have such pages, because a page number means the same in
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPage {
    /// One of those that every position has, which a codec that quantises keeps quantised, in caches that
    /// keep all positions.
    Quantised(u32),
    /// The same in caches that keep a sliding window.
    Sliding(u32),
    /// One of those beside them that windowed codecs keep positions in exactly, and what lies with it.
    Exact(u32),
    /// A slot of recurrent states.
    State(u32),
}

/// Time of one stage of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Runs.
    pub calls: u64,
    /// Nanoseconds of the device, all runs together.
    pub nanoseconds: u64,
}

/// A weight whose bytes are read when they are wanted: a large one need never be in memory as a whole.
pub trait WeightRows {
    /// The declaration in the program.
    fn decl(&self) -> &WeightDecl;

    /// Some of its rows as a tensor of their own, with what the type keeps behind its rows.
    ///
    /// # Errors
    /// [`BackendError::Weight`].
    ///
    /// # Panics
    /// For rows that it does not have, and where the range cuts rows that
    /// [lie together](QuantType::rows_together).
    fn read(&self, rows: std::ops::Range<usize>) -> Result<HostTensor, BackendError>;

    /// Reader of its bytes at any time, into memory of the caller; `None` if they are converted when the
    /// weight is loaded. Codes are not checked.
    fn reader(&self) -> Option<std::sync::Arc<dyn WeightBytes>> {
        None
    }
}

/// Bytes of a weight that can be read at any time, again and again, by any thread.
pub trait WeightBytes: Send + Sync {
    /// Fills `into` with the weight's bytes from `at` on.
    ///
    /// # Errors
    /// Whatever is in the way; a file that has become shorter is [`std::io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, at: usize, into: &mut [u8]) -> std::io::Result<()>;
}

/// Runs programs.
pub trait Backend: Send {
    /// Its name in [`REGISTRY`].
    fn name(&self) -> &'static str;

    /// Description of the device: processor and kernels, or card and driver.
    fn device(&self) -> String;

    /// Note for the user on this device before it runs anything.
    fn note(&self) -> Option<String> {
        None
    }

    /// Where a device, its driver and the kernels should pass a self-test before they run a model: what has
    /// to be the same for a test that was passed to count.
    fn self_test_key(&self) -> Option<String> {
        None
    }

    /// Number of devices that share the layers of a program.
    fn n_devices(&self) -> usize {
        1
    }

    /// The memory a program needs, before anything is allocated or uploaded.
    ///
    /// # Errors
    /// [`BackendError::Program`] for a program that does not check; [`BackendError::Missing`] with every
    /// missing kernel at once.
    fn plan(&self, p: &Program) -> Result<Plan, BackendError>;

    /// The same, part by part, of each device that takes a part of the program. What [`plan`](Self::plan)
    /// says are the sums.
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

    /// Takes note of a program before its weights are uploaded: a backend without room for all of them
    /// decides here which it keeps.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    fn prepare(&mut self, _p: &Program) -> Result<(), BackendError> {
        Ok(())
    }

    /// Takes a weight; may repack it, or keep sharing the caller's bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError>;

    /// The same of a weight that is read by rows, where the backend copies weights anyway.
    ///
    /// # Errors
    /// As [`upload`](Self::upload); [`BackendError::Weight`] with what the reader says.
    fn upload_rows(&mut self, w: &dyn WeightRows) -> Result<WeightId, BackendError> {
        self.upload(&w.read(0..w.decl().rows)?)
    }

    /// Makes a program ready to run: allocates its buffers and KV caches, captures or binds what the
    /// device wants. `weights[i]` stands for `p.weights[i]` and may serve several programs.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`BackendError::OutOfMemory`].
    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError>;

    /// Queues one run; never allocates, and waits only where it does not [return
    /// early](Self::returns_early).
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where the step exceeds the program's limits, or names a token, slot or page that is not there; where a
    /// row is [`PICKED`](sterna_program::Row::PICKED) and no run has picked a token for its slot yet, or the
    /// last one that did left the pick to the host.
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

    /// Waits, and copies the tokens that the last run's `Sample` picked for output rows from `first_row` on.
    /// The entry of a row whose sampling is `None` is left as it is. Where the device cannot pick as a row
    /// asks, the host does so here, from that row's logits.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where the last run had fewer rows to pick for.
    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError>;

    /// Best rounding of inputs of products with weights of that type, if neither the model nor the user
    /// chooses one: not at all, unless that makes a backend much faster and costs next to nothing.
    fn default_act_quant(&self, _weights: &dyn QuantType) -> ActQuant {
        ActQuant::None
    }

    /// True if there is a gain in queueing a run behind one in which a row is sampled so, fed with its token
    /// ([`PICKED`](sterna_program::Row::PICKED)): not where runs end before they return, or where the host
    /// picks. The other rows of the step make no difference.
    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool;

    /// Most [tokens of a row](sterna_program::TokenChange) whose logits are changed before the device picks
    /// from it: none where the host has to.
    fn most_changes(&self) -> usize {
        0
    }

    /// True if a run of so many rows returns before it has ended, so that another may be queued behind it.
    fn returns_early(&self, _e: Exec, _rows: usize) -> bool {
        true
    }

    /// Waits for the token that a run has picked for slot `seq`: the newest of them where `back` is 0, the
    /// one before where it is 1. Runs that came later go on, and no pick of the host's is waited for. Of
    /// several output rows of a slot in one run, the last that is sampled counts.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If there is no such pick, or the host had to make it.
    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError>;

    /// True if the logits that [`picked`](Self::picked) has picked from were
    /// [broken](sterna_program::sampling::is_broken). `None` on a backend that does not look at them all: the
    /// token is 0 there if none of them was a number.
    ///
    /// # Panics
    /// As [`picked`](Self::picked).
    fn picked_from_broken(&self, _e: Exec, _seq: u32, _back: usize) -> Option<bool> {
        None
    }

    /// The same of an output row of the last run and the token that [`tokens`](Self::tokens) gives for it.
    ///
    /// # Panics
    /// Where the last run had fewer rows to pick for.
    fn row_is_broken(&self, _e: Exec, _row: usize) -> Option<bool> {
        None
    }

    /// Time of each stage of a program since it was compiled; `None` unless the backend was opened with an
    /// [option](Entry::options) `profile` that says so.
    fn stage_times(&self, _e: Exec) -> Option<Vec<StageTime>> {
        None
    }

    /// Waits, and says how many keys and values the caches could not keep as they were since the program was
    /// compiled: what was no finite number or beyond f16, in a codec that then puts something finite in its
    /// place. One may count twice: when it is kept exactly, and when it is encoded. `None` on a backend that
    /// does not count.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError>;

    /// Bytes of a page, as [`read_page`](Self::read_page) gives them; pages of one kind are equally large.
    fn page_bytes(&self, e: Exec, page: KvPage) -> usize;

    /// Waits, and copies what the KV caches hold of a page, in the backend's own form: `out` is of
    /// [`page_bytes`](Self::page_bytes).
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError>;

    /// Overwrites a page by what [`read_page`](Self::read_page) gave of one, of this program or of one with
    /// the same caches.
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

/// Where a user's caches lie: `$XDG_CACHE_HOME/sterna`, or `~/.cache/sterna`; on Windows
/// `%LOCALAPPDATA%\\sterna`.
pub fn cache_dir() -> Option<std::path::PathBuf> {
    let of = |name| std::env::var_os(name).map(std::path::PathBuf::from).filter(|path| path.is_absolute());
    let home = || of("HOME").map(|home| home.join(".cache"));
    of("XDG_CACHE_HOME").or_else(home).or_else(|| of("LOCALAPPDATA")).map(|dir| dir.join("sterna"))
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
    Program(#[from] sterna_program::CheckError),
    /// Kernels that this backend lacks.
    #[error("backend {backend} has no kernel for: {}; the cpu backend has all of them", .missing.join(", "))]
    Missing {
        /// Name of the backend.
        backend: &'static str,
        /// All of them, as `stage__type`.
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
        /// Message of the device.
        detail: String,
    },
    /// A backend has no such option, or not that choice of it.
    #[error("backend {backend}: DeviceOptions::{option}: {detail}")]
    Option {
        /// Name of the backend.
        backend: &'static str,
        /// Name of the option, as in [`DeviceOption::name`].
        option: String,
        /// Values that it takes, or backends that have it.
        detail: String,
    },
    /// No backend of that name, or not in this build.
    #[error("no backend `{name}`: {detail}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Backends and cards that exist.
        detail: String,
    },
}

impl BackendError {
    fn option(backend: &'static str, option: &str, detail: String) -> Self {
        Self::Option { backend, option: option.to_owned(), detail }
    }
}
