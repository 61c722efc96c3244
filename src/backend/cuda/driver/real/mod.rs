//! A driver for an NVIDIA GPU, through the driver API, which is loaded at run time.
//!
//! cudarc's tracked types are not used: their events would end up in recordings.
#![allow(unsafe_code)]

mod about;
mod call;
mod code;
mod kernels;
mod ring;
mod staging;

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use self::about::{About, count};
use self::call::{Called, NAME, fail};
use self::kernels::Kernels;
use self::ring::Copies;
use self::staging::Staging;
use super::cards::Spec;
use super::{Address, Blocks, Driver, Kernel, Launch, Limits, Mailboxes, Piece, Recording, Ring, same_kind};
use crate::{BackendError, CardRates};

pub use self::about::{cards, cards_with_memory};
pub use self::code::{FATBINS, kernels};

/// One GPU.
pub struct Card {
    context: sys::CUcontext,
    device: sys::CUdevice,
    stream: sys::CUstream,
    /// Event that another GPU waits for. Created at opening.
    reached: sys::CUevent,
    kernels: Kernels,
    allocations: Vec<sys::CUdeviceptr>,
    /// Unused space in the allocations.
    blocks: Blocks,
    /// Created at opening.
    staging: Option<Staging>,
    mailboxes: Vec<Mailbox>,
    recordings: Vec<sys::CUgraphExec>,
    rings: Vec<Copies>,
    about: About,
}

/// Words of host memory that kernels write.
struct Mailbox {
    at: *mut c_void,
    /// Per word: the end of the work that writes it.
    marks: Vec<sys::CUevent>,
}

// SAFETY: handles of the driver may be used by any thread; each call makes the context current first.
unsafe impl Send for Card {}

impl Card {
    /// Opens a GPU, and loads the kernels.
    ///
    /// # Errors
    /// [`BackendError::Device`] if there are no kernels, no driver, no such GPU, or no code for it.
    pub fn open(ordinal: i32) -> Result<Self, BackendError> {
        if let Some(missing) = code::missing() {
            return Err(fail("open", missing));
        }
        let n = count()?;
        if !(0..n).contains(&ordinal) {
            return Err(fail("open", format!("there is no GPU {ordinal}; this machine has {n}")));
        }
        let device = result::device::get(ordinal).called("cuDeviceGet")?;
        let about = About::of(device)?;
        // SAFETY: the device comes from the driver; `drop` releases the context.
        let context = unsafe { result::primary_ctx::retain(device) }.called("cuDevicePrimaryCtxRetain")?;
        let mut card = Self {
            context,
            device,
            stream: null_mut(),
            reached: null_mut(),
            kernels: Kernels::default(),
            allocations: Vec::new(),
            blocks: Blocks::default(),
            staging: None,
            mailboxes: Vec::new(),
            recordings: Vec::new(),
            rings: Vec::new(),
            about,
        };
        card.bind()?;
        card.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        card.reached = result::event::create(flags).called("cuEventCreate")?;
        card.kernels.load(&card.about)?;
        card.staging = Some(Staging::new()?);
        Ok(card)
    }

    /// Makes the context this thread's current one.
    fn bind(&self) -> Result<(), BackendError> {
        // SAFETY: the context is retained until the card is dropped.
        unsafe { result::ctx::set_current(self.context) }.called("cuCtxSetCurrent")
    }

    /// Makes work that is queued here from now on wait for the work queued on another GPU.
    fn wait_for(&self, other: &Self) -> Result<(), BackendError> {
        // SAFETY: events and streams live as long as their cards.
        unsafe {
            other.bind()?;
            result::event::record(other.reached, other.stream).called("cuEventRecord")?;
            self.bind()?;
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(self.stream, other.reached, flags).called("cuStreamWaitEvent")
        }
    }

    /// Lets this GPU read another one's memory directly, if possible.
    fn enable_access(&self, other: &Self) -> Result<(), BackendError> {
        let mut can = 0;
        // SAFETY: the result can be written; both devices come from the driver.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        asked.result().called("cuDeviceCanAccessPeer")?;
        if can == 0 {
            // The driver then copies through host memory by itself.
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the context is retained until the other card is dropped.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            enabled => enabled.result().called("cuCtxEnablePeerAccess"),
        }
    }

