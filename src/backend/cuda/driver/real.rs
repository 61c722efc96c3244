//! A driver over an NVIDIA card, through the driver API that is found when the program runs.
//!
//! Nothing of cudarc's tracked types is used: their events would end up in recordings.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::super::kernel_names;
use super::{Address, Driver, Kernel, Launch, Limits, Mailboxes, Recording};
use crate::backend::BackendError;

const NAME: &str = "cuda";

/// Machine code and PTX of every file in `cuda/`, by name. Empty where there was no nvcc.
static FATBINS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Architectures that they have machine code for, and the one of their PTX, as nvcc writes them.
const ARCHS: &str = env!("STERNA_CUDA_ARCHS");
const PTX: &str = env!("STERNA_CUDA_PTX");

/// Copies up to this size are staged by the driver; larger ones go through [`Pinned`] buffers.
const SMALL_BYTES: usize = 64 << 10;

/// Bytes of one of the two buffers.
const PINNED_BYTES: usize = 8 << 20;

/// One card.
pub struct Card {
    context: sys::CUcontext,
    device: sys::CUdevice,
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    /// One a name of [`kernel_names`], where there is such a kernel.
    kernels: Vec<Option<sys::CUfunction>>,
    allocations: Vec<sys::CUdeviceptr>,
    pinned: Option<[Pinned; 2]>,
    mailboxes: Vec<Mailbox>,
    recordings: Vec<sys::CUgraphExec>,
    about: About,
    limits: Limits,
}

/// What a card is.
struct About {
    name: String,
    compute: (i32, i32),
    memory_bytes: usize,
    driver: (i32, i32),
}

/// Memory of the host that a card copies from while the host goes on.
struct Pinned {
    at: *mut c_void,
    /// When the last copy from it is done.
    free: sys::CUevent,
}

/// Words of the host that kernels write.
struct Mailbox {
    at: *mut c_void,
    /// One a word: when it was written.
    marks: Vec<sys::CUevent>,
}

// SAFETY: handles of the driver may be used by any thread; each call makes the context current first.
unsafe impl Send for Card {}

fn fail(call: &'static str, detail: impl std::fmt::Display) -> BackendError {
    BackendError::Device { backend: NAME, call, detail: detail.to_string() }
}

/// Says which call failed.
trait Called<T> {
    fn called(self, call: &'static str) -> Result<T, BackendError>;
}

impl<T> Called<T> for Result<T, DriverError> {
    fn called(self, call: &'static str) -> Result<T, BackendError> {
        self.map_err(|err| fail(call, err))
    }
}

/// What an open card needs and this build lacks, where it does, and the way out.
fn no_kernels(archs: &str) -> &'static str {
    match archs {
        "none" => {
            "this build has no CUDA kernels, because STERNA_CUDA_ARCHS=none left them out; \
             build again without it"
        }
        _ => {
            "this build has no CUDA kernels, because nvcc was not found; \
             run scripts/setup-cuda.sh and build again"
        }
    }
}

/// Makes the driver ready, and counts its cards.
fn count() -> Result<i32, BackendError> {
    // SAFETY: loads and unloads a library.
    if !unsafe { sys::is_culib_present() } {
        return Err(fail("open", "no NVIDIA driver on this machine (libcuda was not found)"));
    }
    result::init().called("cuInit")?;
    match result::device::get_count().called("cuDeviceGetCount")? {
        0 => Err(fail("open", "the NVIDIA driver finds no card")),
        n => Ok(n),
    }
}

/// Every card of this machine, for people: what it is, and whether this build has code for it.
///
/// # Errors
/// [`BackendError::Device`] where there is no driver or no card.
pub fn cards() -> Result<Vec<String>, BackendError> {
    let card = |ordinal| {
        let about = About::of(result::device::get(ordinal).called("cuDeviceGet")?)?;
        let code =
            if FATBINS.is_empty() { no_kernels(ARCHS).into() } else { code_for(ARCHS, PTX, about.compute) };
        Ok(format!("{about}: {code}"))
    };
    (0..count()?).map(card).collect()
}

/// What a build with machine code for `archs` and PTX of `ptx` has for a card of some compute capability.
/// Machine code runs on later cards of its generation, and PTX on all later ones.
fn code_for(archs: &str, ptx: &str, compute: (i32, i32)) -> String {
    let version = |arch: &str| arch.trim().parse().ok().map(|arch: i32| (arch / 10, arch % 10));
    let serves =
        |arch: &&str| version(arch).is_some_and(|(major, minor)| major == compute.0 && minor <= compute.1);
    match (archs.split(',').filter(serves).max_by_key(|arch| version(arch)), version(ptx)) {
        (Some(arch), _) => format!("machine code of sm_{arch}"),
        (None, Some(least)) if least <= compute => {
            format!("PTX of compute_{ptx}, compiled when it is first used")
        }
        _ => format!("no code (this build has sm_{}, and PTX from {ptx} on)", archs.replace(',', ", ")),
    }
}

