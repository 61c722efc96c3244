//! Calls for the driver, its cards and their contexts.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::Mutex;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUresult, CUuuid};
use sterna::backend::cuda::driver::simt::host::Host;

use crate::driver::{Driver, Result, calls, put};

/// Handles of contexts: card `i` has `CONTEXT + i`.
const CONTEXT: usize = 0xc000;

/// Card of a context; `None` for a null context.
pub fn card_of(driver: &Driver, context: CUcontext) -> Result<Option<usize>> {
    match (context as usize).checked_sub(CONTEXT) {
        None if context.is_null() => Ok(None),
        Some(card) if card < driver.cards.len() => Ok(Some(card)),
        _ => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
    }
}

/// Name of an error, in memory that is never freed.
fn name_of(error: CUresult) -> *const c_char {
    static NAMES: Mutex<Vec<(CUresult, CString)>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().expect("not poisoned");
    if let Some((_, name)) = names.iter().find(|(of, _)| *of == error) {
        return name.as_ptr();
    }
    names.push((error, CString::new(format!("{error:?}")).expect("a name without zeros")));
    names.last().expect("pushed above").1.as_ptr()
}

/// Number of cores that run kernels.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(2, |n| n.get() as u32)
}

calls! {
    fn cuInit(flags: c_uint) = |driver| {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        driver.initialise()
    }

    fn cuDriverGetVersion(version: *mut c_int) = |driver| {
        let (major, minor) = driver.settings.driver;
        put(version, 1000 * major + 10 * minor)
    }

    fn cuGetErrorName(error: CUresult, name: *mut *const c_char) = |_driver| { put(name, name_of(error)) }

    fn cuGetErrorString(error: CUresult, text: *mut *const c_char) = |_driver| { put(text, name_of(error)) }

    fn cuDeviceGetCount(n: *mut c_int) = |driver| { put(n, driver.cards.len() as c_int) }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) = |driver| {
        driver.device(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) = |driver| {
        let text = driver.device(device)?.spec.name.bytes().take(len.max(1) as usize - 1);
        for (i, byte) in text.chain([0]).enumerate() {
            put(name.add(i), byte as c_char)?;
        }
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) = |driver| {
        driver.device(device)?;
        put(uuid, CUuuid { bytes: [device as c_char; 16] })
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) = |driver| {
        put(bytes, driver.device(device)?.spec.memory_bytes as usize)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, which: CUdevice_attribute, device: CUdevice) = |driver| {
        use CUdevice_attribute as A;
        let optin = driver.settings.optin;
        let spec = &driver.device(device)?.spec;
        let it = match which {
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => spec.compute.0,
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => spec.compute.1,
            A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => spec.multiprocessors as c_int,
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => {
                optin.unwrap_or(spec.block_shared_bytes as c_int)
            }
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => spec.shared_bytes as c_int,
            A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => spec.l2_bytes as c_int,
            A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => spec.registers as c_int,
            A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => spec.threads as c_int,
            other => panic!("the stand-in driver has no {other:?}"),
        };
        put(value, it)
    }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) = |driver| {
        let card = driver.device(device)?;
        if let Some(fault) = card.fault {
            return Err(fault);
        }
        card.host.get_or_insert_with(|| Host::new(cores()));
        card.retained += 1;
        put(context, (CONTEXT + device as usize) as CUcontext)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) = |driver| {
        let card = driver.device(device)?;
        card.retained = card.retained.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if card.retained == 0 {
            driver.destroy_context(device as usize);
        }
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) = |driver| {
        let card = card_of(driver, context)?;
        if card.is_some_and(|card| driver.cards[card].retained == 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        Driver::make_current(card);
        Ok(())
    }

    /// With the setting `apart`, no card can access a peer.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) = |driver| {
        driver.device(device)?;
        driver.device(peer)?;
        put(can, c_int::from(device != peer && !driver.settings.apart))
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) = |driver| {
        let card = driver.current()?;
        let peer = card_of(driver, peer)?.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if peer == card || driver.settings.apart {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if driver.cards[peer].retained == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        if driver.cards[card].peers.contains(&peer) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        driver.cards[card].peers.push(peer);
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut CUcontext) = |driver| {
        let current = driver.current().map_or(0, |card| CONTEXT + card);
        put(context, current as CUcontext)
    }
}