    fn wait(&self) -> Result<(), BackendError> {
        // SAFETY: the stream lives as long as the card.
        unsafe { result::stream::synchronize(self.stream) }.called("cuStreamSynchronize")
    }
}

impl Card {
    /// Queues groups of launches with an event before each and one after the last, which are added to
    /// `events`, waits for all of them, and returns the nanoseconds between each two.
    fn between_events(
        &mut self,
        groups: &[Vec<Launch>],
        events: &mut Vec<sys::CUevent>,
    ) -> Result<Vec<u64>, BackendError> {
        for group in 0..=groups.len() {
            let event =
                result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).called("cuEventCreate")?;
            events.push(event);
            // SAFETY: the event was made above, and the stream lives as long as the card.
            unsafe { result::event::record(event, self.stream) }.called("cuEventRecord")?;
            groups.get(group).into_iter().flatten().try_for_each(|launch| self.launch(launch))?;
        }
        // SAFETY: all of them were recorded, and each is destroyed after this call.
        unsafe { result::event::synchronize(events[groups.len()]) }.called("cuEventSynchronize")?;
        let between = |pair: &[sys::CUevent]| {
            // SAFETY: as above.
            let ms = unsafe { result::event::elapsed(pair[0], pair[1]) }.called("cuEventElapsedTime")?;
            Ok((f64::from(ms) * 1e6) as u64)
        };
        events.windows(2).map(between).collect()
    }
}

impl Driver for Card {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> String {
        self.about.to_string()
    }

    fn self_test_key(&self) -> Option<String> {
        let uuid = result::device::get_uuid(self.device).ok()?;
        let uuid: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        Some(format!("{}, {uuid}, {}", self.about, code::id()))
    }

    fn limits(&self) -> Limits {
        self.about.limits
    }

