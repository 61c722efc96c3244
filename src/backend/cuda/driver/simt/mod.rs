//! A driver for the kernels compiled for the CPU; `cuda/host/runtime.h` describes how they run.
#![allow(unsafe_code)]

pub mod host;
mod ring;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use self::host::{Counts, Host};
use self::ring::Copies;
use super::cards::{SMALL, Spec};
use super::{Address, Driver, Kernel, Launch, Limits, Mailboxes, Piece, Recording, Ring, same_kind};
use crate::BackendError;
use crate::cuda::kernels;

const NAME: &str = "cuda-simt";

/// The CPU in place of a GPU.
pub struct Simt {
    host: Host,
    cores: u32,
    card: &'static Spec,
    /// Selects the order in which the threads of a block run.
    seed: u64,
    /// Names of the kernels that exist.
    kernels: Vec<CString>,
    recordings: Vec<Vec<Launch>>,
    n_mailboxes: u32,
    rings: Vec<Copies>,
    /// Counts per kernel, if accesses are counted.
    counts: Option<Arc<Mutex<BTreeMap<String, Counts>>>>,
}

impl Simt {
    /// A small GPU with `cores` cores. `seed` selects the order in which the threads of a block run: 0 is
    /// their own.
    pub fn new(cores: u32, seed: u64) -> Self {
        Self::of_card(cores, seed, &SMALL)
    }

    /// The same with the geometry of a given GPU.
    pub fn of_card(cores: u32, seed: u64, card: &'static Spec) -> Self {
        let kernels = kernels::all().filter_map(|name| CString::new(name.to_string()).ok());
        let kernels = kernels.filter(|name| host::kernel(name).is_some()).collect();
        let (recordings, rings) = (Vec::new(), Vec::new());
        let host = Host::new(cores);
        Self { host, cores, card, seed, kernels, recordings, n_mailboxes: 0, rings, counts: None }
    }

    /// The same, but runs only the first block of each launch, and adds up its accesses by kernel. The
    /// computed values are meaningless.
    #[must_use]
    pub fn counting(self, counts: Arc<Mutex<BTreeMap<String, Counts>>>) -> Self {
        Self { counts: Some(counts), ..self }
    }

    fn fail(call: &'static str, detail: impl Into<String>) -> BackendError {
        BackendError::Device { backend: NAME, call, detail: detail.into() }
    }

    /// Performs the copy that is queued for a slot, if there is one.
    fn deliver(&mut self, ring: Ring, slot: usize) -> Result<(), BackendError> {
        let copies = &mut self.rings[ring.0 as usize];
        let Some((to, from, bytes)) = copies.take(slot) else { return Ok(()) };
        // SAFETY: both ends are inside what the backend allocated, and no launch is under way.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }
}

impl Driver for Simt {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> String {
        let order = if self.seed == 0 { String::new() } else { format!(", order {}", self.seed) };
        let card = if *self.card == SMALL { String::new() } else { format!(", as {}", self.card.name) };
        format!("CUDA kernels on the CPU ({} cores{order}{card})", self.cores)
    }

