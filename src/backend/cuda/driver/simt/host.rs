//! The CPU as a device: Rust bindings for `cuda/host/runtime.h`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;

use super::super::Address;

#[repr(C)]
struct SimtDevice {
    _opaque: [u8; 0],
}

#[repr(C)]
struct SimtLaunch {
    _opaque: [u8; 0],
}

#[repr(C)]
struct SimtKernel {
    unit: *const c_char,
    max_threads: u32,
    params_bytes: usize,
}

#[repr(C)]
struct SimtConfig {
    name: *const c_char,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: usize,
    early: bool,
    counted: bool,
    seed: u64,
}

/// Accesses of 16 bytes and asynchronous copies by a launch's first block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sectors of 32 bytes of global memory.
    pub sectors: u64,
    /// Minimum number of sectors for the bytes.
    pub least_sectors: u64,
    /// Passes of shared memory, each of 8 threads.
    pub passes: u64,
    /// Minimum number of passes, without bank conflicts.
    pub least_passes: u64,
}

unsafe extern "C" {
    fn simt_open(cores: u32) -> *mut SimtDevice;
    fn simt_close(device: *mut SimtDevice);
    fn simt_alloc(device: *mut SimtDevice, bytes: usize) -> *mut c_void;
    fn simt_free(device: *mut SimtDevice, at: *mut c_void) -> bool;
    fn simt_find(name: *const c_char, kernel: *mut SimtKernel) -> bool;
    fn simt_constant(
        name: *const c_char,
        unit: *const c_char,
        at: *mut *mut c_void,
        bytes: *mut usize,
    ) -> bool;
    fn simt_begin(
        device: *mut SimtDevice,
        config: *const SimtConfig,
        params: *const c_void,
        error: *mut c_char,
        error_bytes: usize,
    ) -> *mut SimtLaunch;
    fn simt_finish(
        launch: *mut SimtLaunch,
        counts: *mut Counts,
        error: *mut c_char,
        error_bytes: usize,
    ) -> c_int;
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.sectors += more.sectors;
        self.least_sectors += more.least_sectors;
        self.passes += more.passes;
        self.least_passes += more.least_passes;
    }
}

/// Memory, and operating system threads that run kernels.
pub struct Host {
    device: *mut SimtDevice,
}

// SAFETY: the device is used by its owner, by one thread at a time; its own threads end with each
// launch.
unsafe impl Send for Host {}

/// A compiled kernel.
pub struct KernelInfo {
    /// Its file: `types_i2_s` for `cuda/types/i2_s.cu`.
    pub unit: &'static str,
    /// Maximum threads per block.
    pub max_threads: u32,
    /// Bytes of its parameters.
    pub params_bytes: usize,
}

/// The configuration of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The kernel's name.
    pub name: &'a CStr,
    /// Blocks in three dimensions.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: usize,
    /// True if the first blocks start at once, up to the point where they wait for the previous kernel.
    pub early: bool,
    /// True if only the first block runs, and its accesses are counted.
    pub counted: bool,
    /// Selects the order in which the threads of a block run: 0 is their own.
    pub seed: u64,
}

/// A launch that has begun. It must be finished by the thread that began it.
pub struct Begun {
    launch: *mut SimtLaunch,
}

/// Prefix that build.rs gives a file's name.
const UNIT: &str = "sterna_simt_unit_";

/// The kernel with this name, if there is one.
pub fn kernel(name: &CStr) -> Option<KernelInfo> {
    let mut kernel = SimtKernel { unit: std::ptr::null(), max_threads: 0, params_bytes: 0 };
    // SAFETY: the name ends with a zero, and the result can be written.
    if !unsafe { simt_find(name.as_ptr(), &raw mut kernel) } {
        return None;
    }
    // SAFETY: a static string of the program.
    let unit = unsafe { CStr::from_ptr(kernel.unit) }.to_str().expect("a file's name");
    let unit = unit.strip_prefix(UNIT).expect("build.rs names it");
    Some(KernelInfo { unit, max_threads: kernel.max_threads, params_bytes: kernel.params_bytes })
}