    fn rates(&self) -> Option<CardRates> {
        Spec::known().find(|card| card.name == self.about.name).map(|card| card.rates)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.bind().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError> {
        if let Some(at) = self.blocks.find(bytes) {
            return Ok(at);
        }
        self.bind()?;
        // SAFETY: kept until the card is dropped, and zeroed below.
        let made = |bytes: u64| unsafe { result::malloc_sync(bytes as usize) };
        let no_room = Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        let mut block_bytes = self.blocks.block_bytes(bytes);
        let mut at = made(block_bytes);
        if at == no_room {
            // There may be room for the piece alone.
            block_bytes = bytes.max(1);
            at = made(block_bytes);
        }
        if at == no_room {
            let free = self.free_bytes().unwrap_or(0);
            return Err(BackendError::OutOfMemory { backend: NAME, need: bytes, free });
        }
        let at = at.called("cuMemAlloc")?;
        self.allocations.push(at);
        self.blocks.add(at, block_bytes, bytes);
        // SAFETY: as many bytes as were allocated.
        unsafe { result::memset_d8_async(at, 0, block_bytes as usize, self.stream) }
            .called("cuMemsetD8Async")?;
        Ok(at)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.bind()?;
        let staging = self.staging.as_mut().expect("made at opening");
        staging.write(to, bytes, self.stream)
    }

    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackendError> {
        self.bind()?;
        for (at, len) in self.kernels.globals(name)? {
            if len != bytes.len() {
                let sizes = format!("{len} bytes of `{name}`, have {}", bytes.len());
                return Err(fail("cuModuleGetGlobal", sizes));
            }
            self.write(at, bytes)?;
        }
        Ok(())
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: inside what the backend allocated; waited for before `out` is given back.
        unsafe { result::memcpy_dtoh_async(out, from, self.stream) }.called("cuMemcpyDtoHAsync")?;
        self.wait()
    }

    fn connect(&mut self, other: &mut dyn Driver) -> Result<(), BackendError> {
        let other = same_kind::<Self>(other);
        self.enable_access(other)?;
        other.enable_access(self)
    }

    fn receive(&mut self, from: &mut dyn Driver, pieces: &[Piece]) -> Result<(), BackendError> {
        let other = same_kind::<Self>(from);
        self.wait_for(other)?;
        for &Piece { to, from, bytes } in pieces {
            // SAFETY: both ends are inside what the backend allocated, each on its card.
            unsafe { sys::cuMemcpyPeerAsync(to, self.context, from, other.context, bytes, self.stream) }
                .result()
                .called("cuMemcpyPeerAsync")?;
        }
        other.wait_for(self)
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
        // SAFETY: the event lives as long as the card; the memory has a word for each mark, and the next
        // write to this word is queued after this call.
        unsafe {
            result::event::synchronize(marks[i]).called("cuEventSynchronize")?;
            Ok(at.cast::<u32>().add(i).read_volatile())
        }
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        let at = crate::cuda::kernels::all().position(|kernel| kernel.to_string() == name)?;
        self.kernels.has(at).then_some(Kernel(at as u32))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), BackendError> {
        self.bind()?;
        kernels::launch(self.stream, self.kernels.function(launch)?, launch, self.about.starts_early())
    }

    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the card; the graph is destroyed once it is instantiated.
        unsafe {
            result::stream::begin_capture(self.stream, mode).called("cuStreamBeginCapture")?;
            let queued = launches.iter().try_for_each(|launch| self.launch(launch));
            let graph = result::stream::end_capture(self.stream).called("cuStreamEndCapture");
            // An error of a launch is more informative than the resulting error of the recording.
            let graph = queued.and(graph)?;
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph).called("cuGraphDestroy")?;
            let exec = exec.called("cuGraphInstantiate")?;
            self.recordings.push(exec);
            result::graph::upload(exec, self.stream).called("cuGraphUpload")?;
        }
        Ok(Recording(self.recordings.len() as u32 - 1))
    }

    fn time(&mut self, groups: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError> {
        self.bind()?;
        let mut events = Vec::with_capacity(groups.len() + 1);
        let timed = self.between_events(groups, &mut events);
        for event in events {
            // SAFETY: made by this card, and in no recording.
            unsafe { result::event::destroy(event) }.called("cuEventDestroy")?;
        }
        timed
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: both live as long as the card.
        unsafe { result::graph::launch(self.recordings[recording.0 as usize], self.stream) }
            .called("cuGraphLaunch")
    }

    fn ring(&mut self, bytes: u64, slots: usize) -> Result<Ring, BackendError> {
        self.bind()?;
        self.rings.push(Copies::new(bytes, slots)?);
        Ok(Ring(self.rings.len() as u32 - 1))
    }

    fn ring_address(&self, ring: Ring) -> Option<Address> {
        Some(self.rings[ring.0 as usize].address())
    }

    fn fill(&mut self, ring: Ring, at: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.rings[ring.0 as usize].fill(at, bytes);
        Ok(())
    }

    fn copy_ahead(
        &mut self,
        ring: Ring,
        slot: usize,
        to: Address,
        from: Range<u64>,
    ) -> Result<(), BackendError> {
        self.bind()?;
        self.rings[ring.0 as usize].copy(slot, to, from)
    }

    fn acquire(&mut self, ring: Ring, slot: usize) -> Result<(), BackendError> {
        self.bind()?;
        self.rings[ring.0 as usize].acquire(slot, self.stream)
    }

    fn release(&mut self, ring: Ring, slot: usize) -> Result<(), BackendError> {
        self.bind()?;
        self.rings[ring.0 as usize].release(slot, self.stream)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // Calls fail here only if the GPU is gone, and there is no caller left to tell.
        let _ = self.bind();
        // SAFETY: each was made by this card, and nothing is pending once the stream is idle.
        unsafe {
            if !self.stream.is_null() {
                let _ = result::stream::synchronize(self.stream);
            }
            for exec in self.recordings.drain(..) {
                let _ = result::graph::exec_destroy(exec);
            }
            self.rings.drain(..).for_each(Copies::free);
            if let Some(staging) = self.staging.take() {
                staging.free();
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
            self.kernels.unload();
            if !self.reached.is_null() {
                let _ = result::event::destroy(self.reached);
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
    use super::*;

    #[test]
    fn a_card_that_is_not_there_is_not_opened() {
        let said = Card::open(i32::MAX).err().expect("no machine has that many GPUs").to_string();
        assert!(code::missing().is_none_or(|missing| said.contains(missing)), "{said}");
    }
}
