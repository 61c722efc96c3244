//! What the CUDA backend needs of a device: memory, launches by name, recordings of launches, copies ahead of
//! use.
//!
//! A driver must never know a stage or a program. `real` is a card; `simt` runs the same kernels on the
//! processor; `cards.rs` is a table of cards. Start at [`Driver`].

mod blocks;
pub mod cards;
mod on_paper;
pub mod real;
#[cfg(feature = "simt")]
pub mod simt;

use std::any::Any;
use std::ops::Range;

use super::BackendError;
use crate::{CardRates, Overhead};

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

/// Words of the host that kernels write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mailboxes {
    /// Where kernels find the first of them.
    pub at: Address,
    /// Which of a driver's.
    pub id: u32,
}

/// Page-locked memory of the host, and slots of the device that are filled from it beside everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring(pub u32);

/// A copy from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// On the device that receives it.
    pub to: Address,
    /// On the other.
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
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, a multiple of 16.
    pub shared_bytes: u32,
    /// The kernel's parameter struct.
    pub params: Vec<u64>,
}

/// Properties that launch geometry depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Multiprocessors of the card.
    pub multiprocessors: u32,
    /// Most dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of the next kernel's weights that are worth bringing to the card's cache early.
    pub prefetch_bytes: u64,
}

impl Limits {
    /// Those of a card.
    fn of(multiprocessors: u32, shared_bytes: u32, l2_bytes: u64) -> Self {
        // A quarter, so that what the running kernel reads again stays there. Not measured.
        Self { multiprocessors, shared_bytes, prefetch_bytes: l2_bytes / 4 }
    }
}

/// A device. Everything is queued in order; reading waits.
pub trait Driver: Any + Send {
    /// The backend's name over this driver.
    fn name(&self) -> &'static str;

    /// The device, for people.
    fn device(&self) -> String;

    /// As [`Backend::self_test_key`](crate::Backend::self_test_key).
    fn self_test_key(&self) -> Option<String> {
        None
    }

    /// Properties that launch geometry depends on.
    fn limits(&self) -> Limits;

    /// Bytes of memory that are free, where the device can tell.
    fn free_bytes(&self) -> Option<u64>;

    /// How fast it is, if that is known.
    fn rates(&self) -> Option<CardRates> {
        None
    }

    /// The driver's own share of that, not yet taken.
    fn overhead(&self) -> Vec<Overhead> {
        Vec::new()
    }

    /// Zeroed memory, aligned to 256 bytes; freed when the driver is dropped.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError>;

    /// Writes all of an array in constant memory, in every file of kernels that has one of that name. No
    /// kernel that reads other values may be under way.
    ///
    /// # Errors
    /// [`BackendError::Device`], also if no constant has that name and size.
    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackendError>;

    /// Queues a copy to the device. The bytes may change when it returns.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError>;

    /// Waits for everything, and copies from the device.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), BackendError>;

    /// Makes copies between this device and another one fast, in both directions, if there is a way.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where `other` is not of the same kind.
    fn connect(&mut self, other: &mut dyn Driver) -> Result<(), BackendError>;

    /// Queues copies from another device: they begin when what is queued there has been done, and what is
    /// queued later, on either of the two, waits for their end. The host does not wait.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where `from` is not of the same kind.
    fn receive(&mut self, from: &mut dyn Driver, pieces: &[Piece]) -> Result<(), BackendError>;

    /// `n` words of the host, zeroed, that kernels write; freed when the driver is dropped.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError>;

    /// Marks that whatever is queued up to here writes word `i` of `mailboxes`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn mark(&mut self, mailboxes: Mailboxes, i: usize) -> Result<(), BackendError>;

    /// Waits until what word `i` was last marked behind is done, and reads the word; what was queued later
    /// goes on.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn collect(&mut self, mailboxes: Mailboxes, i: usize) -> Result<u32, BackendError>;

    /// The kernel of a name, if there is one.
    fn kernel(&self, name: &str) -> Option<Kernel>;

    /// Queues one launch.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn launch(&mut self, launch: &Launch) -> Result<(), BackendError>;

    /// Keeps launches, to be replayed as one.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError>;

    /// Queues groups of launches, not as a recording, waits for them, and says how many nanoseconds of the
    /// device each group has taken.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn time(&mut self, groups: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError>;

    /// Queues all launches of a recording.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn replay(&mut self, recording: Recording) -> Result<(), BackendError>;

    /// `bytes` of page-locked memory of the host and a stream of copies from it, in which `slots` pieces of
    /// the device's memory are filled while kernels run; freed when the driver is dropped.
    ///
    /// # Errors
    /// [`BackendError::Device`], also where the system locks no more memory, or a device has no such copies.
    fn ring(&mut self, bytes: u64, _slots: usize) -> Result<Ring, BackendError> {
        let detail = format!("no copies of {bytes} bytes beside kernels on this device");
        Err(BackendError::Device { backend: self.name(), call: "ring", detail })
    }

    /// Where kernels find a ring's memory of the host, if they can read it there.
    fn ring_address(&self, _ring: Ring) -> Option<Address> {
        None
    }

    /// Writes into a ring's memory of the host. No copy of these bytes is queued.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Beyond the end of the memory.
    fn fill(&mut self, _ring: Ring, _at: u64, _bytes: &[u8]) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }

    /// Queues a copy of some of a ring's bytes to a slot, which lies at `to`. It begins when the slot was
    /// released and the copies before it are done, and nothing waits for it but who acquires the slot.
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

    /// What is queued from now on waits for the last copy to a slot.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn acquire(&mut self, _ring: Ring, _slot: usize) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }

    /// The next copies to a slot wait for what is queued up to here.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn release(&mut self, _ring: Ring, _slot: usize) -> Result<(), BackendError> {
        unreachable!("there are no rings")
    }
}

/// Another device of the same kind.
fn same_kind<D: Driver>(other: &mut dyn Driver) -> &mut D {
    (other as &mut dyn Any).downcast_mut().expect("devices of one backend")
}
