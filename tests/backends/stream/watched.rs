//! A driver that counts allocations and copies, and fails in the calls that a test chooses.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sterna::backend::BackendError;
use sterna::backend::cuda::driver::simt::Simt;
use sterna::backend::cuda::driver::{
    Address, Driver, Kernel, Launch, Limits, Mailboxes, Piece, Recording, Ring,
};

/// Counters and faults of a driver.
#[derive(Default)]
pub struct Watch {
    /// Allocated bytes of the card and of page-locked host memory.
    pub card: AtomicU64,
    pub host: AtomicU64,
    /// Free bytes that the driver reports, if any.
    pub free: Option<u64>,
    /// True if copies are not waited for.
    pub forgets: bool,
    /// True if page-locked memory is refused.
    pub no_ring: AtomicBool,
    /// The only copy that fails, counted from 1; 0 for none.
    pub fails: AtomicU32,
    /// The read and the write that fail, likewise.
    pub reads_until: AtomicU32,
    pub writes_until: AtomicU32,
    /// Number of queued copies, and the minimum duration of each.
    pub copies: AtomicU64,
    pub copy_nanoseconds: u64,
}

/// The CUDA kernels on the CPU with these counters and faults.
pub struct Watched {
    on: Simt,
    watch: Arc<Watch>,
}

impl Watched {
    pub fn new(on: Simt, watch: &Arc<Watch>) -> Self {
        Self { on, watch: Arc::clone(watch) }
    }

    /// True for the call that fails.
    fn is_last(until: &AtomicU32) -> bool {
        until.load(Ordering::Relaxed) > 0 && until.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn failed(call: &'static str, detail: &str) -> BackendError {
        BackendError::Device { backend: "cuda-simt", call, detail: detail.into() }
    }
}

type Done<T = ()> = Result<T, BackendError>;

impl Driver for Watched {
    fn name(&self) -> &'static str {
        self.on.name()
    }

    fn device(&self) -> String {
        self.on.device()
    }

    fn limits(&self) -> Limits {
        self.on.limits()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.watch.free
    }

    fn alloc(&mut self, bytes: u64) -> Done<Address> {
        self.watch.card.fetch_add(bytes, Ordering::Relaxed);
        self.on.alloc(bytes)
    }

    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Done {
        self.on.upload_constant(name, bytes)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Done {
        if Self::is_last(&self.watch.writes_until) {
            return Err(Self::failed("write", "failed once"));
        }
        self.on.write(to, bytes)
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Done {
        if Self::is_last(&self.watch.reads_until) {
            return Err(Self::failed("read", "failed once"));
        }
        self.on.read(from, out)
    }

    fn connect(&mut self, other: &mut dyn Driver) -> Done {
        self.on.connect(other)
    }

    fn receive(&mut self, from: &mut dyn Driver, pieces: &[Piece]) -> Done {
        self.on.receive(from, pieces)
    }

    fn mailboxes(&mut self, n: usize) -> Done<Mailboxes> {
        self.on.mailboxes(n)
    }

    fn mark(&mut self, mailboxes: Mailboxes, i: usize) -> Done {
        self.on.mark(mailboxes, i)
    }

    fn collect(&mut self, mailboxes: Mailboxes, i: usize) -> Done<u32> {
        self.on.collect(mailboxes, i)
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        self.on.kernel(name)
    }

    fn launch(&mut self, launch: &Launch) -> Done {
        self.on.launch(launch)
    }

    fn record(&mut self, launches: Vec<Launch>) -> Done<Recording> {
        self.on.record(launches)
    }

    fn time(&mut self, groups: &[Vec<Launch>]) -> Done<Vec<u64>> {
        self.on.time(groups)
    }

    fn replay(&mut self, recording: Recording) -> Done {
        self.on.replay(recording)
    }

    fn ring(&mut self, bytes: u64, slots: usize) -> Done<Ring> {
        if self.watch.no_ring.load(Ordering::Relaxed) {
            return Err(Self::failed("ring", "page-locked memory was refused"));
        }
        self.watch.host.fetch_add(bytes, Ordering::Relaxed);
        self.on.ring(bytes, slots)
    }

    fn ring_address(&self, ring: Ring) -> Option<Address> {
        self.on.ring_address(ring)
    }

    fn fill(&mut self, ring: Ring, at: u64, bytes: &[u8]) -> Done {
        self.on.fill(ring, at, bytes)
    }

    fn copy_ahead(&mut self, ring: Ring, slot: usize, to: Address, from: Range<u64>) -> Done {
        self.watch.copies.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_nanos(self.watch.copy_nanoseconds));
        if Self::is_last(&self.watch.fails) {
            return Err(Self::failed("copy_ahead", "failed once"));
        }
        self.on.copy_ahead(ring, slot, to, from)
    }

    fn acquire(&mut self, ring: Ring, slot: usize) -> Done {
        if self.watch.forgets { Ok(()) } else { self.on.acquire(ring, slot) }
    }

    fn release(&mut self, ring: Ring, slot: usize) -> Done {
        self.on.release(ring, slot)
    }
}