/// Address and bytes of an array in constant memory: that of a kernel file, or the first with this name. All
/// hosts share it.
pub fn constant(name: &CStr, unit: Option<&str>) -> Option<(Address, usize)> {
    let unit = unit.map(|unit| std::ffi::CString::new(format!("{UNIT}{unit}")).expect("a file's name"));
    let unit = unit.as_ref().map_or(std::ptr::null(), |unit| unit.as_ptr());
    let (mut at, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the names end with a zero, and the results can be written.
    unsafe { simt_constant(name.as_ptr(), unit, &raw mut at, &raw mut bytes) }
        .then_some((at as Address, bytes))
}

/// Overwrites a whole array in constant memory; false if there is none of that name and size.
pub fn upload_constant(name: &CStr, bytes: &[u8]) -> bool {
    static WRITING: Mutex<()> = Mutex::new(());
    let Some((at, _)) = constant(name, None).filter(|(_, len)| *len == bytes.len()) else { return false };
    let _writing = WRITING.lock();
    // SAFETY: an array of this size. Another host may be running a kernel that reads it, so equal bytes are
    // not written again.
    unsafe {
        let old = std::slice::from_raw_parts(at as *const u8, bytes.len());
        if old != bytes {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        }
    }
    true
}

impl Host {
    /// A device with `cores` cores.
    pub fn new(cores: u32) -> Self {
        // SAFETY: takes any number of cores, and never returns null.
        Self { device: unsafe { simt_open(cores) } }
    }

    /// Zeroed memory, aligned to 256 bytes, if there is enough.
    pub fn alloc(&self, bytes: u64) -> Option<Address> {
        // SAFETY: the device is open.
        let at = unsafe { simt_alloc(self.device, usize::try_from(bytes).ok()?) };
        (!at.is_null()).then_some(at as Address)
    }

    /// Takes the allocation that begins at `at` away from the kernels; false if none begins there. Its bytes
    /// are overwritten, and are kept until the host is dropped.
    pub fn free(&self, at: Address) -> bool {
        // SAFETY: the device is open, and looks the address up.
        unsafe { simt_free(self.device, at as *mut c_void) }
    }

    /// Begins a launch.
    ///
    /// # Errors
    /// The reason for which a GPU would refuse it.
    ///
    /// # Safety
    /// The parameters are those of the kernel, and refer to memory that it may access until the launch has
    /// ended.
    pub unsafe fn begin(&self, config: &Config<'_>, params: &[u8]) -> Result<Begun, String> {
        let Config { name, grid, threads, shared_bytes, early, counted, seed } = *config;
        let bytes = kernel(name).map(|kernel| kernel.params_bytes);
        assert_eq!(bytes, Some(params.len()), "bytes of {name:?}'s parameters");
        let config = SimtConfig { name: name.as_ptr(), grid, threads, shared_bytes, early, counted, seed };
        let mut error = [0_u8; 512];
        // SAFETY: the name ends with a zero; the parameters have the kernel's size; the error has the given
        // length. The caller guarantees the rest.
        let launch = unsafe {
            let (params, error) = (params.as_ptr().cast(), error.as_mut_ptr().cast());
            simt_begin(self.device, &raw const config, params, error, 512)
        };
        if launch.is_null() { Err(text(&error)) } else { Ok(Begun { launch }) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: opened in `new`, and closed once.
        unsafe { simt_close(self.device) }
    }
}

impl Begun {
    /// Runs the launch to its end, and returns the counts of its accesses if they are counted.
    ///
    /// # Errors
    /// The error of a thread of the kernel.
    pub fn finish(self) -> Result<Counts, String> {
        let (mut counts, mut error) = (Counts::default(), [0_u8; 512]);
        // SAFETY: begun, and finished once; the results can be written, and the error has the given length.
        match unsafe { simt_finish(self.launch, &raw mut counts, error.as_mut_ptr().cast(), error.len()) } {
            0 => Ok(counts),
            _ => Err(text(&error)),
        }
    }
}

fn text(error: &[u8]) -> String {
    CStr::from_bytes_until_nul(error).unwrap_or_default().to_string_lossy().into_owned()
}
