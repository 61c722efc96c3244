//! Copies to the GPU through pinned memory. The driver's documentation does not say whether pageable memory
//! has been read when an asynchronous copy returns. This memory stays unchanged until the copy is done.
#![allow(unsafe_code)]

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::call::Called;
use crate::BackendError;
use crate::cuda::driver::Address;

/// Parts of the memory. One is filled while the GPU copies from the others.
const PARTS: usize = 4;
const PART_BYTES: usize = 4 << 20;

/// CPU copies are faster between whole cache lines.
const ALIGN: usize = 64;

/// Pinned memory that is refilled part after part.
pub struct Staging {
    at: *mut c_void,
    /// Per part: the end of the copies from it.
    free: Vec<sys::CUevent>,
    /// The part that is being filled, and its used bytes.
    part: usize,
    taken: usize,
}

impl Staging {
    pub fn new() -> Result<Self, BackendError> {
        // SAFETY: freed in `free`, and never read on the host.
        let at = unsafe { result::malloc_host(PARTS * PART_BYTES, 0) }.called("cuMemHostAlloc")?;
        let mut staging = Self { at, free: Vec::with_capacity(PARTS), part: 0, taken: 0 };
        for _ in 0..PARTS {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            staging.free.push(result::event::create(flags).called("cuEventCreate")?);
        }
        Ok(staging)
    }

    /// Queues a copy. Waits only if all parts are full of pending copies.
    pub fn write(&mut self, to: Address, bytes: &[u8], stream: sys::CUstream) -> Result<(), BackendError> {
        for (i, piece) in bytes.chunks(PART_BYTES).enumerate() {
            if self.taken + piece.len() > PART_BYTES {
                self.next_part(stream)?;
            }
            let to = to + (i * PART_BYTES) as u64;
            // SAFETY: the part has room for the piece, and no copy reads that room any more; the address is
            // inside what the backend allocated.
            unsafe {
                let at = self.at.byte_add(self.part * PART_BYTES + self.taken);
                std::ptr::copy_nonoverlapping(piece.as_ptr(), at.cast(), piece.len());
                sys::cuMemcpyHtoDAsync_v2(to, at, piece.len(), stream)
                    .result()
                    .called("cuMemcpyHtoDAsync")?;
            }
            self.taken = (self.taken + piece.len()).next_multiple_of(ALIGN);
        }
        Ok(())
    }

    /// Moves to the next part, once the copies from it are done.
    fn next_part(&mut self, stream: sys::CUstream) -> Result<(), BackendError> {
        let next = (self.part + 1) % PARTS;
        // SAFETY: events and stream live as long as the card.
        unsafe {
            result::event::record(self.free[self.part], stream).called("cuEventRecord")?;
            result::event::synchronize(self.free[next]).called("cuEventSynchronize")?;
        }
        (self.part, self.taken) = (next, 0);
        Ok(())
    }

    /// Frees everything, ignoring errors. No copy may be pending.
    pub fn free(self) {
        // SAFETY: made in `new`.
        unsafe {
            for event in self.free {
                let _ = result::event::destroy(event);
            }
            let _ = result::free_host(self.at);
        }
    }
}
