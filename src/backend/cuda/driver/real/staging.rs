//! Copies to the card through pinned memory. Whether the driver has read pageable memory when an asynchronous
//! copy returns is left open by its documentation; from here it reads memory that stays unchanged until then.
#![allow(unsafe_code)]

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::call::Called;
use crate::BackendError;
use crate::cuda::driver::Address;

/// Parts of the memory. One is filled while the card copies from the others.
const PARTS: usize = 4;
const PART_BYTES: usize = 4 << 20;

/// Copies of the processor go faster from and to lines of its cache.
const ALIGN: usize = 64;

/// Pinned memory that is filled again and again, part after part.
pub struct Staging {
    at: *mut c_void,
    /// One a part: when the copies from it were done.
    free: Vec<sys::CUevent>,
    /// The part that is being filled, and its bytes that are taken.
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

    /// Queues a copy. Waits only where all parts are full of copies that are on their way.
    pub fn write(&mut self, to: Address, bytes: &[u8], stream: sys::CUstream) -> Result<(), BackendError> {
        for (i, piece) in bytes.chunks(PART_BYTES).enumerate() {
            if self.taken + piece.len() > PART_BYTES {
                self.turn(stream)?;
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

    /// Goes on to the next part, once the copies from it are done.
    fn turn(&mut self, stream: sys::CUstream) -> Result<(), BackendError> {
        let next = (self.part + 1) % PARTS;
        // SAFETY: events and stream live as long as the card.
        unsafe {
            result::event::record(self.free[self.part], stream).called("cuEventRecord")?;
            result::event::synchronize(self.free[next]).called("cuEventSynchronize")?;
        }
        (self.part, self.taken) = (next, 0);
        Ok(())
    }

    /// Gives everything back, as far as that is possible. No copy is on its way.
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