    fn limits(&self) -> Limits {
        self.card.limits()
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError> {
        let none = BackendError::OutOfMemory { backend: NAME, need: bytes, free: 0 };
        self.host.alloc(bytes).ok_or(none)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError> {
        // SAFETY: the backend writes inside what it allocated, and no launch is under way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackendError> {
        let c_name = CString::new(name).map_err(|err| Self::fail("constants", err.to_string()))?;
        let missing = || Self::fail("constants", format!("no `{name}` of {} bytes", bytes.len()));
        host::upload_constant(&c_name, bytes).then_some(()).ok_or_else(missing)
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), BackendError> {
        // SAFETY: the backend reads inside what it allocated, and no launch is under way.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn connect(&mut self, other: &mut dyn Driver) -> Result<(), BackendError> {
        same_kind::<Self>(other);
        Ok(())
    }

    fn receive(&mut self, from: &mut dyn Driver, pieces: &[Piece]) -> Result<(), BackendError> {
        same_kind::<Self>(from);
        for &Piece { to, from, bytes } in pieces {
            // SAFETY: both ends are inside what the backend allocated, and no launch is under way.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        }
        Ok(())
    }

    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError> {
        let at = self.alloc(4 * n as u64)?;
        self.n_mailboxes += 1;
        Ok(Mailboxes { at, id: self.n_mailboxes - 1 })
    }

    /// Nothing to do: a launch has ended when it returns.
    fn mark(&mut self, _: Mailboxes, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn collect(&mut self, mailboxes: Mailboxes, i: usize) -> Result<u32, BackendError> {
        let mut word = [0; 4];
        self.read(mailboxes.at + 4 * i as u64, &mut word)?;
        Ok(u32::from_ne_bytes(word))
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        let at = self.kernels.iter().position(|kernel| kernel.as_bytes() == name.as_bytes())?;
        Some(Kernel(at as u32))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), BackendError> {
        let config = host::Config {
            name: &self.kernels[launch.kernel.0 as usize],
            grid: launch.grid,
            threads: launch.threads,
            shared_bytes: launch.shared_bytes as usize,
            early: false,
            counted: self.counts.is_some(),
            seed: self.seed,
        };
        // SAFETY: the parameters are for this kernel, and refer to memory that the backend allocated.
        let begun = unsafe { self.host.begin(&config, bytemuck::cast_slice(&launch.params)) };
        let taken = begun.and_then(host::Begun::finish).map_err(|err| Self::fail("launch", err))?;
        if let Some(counts) = &self.counts {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry(config.name.to_string_lossy().into_owned()).or_default() += taken;
        }
        Ok(())
    }

    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError> {
        self.recordings.push(launches);
        Ok(Recording(self.recordings.len() as u32 - 1))
    }

    fn time(&mut self, groups: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError> {
        let of_group = |launches: &Vec<Launch>| {
            let start = Instant::now();
            launches.iter().try_for_each(|launch| self.launch(launch))?;
            Ok(start.elapsed().as_nanos() as u64)
        };
        groups.iter().map(of_group).collect()
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        let launches = std::mem::take(&mut self.recordings[recording.0 as usize]);
        let result = launches.iter().try_for_each(|launch| self.launch(launch));
        self.recordings[recording.0 as usize] = launches;
        result
    }

    fn ring(&mut self, bytes: u64, slots: usize) -> Result<Ring, BackendError> {
        let host = self
            .host
            .alloc(bytes)
            .ok_or_else(|| Self::fail("ring", format!("no {bytes} bytes of memory")))?;
        self.rings.push(Copies::new(host, bytes, slots, self.seed));
        Ok(Ring(self.rings.len() as u32 - 1))
    }

    fn ring_address(&self, ring: Ring) -> Option<Address> {
        Some(self.rings[ring.0 as usize].address())
    }

    fn fill(&mut self, ring: Ring, at: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let to = self.rings[ring.0 as usize].place(at, bytes.len());
        self.write(to, bytes)
    }

    fn copy_ahead(
        &mut self,
        ring: Ring,
        slot: usize,
        to: Address,
        from: Range<u64>,
    ) -> Result<(), BackendError> {
        let copies = &mut self.rings[ring.0 as usize];
        let late = copies.queue(slot, to, from.clone()).map_err(|err| Self::fail("copy_ahead", err))?;
        self.write(to, &vec![ring::POISON; (from.end - from.start) as usize])?;
        if late { Ok(()) } else { self.deliver(ring, slot) }
    }

    fn acquire(&mut self, ring: Ring, slot: usize) -> Result<(), BackendError> {
        self.deliver(ring, slot)?;
        self.rings[ring.0 as usize].acquire(slot);
        Ok(())
    }

    fn release(&mut self, ring: Ring, slot: usize) -> Result<(), BackendError> {
        self.rings[ring.0 as usize].release(slot);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    /// Runs one block of a kernel of `cuda/host/broken.cu` over 64 bytes, words that count from 0; returns
    /// the first word, or the runtime's error.
    fn run(kernel: &CStr, threads: u32, seed: u64) -> Result<u32, String> {
        run_blocks(kernel, [1, 1, 1], threads, seed).map(|out| out[0])
    }

    /// The same over several blocks; returns all words.
    fn run_blocks(kernel: &CStr, grid: [u32; 3], threads: u32, seed: u64) -> Result<[u32; 16], String> {
        let mut simt = Simt::new(1, seed);
        simt.kernels = vec![kernel.to_owned()];
        let out = simt.alloc(64).unwrap();
        let counting: Vec<u32> = (0..16).collect();
        simt.write(out, bytemuck::cast_slice(&counting)).unwrap();
        let (shared_bytes, params) = (1024, vec![out]);
        let launch = Launch { kernel: Kernel(0), grid, threads, shared_bytes, params };
        simt.launch(&launch).map_err(|err| err.to_string())?;
        let mut words = [0; 16];
        simt.read(out, bytemuck::cast_slice_mut(&mut words)).unwrap();
        Ok(words)
    }

    #[test]
    fn constants_are_written_by_name_and_size() {
        let mut simt = Simt::new(1, 0);
        assert!(simt.upload_constant("no_such_constants", &[0; 4]).is_err());
        assert!(simt.upload_constant("signs_params", &[0; 4]).is_err());
    }

    /// Before a slot is acquired it holds poison or its bytes, depending on the seed; afterwards it always
    /// holds its bytes. A slot in use is not filled.
    #[test]
    fn a_slot_has_its_bytes_once_it_is_acquired() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..8 {
            let mut simt = Simt::new(1, seed);
            let at = simt.alloc(4).unwrap();
            let ring = simt.ring(8, 1).unwrap();
            simt.fill(ring, 4, &[1, 2, 3, 4]).unwrap();
            let read = |simt: &mut Simt| {
                let mut bytes = [0; 4];
                simt.read(at, &mut bytes).unwrap();
                bytes
            };
            for _ in 0..4 {
                simt.copy_ahead(ring, 0, at, 4..8).unwrap();
                seen.insert(read(&mut simt));
                simt.acquire(ring, 0).unwrap();
                assert_eq!(read(&mut simt), [1, 2, 3, 4]);
                let said = simt.copy_ahead(ring, 0, at, 0..4).unwrap_err().to_string();
                assert!(said.contains("slot 0 is in use"), "{said}");
                simt.release(ring, 0).unwrap();
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [[1, 2, 3, 4], [ring::POISON; 4]]);
    }

    #[test]
    fn mistakes_end_a_launch_and_name_the_thread() {
        for (kernel, threads, want) in [
            (c"broken_alignment", 32, "thread 7 of block (0, 0, 0): 16 bytes at"),
            (
                c"broken_bounds",
                32,
                "thread 3 of block (0, 0, 0): 16 bytes at offset 64 of an allocation of 64 bytes",
            ),
            (
                c"broken_barrier",
                64,
                "waits forever at a barrier or warp exchange: 1 of 64 threads have ended",
            ),
            (
                c"broken_exchange",
                32,
                "waits forever at a barrier or warp exchange: 1 of 32 threads have ended",
            ),
            (c"broken_copy_end", 32, "the thread ends with asynchronous copies in flight"),
            (c"broken_bulk_end", 32, "block (0, 0, 0) ends with bulk copies in flight"),
            (
                c"broken_bulk_bytes",
                32,
                "waits forever at a barrier or warp exchange: 0 of 32 threads have ended",
            ),
            (c"broken_static_shared", 32, "65536 bytes of static shared memory: at most 49152 are available"),
        ] {
            for seed in [0, 1, 2] {
                let said = run(kernel, threads, seed).expect_err("a broken kernel");
                assert!(said.contains(kernel.to_str().unwrap()) && said.contains(want), "{said}");
            }
        }
    }

    #[test]
    #[ignore = "ends the program: run by scripts/kernels/sanitize"]
    fn access_next_to_an_allocation_is_an_error() {
        let _ = run(c"broken_plain_bounds", 32, 0);
    }

    #[test]
    #[ignore = "ends the program: run by scripts/kernels/sanitize"]
    fn an_access_that_is_not_aligned() {
        let _ = run(c"broken_plain_alignment", 32, 0);
    }

    /// In any order of threads.
    #[test]
    #[ignore = "needs kernels that detect races: run by scripts/kernels/sanitize"]
    fn races_end_a_launch_and_name_both_places() {
        for (kernel, threads, says) in [
            (c"broken_race", 64, ["read by thread 0 at", "written by thread 63 at"]),
            (c"broken_exchange_race", 32, ["read by thread ", "written by thread "]),
            (c"broken_overwrite_race", 64, ["read by thread ", "written by thread "]),
            (c"broken_copy_race", 64, ["written by thread 0 at", "read by thread 33 at"]),
            (c"broken_copy_overwrite", 64, ["written by thread 0 at", "read by thread 33 at"]),
            (c"broken_bulk_race", 64, ["written by thread 0 at", "read by thread "]),
        ] {
            for seed in 0..8 {
                let said = run(kernel, threads, seed).expect_err("a race");
                println!("{said}");
                assert!(
                    said.contains("a race: byte ") && says.iter().any(|say| said.contains(say)),
                    "{said}"
                );
                assert_eq!(said.matches("broken.cu:").count(), 2, "{said}");
            }
        }
        for seed in 0..8 {
            for (kernel, threads) in [(c"broken_blocks_race", 1), (c"broken_arrival_race", 2)] {
                let said = run_blocks(kernel, [4, 1, 1], 32 * threads, seed).expect_err("a race");
                println!("{said}");
                assert!(said.contains("a race: global memory is written by thread "), "{said}");
            }
            run(c"rounds_without_races", 128, seed).unwrap();
            run(c"halves_of_a_block", 128, seed).unwrap();
            run(c"bulk_rounds_without_races", 64, seed).unwrap();
            run_blocks(c"arrivals_without_races", [4, 1, 1], 64, seed).unwrap();
        }
    }

    /// Memory that has not been written is all ones, and some order of threads shows it.
    #[test]
    fn a_missing_barrier_shows() {
        let seen: Vec<u32> = (0..16).map(|seed| run(c"broken_race", 64, seed).unwrap()).collect();
        assert_eq!(seen[0], u32::MAX, "in their own order thread 0 is the first");
        assert!(seen.contains(&63), "{seen:?}");
    }

    #[test]
    fn a_copy_is_not_there_before_it_was_waited_for() {
        assert_eq!(run(c"broken_copy_read", 32, 0), Ok(u32::MAX));
    }

    /// The same for bulk copies, which arrive as a whole; with the wait, the values are right in any order.
    #[test]
    fn a_bulk_copy_is_there_once_its_barrier_was_waited_for() {
        assert_eq!(run(c"broken_bulk_read", 32, 0), Ok(u32::MAX));
        for seed in 0..8 {
            // Word 5, twice.
            assert_eq!(run(c"bulk_rounds_without_races", 64, seed), Ok(10));
        }
    }

    /// An early copy overwrites data that is still read, in some orders; a late one never does.
    #[test]
    fn a_copy_may_be_there_before_it_is_waited_for() {
        let seen: Vec<u32> = (0..32).map(|seed| run(c"broken_copy_overwrite", 64, seed).unwrap()).collect();
        assert_eq!(seen[0], 1, "in its own order a copy arrives when it is waited for");
        assert!(seen.contains(&5), "{seen:?}");
    }

    /// A kernel that does not wait reads memory as it was before the previous kernel ran.
    #[test]
    fn a_missing_wait_for_the_kernel_before_shows() {
        for (early, want) in [(true, [7, 0, 7]), (false, [7, 7, 7])] {
            let mut simt = Simt::new(2, 1);
            let out = simt.alloc(64).unwrap();
            let (name, grid, seed) = (c"broken_wait", [1, 1, 1], 1);
            let config =
                host::Config { name, grid, threads: 32, shared_bytes: 0, early, counted: false, seed };
            if !early {
                simt.write(out, &7_u32.to_ne_bytes()).unwrap();
            }
            // SAFETY: the kernel takes this one address.
            let begun = unsafe { simt.host.begin(&config, &out.to_ne_bytes()) }.unwrap();
            simt.write(out, &7_u32.to_ne_bytes()).unwrap();
            begun.finish().unwrap();
            let mut words = [0_u32; 3];
            simt.read(out, bytemuck::cast_slice_mut(&mut words)).unwrap();
            assert_eq!(words, want, "early: {early}");
        }
    }

    /// Each round doubles every value of a half.
    #[test]
    fn halves_of_a_block_meet_at_barriers_of_their_own() {
        for seed in 0..8 {
            let words = run_blocks(c"halves_of_a_block", [3, 1, 1], 128, seed).unwrap();
            assert_eq!(words[..3], [8, 32, 2], "order {seed}");
        }
    }
}
