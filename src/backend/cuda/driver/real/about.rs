//! The description of a GPU, and whether this build has code for it.
#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use super::call::{Called, fail};
use super::code;
use crate::BackendError;
use crate::cuda::driver::{Limits, cards};

/// Shared memory that a block has on every GPU. Drivers of the 590 series have reported 0 and 0x100000001
/// bytes for an RTX 5080 and 5090 (llama.cpp issues 23385, 24991 and 27215).
const LEAST_SHARED_BYTES: i32 = 48 << 10;

/// Description of a GPU.
pub struct About {
    pub name: String,
    pub compute: (i32, i32),
    pub memory_bytes: usize,
    pub limits: Limits,
    /// CUDA version that the driver supports.
    pub driver: (i32, i32),
}

/// Initialises the driver, and counts its GPUs.
pub fn count() -> Result<i32, BackendError> {
    // SAFETY: loads and unloads a library.
    if !unsafe { sys::is_culib_present() } {
        let library = if cfg!(windows) { "nvcuda.dll" } else { "libcuda" };
        return Err(fail("open", format!("no NVIDIA driver on this machine ({library} was not found)")));
    }
    match result::init() {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        initialised => initialised.called("cuInit").and_then(|()| {
            let n = result::device::get_count();
            n.called("cuDeviceGetCount")
        }),
    }
    .and_then(|n| if n > 0 { Ok(n) } else { Err(fail("open", "the NVIDIA driver finds no GPU")) })
}

/// Descriptions of all GPUs of this machine for the user, including whether this build has code for them.
///
/// # Errors
/// [`BackendError::Device`] if there is no driver or no GPU.
pub fn cards() -> Result<Vec<String>, BackendError> {
    let card = |ordinal| {
        let about = About::of(result::device::get(ordinal).called("cuDeviceGet")?)?;
        let code = about.code().unwrap_or_else(|lacking| lacking);
        Ok(format!("{about}: {code}"))
    };
    (0..count()?).map(card).collect()
}

/// The same, with the free memory of each. To query it, the GPU is opened, which takes some of its memory
/// meanwhile.
///
/// # Errors
/// As [`cards()`].
pub fn cards_with_memory() -> Result<Vec<String>, BackendError> {
    let with_memory = |(ordinal, card): (usize, String)| match free_and_total(ordinal as i32) {
        Ok((free, total)) => {
            let (free, total) = (free >> 20, total >> 20);
            format!("{card}; {free} MiB of {total} MiB are free, not counting what this program uses")
        }
        Err(err) => format!("{card}; its free memory is unknown: {err}"),
    };
    Ok(cards()?.into_iter().enumerate().map(with_memory).collect())
}

/// Free and total bytes of a GPU's memory.
fn free_and_total(ordinal: i32) -> Result<(usize, usize), BackendError> {
    let device = result::device::get(ordinal).called("cuDeviceGet")?;
    // SAFETY: the device comes from the driver, and its context is released below.
    let context = unsafe { result::primary_ctx::retain(device) }.called("cuDevicePrimaryCtxRetain")?;
    // SAFETY: the context is retained.
    let bound = unsafe { result::ctx::set_current(context) }.called("cuCtxSetCurrent");
    let memory = bound.and_then(|()| result::mem_get_info().called("cuMemGetInfo"));
    // SAFETY: a null context is always valid.
    let unbound = unsafe { result::ctx::set_current(std::ptr::null_mut()) }.called("cuCtxSetCurrent");
    // SAFETY: it was retained above, and nothing in it is used.
    let released = unsafe { result::primary_ctx::release(device) }.called("cuDevicePrimaryCtxRelease");
    let memory = memory?;
    unbound.and(released).map(|()| memory)
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, BackendError> {
    // SAFETY: the device comes from the driver.
    unsafe { result::device::get_attribute(device, which) }.called("cuDeviceGetAttribute")
}

impl About {
    pub fn of(device: sys::CUdevice) -> Result<Self, BackendError> {
        use sys::CUdevice_attribute as Attribute;
        let of = |which| attribute(device, which);
        let compute = (
            of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let of_block = of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let of_multiprocessor = of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        let is_possible = (LEAST_SHARED_BYTES..=of_multiprocessor).contains(&of_block);
        let shared = if is_possible { of_block as u32 } else { cards::block_shared_bytes(compute) };
        let l2_bytes = of(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        let mut version = 0;
        // SAFETY: the result can be written; the device comes from the driver.
        let memory_bytes = unsafe {
            sys::cuDriverGetVersion(&raw mut version).result().called("cuDriverGetVersion")?;
            result::device::total_mem(device).called("cuDeviceTotalMem")?
        };
        Ok(Self {
            name: result::device::get_name(device).called("cuDeviceGetName")?,
            compute,
            memory_bytes,
            limits: Limits::of(multiprocessors as u32, shared, l2_bytes as u64),
            driver: (version / 1000, version % 1000 / 10),
        })
    }

    /// True if a kernel may start before the one before it has ended (programmatic dependent launch).
    pub fn starts_early(&self) -> bool {
        self.compute >= (9, 0)
    }

    /// The code that this build has for the GPU, or the reason why it has none and the remedy.
    pub fn code(&self) -> Result<String, String> {
        code::code(self.compute, self.driver)
    }
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, compute: (major, minor), memory_bytes, driver: (driver, of_driver), .. } = self;
        write!(
            f,
            "{name}, {} MiB, compute capability {major}.{minor}, driver for CUDA {driver}.{of_driver}",
            memory_bytes >> 20
        )
    }
}