impl About {
    /// Whether a kernel may start before the one before it has ended (programmatic dependent launch).
    fn starts_early(&self) -> bool {
        self.compute >= (9, 0)
    }

    fn of(device: sys::CUdevice) -> Result<Self, BackendError> {
        let mut version = 0;
        // SAFETY: the result is there to be written; the device is one that the driver named.
        unsafe {
            sys::cuDriverGetVersion(&raw mut version).result().called("cuDriverGetVersion")?;
            Ok(Self {
                name: result::device::get_name(device).called("cuDeviceGetName")?,
                compute: (
                    attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                ),
                memory_bytes: result::device::total_mem(device).called("cuDeviceTotalMem")?,
                driver: (version / 1000, version % 1000 / 10),
            })
        }
    }
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, compute: (major, minor), memory_bytes, driver: (driver, of_driver) } = self;
        write!(
            f,
            "{name}, {} MiB, compute capability {major}.{minor}, driver for CUDA {driver}.{of_driver}",
            memory_bytes >> 20
        )
    }
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, BackendError> {
    // SAFETY: the device is one that the driver named.
    unsafe { result::device::get_attribute(device, which) }.called("cuDeviceGetAttribute")
}

impl Card {
    /// Opens a card, and loads the kernels.
    ///
    /// # Errors
    /// [`BackendError::Device`] where there are no kernels, no driver, no such card, or no code for it.
    pub fn open(ordinal: i32) -> Result<Self, BackendError> {
        if FATBINS.is_empty() {
            return Err(fail("open", no_kernels(ARCHS)));
        }
        let n = count()?;
        if !(0..n).contains(&ordinal) {
            return Err(fail("open", format!("card {ordinal}, there are {n}")));
        }
        let device = result::device::get(ordinal).called("cuDeviceGet")?;
        let about = About::of(device)?;
        let multiprocessors =
            attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(
            device,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?;
        let cache = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        // A quarter, so that what the running kernel reads again stays there. Not measured.
        let prefetch_bytes = cache as u64 / 4;
        let limits =
            Limits { multiprocessors: multiprocessors as u32, shared_bytes: shared as u32, prefetch_bytes };
        // SAFETY: the device is one that the driver named; `drop` gives the context back.
        let context = unsafe { result::primary_ctx::retain(device) }.called("cuDevicePrimaryCtxRetain")?;
        let mut card = Self {
            context,
            device,
            stream: null_mut(),
            modules: Vec::new(),
            kernels: Vec::new(),
            allocations: Vec::new(),
            pinned: None,
            mailboxes: Vec::new(),
            recordings: Vec::new(),
            about,
            limits,
        };
        card.bind()?;
        card.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        card.load()?;
        Ok(card)
    }

    /// Makes the context this thread's current one.
    fn bind(&self) -> Result<(), BackendError> {
        // SAFETY: the context is retained until the card is dropped.
        unsafe { result::ctx::set_current(self.context) }.called("cuCtxSetCurrent")
    }

    fn load(&mut self) -> Result<(), BackendError> {
        for (file, image) in FATBINS {
            // SAFETY: the image is one that nvcc made.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
            let module = module.map_err(|err| fail("cuModuleLoadData", format!("{file}: {err}")))?;
            self.modules.push(module);
        }
        for name in kernel_names() {
            let find = |module: &sys::CUmodule| {
                // SAFETY: the module is loaded.
                unsafe { result::module::get_function(*module, CString::new(name.as_str()).ok()?) }.ok()
            };
            let found = self.modules.iter().find_map(find);
            if let Some(kernel) = found {
                let attribute =
                    sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the kernel belongs to a loaded module.
                unsafe {
                    result::function::set_function_attribute(
                        kernel,
                        attribute,
                        self.limits.shared_bytes as i32,
                    )
                }
                .called("cuFuncSetAttribute")?;
            }
            self.kernels.push(found);
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), BackendError> {
        // SAFETY: the stream lives as long as the card.
        unsafe { result::stream::synchronize(self.stream) }.called("cuStreamSynchronize")
    }

    fn pinned(&mut self) -> Result<&[Pinned; 2], BackendError> {
        if self.pinned.is_none() {
            let buffer = || -> Result<Pinned, BackendError> {
                let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
                // SAFETY: freed when the card is dropped, and never read on the host.
                let at = unsafe { result::malloc_host(PINNED_BYTES, 0) }.called("cuMemHostAlloc")?;
                Ok(Pinned { at, free: result::event::create(flags).called("cuEventCreate")? })
            };
            self.pinned = Some([buffer()?, buffer()?]);
        }
        Ok(self.pinned.as_ref().expect("made above"))
    }

    /// Reads the source into one buffer while the card copies from the other.
    fn write_large(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError> {
        let stream = self.stream;
        let pinned = self.pinned()?;
        for (i, piece) in bytes.chunks(PINNED_BYTES).enumerate() {
            let Pinned { at, free } = pinned[i % 2];
            let to = to + (i * PINNED_BYTES) as u64;
            // SAFETY: the buffer is as large as the piece; the event says when no copy reads it any more; the
            // address is inside what the backend allocated.
            unsafe {
                result::event::synchronize(free).called("cuEventSynchronize")?;
                std::ptr::copy_nonoverlapping(piece.as_ptr(), at.cast(), piece.len());
                sys::cuMemcpyHtoDAsync_v2(to, at, piece.len(), stream)
                    .result()
                    .called("cuMemcpyHtoDAsync")?;
                result::event::record(free, stream).called("cuEventRecord")?;
            }
        }
        Ok(())
    }
}

impl Driver for Card {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> String {
        self.about.to_string()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn free_bytes(&self) -> Option<u64> {
        self.bind().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError> {
        self.bind()?;
        // SAFETY: kept until the card is dropped, and zeroed below.
        let at = unsafe { result::malloc_sync(bytes.max(1) as usize) };
        let at = match at {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free = self.free_bytes().unwrap_or(0);
                return Err(BackendError::OutOfMemory { backend: NAME, need: bytes, free });
            }
            at => at.called("cuMemAlloc")?,
        };
        self.allocations.push(at);
        // SAFETY: as many bytes as were allocated.
        unsafe { result::memset_d8_async(at, 0, bytes as usize, self.stream) }.called("cuMemsetD8Async")?;
        Ok(at)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.bind()?;
        if bytes.len() > SMALL_BYTES {
            return self.write_large(to, bytes);
        }
        // SAFETY: inside what the backend allocated. The driver stages so few pageable bytes before it
        // returns.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream) }.called("cuMemcpyHtoDAsync")
    }

    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackendError> {
        const CALL: &str = "cuModuleGetGlobal";
        self.bind()?;
        let mut found = false;
        for module in self.modules.clone() {
            let name = CString::new(name).map_err(|err| fail(CALL, err))?;
            // SAFETY: the module is loaded.
            let global = unsafe { result::module::get_global(module, name) };
            let (at, len) = match global {
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => continue,
                global => global.called(CALL)?,
            };
            if len != bytes.len() {
                return Err(fail(CALL, format!("{len} bytes of constants, have {}", bytes.len())));
            }
            self.write(at, bytes)?;
            found = true;
        }
        if found { Ok(()) } else { Err(fail(CALL, format!("no constants `{name}`"))) }
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: inside what the backend allocated; waited for before `out` is given back.
        unsafe { result::memcpy_dtoh_async(out, from, self.stream) }.called("cuMemcpyDtoHAsync")?;
        self.wait()
    }

    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError> {
        self.bind()?;
        // SAFETY: freed when the card is dropped; as many bytes are zeroed as were allocated.
        let at = unsafe {
            let at = result::malloc_host(4 * n.max(1), sys::CU_MEMHOSTALLOC_DEVICEMAP);
            let at = at.called("cuMemHostAlloc")?;
            at.cast::<u32>().write_bytes(0, n);
            at
        };
        self.mailboxes.push(Mailbox { at, marks: Vec::with_capacity(n) });
        let mailbox = self.mailboxes.last_mut().expect("pushed above");
        for _ in 0..n {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            mailbox.marks.push(result::event::create(flags).called("cuEventCreate")?);
        }
        let mut address = 0;
        // SAFETY: the memory was allocated above, to be mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, at, 0) }
            .result()
            .called("cuMemHostGetDevicePointer")?;
        Ok(Mailboxes { at: address, id: self.mailboxes.len() as u32 - 1 })
    }

    fn mark(&mut self, mailboxes: Mailboxes, i: usize) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: event and stream live as long as the card.
        unsafe { result::event::record(self.mailboxes[mailboxes.id as usize].marks[i], self.stream) }
            .called("cuEventRecord")
    }

    fn collect(&mut self, mailboxes: Mailboxes, i: usize) -> Result<u32, BackendError> {
        self.bind()?;
        let Mailbox { at, marks } = &self.mailboxes[mailboxes.id as usize];
        // SAFETY: the event lives as long as the card; the memory has a word for each mark, and whoever
        // writes this one next is queued after this call.
        unsafe {
            result::event::synchronize(marks[i]).called("cuEventSynchronize")?;
            Ok(at.cast::<u32>().add(i).read_volatile())
        }
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        let at = kernel_names().position(|kernel| kernel == name)?;
        self.kernels[at].map(|_| Kernel(at as u32))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), BackendError> {
        self.bind()?;
        let kernel = self.kernels[launch.kernel.0 as usize].expect("a kernel that this card has");
        // SAFETY: all bytes of the attribute are plain data.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        if launch.cooperative {
            attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attribute.value.cooperative = 1;
        } else {
            attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream,
            attrs: &raw mut attribute,
            // Before sm_90 kernels do not wait by themselves, so they must not start early.
            numAttrs: u32::from(launch.cooperative || self.about.starts_early()),
        };
        let mut params = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the kernel takes one struct, whose bytes these are; its addresses are the backend's.
        unsafe { sys::cuLaunchKernelEx(&raw const config, kernel, params.as_mut_ptr(), null_mut()) }
            .result()
            .called("cuLaunchKernelEx")
    }

    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the card; the graph is destroyed once it is instantiated.
        unsafe {
            result::stream::begin_capture(self.stream, mode).called("cuStreamBeginCapture")?;
            let queued = launches.iter().try_for_each(|launch| self.launch(launch));
            let graph = result::stream::end_capture(self.stream).called("cuStreamEndCapture");
            queued?;
            let graph = graph?;
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph).called("cuGraphDestroy")?;
            let exec = exec.called("cuGraphInstantiate")?;
            self.recordings.push(exec);
            result::graph::upload(exec, self.stream).called("cuGraphUpload")?;
        }
        Ok(Recording(self.recordings.len() as u32 - 1))
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: both live as long as the card.
        unsafe { result::graph::launch(self.recordings[recording.0 as usize], self.stream) }
            .called("cuGraphLaunch")
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // What fails here fails because the card is gone, and there is nobody left to tell.
        let _ = self.bind();
        // SAFETY: each was made by this card, and nothing is on its way once the stream is idle.
        unsafe {
            if !self.stream.is_null() {
                let _ = result::stream::synchronize(self.stream);
            }
            for exec in self.recordings.drain(..) {
                let _ = result::graph::exec_destroy(exec);
            }
            for Pinned { at, free } in self.pinned.take().into_iter().flatten() {
                let _ = result::event::destroy(free);
                let _ = result::free_host(at);
            }
            for Mailbox { at, marks } in self.mailboxes.drain(..) {
                for mark in marks {
                    let _ = result::event::destroy(mark);
                }
                let _ = result::free_host(at);
            }
            for at in self.allocations.drain(..) {
                let _ = result::free_sync(at);
            }
            for module in self.modules.drain(..) {
                let _ = result::module::unload(module);
            }
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ARCHS, Card, FATBINS, code_for, no_kernels};

    #[test]
    fn a_build_without_kernels_says_what_brings_them() {
        assert!(
            no_kernels("80,120").contains("nvcc was not found; run scripts/setup-cuda.sh and build again")
        );
        assert!(no_kernels("none").contains("STERNA_CUDA_ARCHS=none left them out; build again without it"));
        let said = Card::open(i32::MAX).err().expect("nobody has so many cards").to_string();
        assert_eq!(said.contains(no_kernels(ARCHS)), FATBINS.is_empty(), "{said}");
    }

    #[test]
    fn code_is_for_its_generation_and_ptx_for_later_ones() {
        let cases = [
            ((7, 5), "no code"),
            ((8, 0), "machine code of sm_80"),
            ((8, 7), "machine code of sm_86"),
            ((8, 9), "machine code of sm_89"),
            ((9, 0), "machine code of sm_90"),
            ((10, 0), "PTX of compute_90"),
            ((12, 1), "machine code of sm_120"),
        ];
        for (compute, want) in cases {
            let got = code_for("80,86,89,90,120", "90", compute);
            assert!(got.starts_with(want), "{compute:?}: {got}");
        }
    }
}
