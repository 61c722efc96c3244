//! Calls for memory: device memory, pinned host memory, and copies.

use std::collections::BTreeMap;
use std::ffi::{c_uchar, c_uint, c_void};

use cudarc::driver::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CUcontext, CUdeviceptr, CUresult, CUstream};
use sterna::backend::cuda::driver::Address;

use crate::device::card_of;
use crate::driver::{Card, Driver, Result, calls, put, say};
use crate::stream::Op;

/// Allocations of a card, by address.
#[derive(Default)]
pub struct Allocations {
    blocks: BTreeMap<Address, Block>,
    used: u64,
    pinned: u64,
}

impl Allocations {
    /// Number of allocations that have to be freed.
    pub fn n_left(&self) -> usize {
        self.blocks.values().filter(|block| block.place != Place::Module).count()
    }
}

#[derive(Clone, Copy)]
struct Block {
    bytes: u64,
    place: Place,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Card,
    /// A module's constant or variable.
    Module,
    Host {
        mapped: bool,
    },
}

impl Card {
    fn alloc(&mut self, bytes: u64, place: Place) -> Result<Address> {
        let on_card = if place == Place::Card { bytes } else { 0 };
        if bytes == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.memory.used + on_card > self.spec.memory_bytes {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let at = self.host.as_ref().and_then(|host| host.alloc(bytes));
        let at = at.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: allocated above. The documentation does not define the initial contents.
        unsafe { (at as *mut u8).write_bytes(0xff, bytes as usize) };
        self.memory.blocks.insert(at, Block { bytes, place });
        self.memory.used += on_card;
        Ok(at)
    }

    fn free(&mut self, at: Address, is_kind: impl Fn(Place) -> bool) -> Result {
        let block = self.memory.blocks.get(&at).filter(|block| is_kind(block.place));
        let block = *block.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.memory.blocks.remove(&at);
        match block.place {
            Place::Card => self.memory.used -= block.bytes,
            Place::Host { .. } => self.memory.pinned -= block.bytes,
            Place::Module => {}
        }
        let freed = self.host.as_ref().is_some_and(|host| host.free(at));
        assert!(freed, "the host does not know the allocation");
        Ok(())
    }

    pub fn add_global(&mut self, at: Address, bytes: u64) {
        self.memory.blocks.insert(at, Block { bytes, place: Place::Module });
    }

    /// True if a range is in page-locked host memory.
    pub fn is_pinned(&self, at: Address, bytes: u64) -> bool {
        let block = self.memory.blocks.range(..=at).next_back();
        block.is_some_and(|(start, block)| {
            matches!(block.place, Place::Host { .. }) && at + bytes <= start + block.bytes
        })
    }

    /// Checks that a range is in one allocation that the card may access.
    pub fn check(&self, at: Address, bytes: u64) -> Result {
        let block = self.memory.blocks.range(..=at).next_back();
        match block {
            Some((start, block)) if at + bytes <= start + block.bytes => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

impl Driver {
    /// Queues a copy in a stream of the current card, between device or host addresses.
    fn copy(
        &mut self,
        to: (Address, Option<usize>),
        from: (Address, Option<usize>),
        bytes: usize,
        stream: CUstream,
    ) -> Result {
        let card = self.current()?;
        for (at, of) in [to, from] {
            if at == 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if let Some(of) = of
                && let Err(refused) = self.cards[of].check(at, bytes as u64)
            {
                say(format_args!("a copy of {bytes} bytes at {at:#x} is outside every allocation"));
                return Err(refused);
            }
        }
        self.queue(card, stream, Op::Copy { to, from, bytes })
    }
}

calls! {
    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) = |driver| {
        let card = driver.current_unless_recording()?;
        put(at, driver.cards[card].alloc(bytes as u64, Place::Card)?)
    }

    fn cuMemFree_v2(at: CUdeviceptr) = |driver| {
        let card = driver.current_unless_recording()?;
        driver.cards[card].free(at, |place| place == Place::Card)
    }

    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint) = |driver| {
        let card = driver.current_unless_recording()?;
        let place = Place::Host { mapped: flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 };
        let pinned: u64 = driver.cards.iter().map(|card| card.memory.pinned).sum();
        if pinned + bytes as u64 > driver.settings.pinned {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        put(at, driver.cards[card].alloc(bytes as u64, place)? as *mut c_void)?;
        driver.cards[card].memory.pinned += bytes as u64;
        Ok(())
    }

    fn cuMemFreeHost(at: *mut c_void) = |driver| {
        let card = driver.current_unless_recording()?;
        driver.cards[card].free(at as Address, |place| matches!(place, Place::Host { .. }))
    }

    fn cuMemHostGetDevicePointer_v2(to: *mut CUdeviceptr, at: *mut c_void, flags: c_uint) = |driver| {
        let card = driver.current()?;
        let block = driver.cards[card].memory.blocks.get(&(at as Address));
        match block.map(|block| block.place) {
            Some(Place::Host { mapped: true }) if flags == 0 => put(to, at as Address),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = |driver| {
        let card = driver.current()?;
        let (of_card, used) = (driver.cards[card].spec.memory_bytes, driver.cards[card].memory.used);
        put(free, (of_card - used) as usize)?;
        put(total, of_card as usize)
    }

    /// The documentation does not mention 0 bytes, so they are an error.
    fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream) = |driver| {
        let card = driver.current()?;
        if bytes == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        driver.cards[card].check(at, bytes as u64)?;
        driver.queue(card, stream, Op::Fill { at, value, bytes })
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) = |driver| {
        let card = driver.current()?;
        driver.copy((to, Some(card)), (from as Address, None), bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) = |driver| {
        let card = driver.current()?;
        driver.copy((to as Address, None), (from, Some(card)), bytes, stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) = |driver| {
        let card = driver.current()?;
        driver.copy((to, Some(card)), (from, Some(card)), bytes, stream)
    }

    /// Works with and without peer access, as documented.
    fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) = |driver| {
        let [to_card, from_card] = [to_context, from_context].map(|context| card_of(driver, context));
        let [Some(to_card), Some(from_card)] = [to_card?, from_card?] else {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        };
        driver.copy((to, Some(to_card)), (from, Some(from_card)), bytes, stream)
    }
}
