//! The interface of the CUDA backend to a device: memory, launches by name, recordings of launches, and
//! copies ahead of use.
//!
//! A driver must never know a stage or a program. `real` is a GPU; `simt` runs the same kernels on the CPU;
//! `cards.rs` is a table of GPUs. Start at [`Driver`].

mod blocks;
pub mod cards;
mod on_paper;
pub mod real;
#[cfg(feature = "simt")]
pub mod simt;

use std::any::Any;
use std::ops::Range;

use crate::{BackendError, CardRates, Overhead};

pub use blocks::Blocks;
pub use on_paper::OnPaper;

/// An address on the device.
pub type Address = u64;

/// A kernel of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(pub u32);

/// A list of launches that a driver keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording(pub u32);

/// Words of host memory that kernels write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mailboxes {
    /// Address of the first word for kernels.
    pub at: Address,
    /// Index among the driver's mailboxes.
    pub id: u32,
}

/// Page-locked host memory, and slots on the device that are filled from it while kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring(pub u32);

/// A copy from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address on the receiving device.
    pub to: Address,
    /// Address on the other device.
    pub from: Address,
    /// Its length.
    pub bytes: usize,
}

/// One run of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks in three dimensions.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block, a multiple of 16.
    pub shared_bytes: u32,
    /// The kernel's parameter struct.
    pub params: Vec<u64>,
}

/// Properties that launch geometry depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
    /// Maximum dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Bytes of the next kernel's weights that are worth prefetching into the GPU's cache.
    pub prefetch_bytes: u64,
    /// True if a few rows are multiplied by kernels that stream octets of weights through shared memory.
    pub streams_octets: bool,
    /// True if many rows are.
    pub streams_prompts: bool,
}

impl Limits {
    /// The limits of a GPU.
    fn of(multiprocessors: u32, shared_bytes: u32, l2_bytes: u64) -> Self {
        // A quarter, so that data that the running kernel reads again stays cached. Not measured.
        let prefetch_bytes = l2_bytes / 4;
        Self { multiprocessors, shared_bytes, prefetch_bytes, streams_octets: false, streams_prompts: false }
    }
}

/// A device. All work is queued in order; reads wait for it.
pub trait Driver: Any + Send {
    /// The backend's name over this driver.
    fn name(&self) -> &'static str;

    /// Description of the device for the user.
    fn device(&self) -> String;

    /// See [`Backend::self_test_key`](crate::Backend::self_test_key).
    fn self_test_key(&self) -> Option<String> {
        None
    }

    /// Properties that launch geometry depends on.
    fn limits(&self) -> Limits;

    /// Free memory in bytes, if the device can tell.
    fn free_bytes(&self) -> Option<u64>;

    /// Throughput rates, if known.
    fn rates(&self) -> Option<CardRates> {
        None
    }

    /// Free memory that the driver itself is going to use.
    fn overhead(&self) -> Vec<Overhead> {
        Vec::new()
    }

    /// Zeroed memory, aligned to 256 bytes; freed when the driver is dropped.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError>;

    /// Overwrites a whole array in constant memory, in every kernel file that has one of that name. No kernel
    /// that reads the old values may be running.
    ///
    /// # Errors
    /// [`BackendError::Device`], also if no constant has that name and size.
    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackendError>;

    /// Queues a copy to the device. The caller may change the bytes after the call.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError>;

    /// Waits for all queued work, then copies from the device.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), BackendError>;

    /// Speeds up copies between this device and another one, in both directions, if possible.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If `other` is not of the same kind.
    fn connect(&mut self, other: &mut dyn Driver) -> Result<(), BackendError>;

    /// Queues copies from another device. They begin after the work queued there, and work that is queued
    /// later on either device waits for them. The host does not wait.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If `from` is not of the same kind.
    fn receive(&mut self, from: &mut dyn Driver, pieces: &[Piece]) -> Result<(), BackendError>;

    /// `n` zeroed words of host memory that kernels write; freed when the driver is dropped.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError>;

    /// Marks the work queued so far as what writes word `i` of `mailboxes`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn mark(&mut self, mailboxes: Mailboxes, i: usize) -> Result<(), BackendError>;

    /// Waits for the work before the last mark of word `i`, and reads the word. Work that was queued later
    /// continues.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn collect(&mut self, mailboxes: Mailboxes, i: usize) -> Result<u32, BackendError>;

    /// The kernel with this name, if there is one.
    fn kernel(&self, name: &str) -> Option<Kernel>;

    /// Queues one launch.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn launch(&mut self, launch: &Launch) -> Result<(), BackendError>;

    /// Stores launches, to be replayed as one.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError>;

    /// Queues groups of launches (not as a recording), waits for them, and returns the device time of each
    /// group in nanoseconds.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn time(&mut self, groups: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError>;

    /// Queues all launches of a recording.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn replay(&mut self, recording: Recording) -> Result<(), BackendError>;

    /// Allocates `bytes` of page-locked host memory and a copy stream that fills `slots` pieces of device
    /// memory from it while kernels run; freed when the driver is dropped.
    ///
    /// # Errors
    /// [`BackendError::Device`], also if the system cannot lock that much memory, or the device cannot copy
    /// in this way.
    fn ring(&mut self, bytes: u64, _slots: usize) -> Result<Ring, BackendError> {
        let detail = format!("this device cannot copy {bytes} bytes while kernels run");
        Err(BackendError::Device { backend: self.name(), call: "ring", detail })
    }

    /// Address at which kernels can read a ring's host memory, if they can.
    fn ring_address(&self, _ring: Ring) -> Option<Address> {
        None
    }

    /// Writes into a ring's host memory. No copy of these bytes may be pending.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// If the bytes exceed the memory.
    fn fill(&mut self, _ring: Ring, _at: u64, _bytes: &[u8]) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }

    /// Queues a copy of some of a ring's bytes to a slot, whose address is `to`. It begins when the slot has
    /// been released and earlier copies are done. Only an acquire of the slot waits for it.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn copy_ahead(
        &mut self,
        _ring: Ring,
        _slot: usize,
        _to: Address,
        _from: Range<u64>,
    ) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }

    /// Makes work that is queued from now on wait for the last copy to a slot.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn acquire(&mut self, _ring: Ring, _slot: usize) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }

    /// Makes the next copies to a slot wait for the work queued so far.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn release(&mut self, _ring: Ring, _slot: usize) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }
}

/// Another device, which must be of the same kind.
fn same_kind<D: Driver>(other: &mut dyn Driver) -> &mut D {
    (other as &mut dyn Any).downcast_mut().expect("devices of one backend")
}
