//! Copies to the GPU while its kernels run: page-locked memory, a separate stream, and two events per slot.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::call::{Called, fail};
use crate::cuda::driver::Address;
use crate::{BackendError, OptionId};

const WAIT: sys::CUevent_wait_flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;

/// Slots that are filled from host memory.
pub struct Copies {
    host: *mut c_void,
    /// Its address for kernels.
    address: Address,
    bytes: u64,
    stream: sys::CUstream,
    /// Per slot: the end of its last copy.
    full: Vec<sys::CUevent>,
    /// Per slot: the end of its last use.
    free: Vec<sys::CUevent>,
}

impl Copies {
    /// Allocates everything; frees it again after an error.
    pub fn new(bytes: u64, slots: usize) -> Result<Self, BackendError> {
        let mut copies = Self {
            host: null_mut(),
            address: 0,
            bytes,
            stream: null_mut(),
            full: Vec::new(),
            free: Vec::new(),
        };
        match copies.make(slots) {
            Ok(()) => Ok(copies),
            Err(err) => {
                copies.free();
                Err(err)
            }
        }
    }

    fn make(&mut self, slots: usize) -> Result<(), BackendError> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: freed in `free`.
        let host = unsafe { result::malloc_host(self.bytes.max(1) as usize, flags) };
        self.host = host.map_err(|DriverError(code)| {
            let want = format!("{} bytes of page-locked memory for streamed layers: {code:?}", self.bytes);
            let way_out = ["; a larger ", OptionId::GpuLayers.path(), " needs less"];
            fail("cuMemHostAlloc", want).avoided_by(way_out)
        })?;
        // SAFETY: the memory was allocated above, to be mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut self.address, self.host, 0) }
            .result()
            .called("cuMemHostGetDevicePointer")?;
        self.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        for events in [&mut self.full, &mut self.free] {
            for _ in 0..slots {
                let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
                events.push(result::event::create(flags).called("cuEventCreate")?);
            }
        }
        Ok(())
    }

    /// Address of the host memory for kernels.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Writes into the host memory.
    pub fn fill(&mut self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.bytes, "{} bytes at {at} of {}", bytes.len(), self.bytes);
        // SAFETY: inside the memory, which is not read meanwhile.
        unsafe {
            let to = self.host.byte_add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
        }
    }

    /// Queues a copy after the slot's last use.
    pub fn copy(&self, slot: usize, to: Address, from: Range<u64>) -> Result<(), BackendError> {
        assert!(from.start <= from.end && from.end <= self.bytes, "{from:?} of {}", self.bytes);
        // SAFETY: events and streams live as long as the card; the bytes are inside the memory, and the
        // address is inside what the backend allocated.
        unsafe {
            result::stream::wait_event(self.stream, self.free[slot], WAIT).called("cuStreamWaitEvent")?;
            let at = self.host.byte_add(from.start as usize);
            sys::cuMemcpyHtoDAsync_v2(to, at, (from.end - from.start) as usize, self.stream)
                .result()
                .called("cuMemcpyHtoDAsync")?;
            result::event::record(self.full[slot], self.stream).called("cuEventRecord")
        }
    }

    /// Makes work that is queued in `stream` from now on wait for the slot's last copy.
    pub fn acquire(&self, slot: usize, stream: sys::CUstream) -> Result<(), BackendError> {
        // SAFETY: events and streams live as long as the card.
        unsafe { result::stream::wait_event(stream, self.full[slot], WAIT) }.called("cuStreamWaitEvent")
    }

    /// Makes the slot's next copy wait for the work queued in `stream`.
    pub fn release(&self, slot: usize, stream: sys::CUstream) -> Result<(), BackendError> {
        // SAFETY: events and streams live as long as the card.
        unsafe { result::event::record(self.free[slot], stream) }.called("cuEventRecord")
    }

    /// Waits for the copies, and frees everything, ignoring errors.
    pub fn free(self) {
        // SAFETY: made in `make`, and no copy is pending once the stream is idle.
        unsafe {
            if !self.stream.is_null() {
                let _ = result::stream::synchronize(self.stream);
            }
            for event in self.full.into_iter().chain(self.free) {
                let _ = result::event::destroy(event);
            }
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            if !self.host.is_null() {
                let _ = result::free_host(self.host);
            }
        }
    }
}
