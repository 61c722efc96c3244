//! A thread pool for parallel regions of a few microseconds to milliseconds, about 200 of them per token.
//!
//! A region consists of `n` tasks that the calling thread and the workers claim one by one. A thread that the
//! system preempts therefore delays only its current task, and a worker that is still asleep delays nothing.
//! Workers spin for a moment after a region, then sleep. A region allocates nothing.
//!
//! This file uses `unsafe` because tasks share borrowed closures and slices; its interface is safe.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use sterna_cpu_kernels::Tile;

use super::numa::Places;
use sterna_host::clock::Instant;

/// Time that an idle thread spins before it sleeps: longer than the serial work between two regions of a
/// token, too short to show in `top`.
const SPIN: Duration = Duration::from_micros(200);

/// Threads that run regions together; the calling thread is one of them.
///
/// Not `Sync`, so that a task cannot start a region of its own.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: Cell<bool>,
    /// CPUs for the calling thread, until it is pinned in its first region.
    place: Cell<Option<Places>>,
}

/// Runs a task: the closure, the number of the task, and the number of the thread that runs it.
type Call = unsafe fn(*const (), usize, usize);

/// The current region.
#[derive(Clone, Copy)]
struct Job {
    call: Call,
    closure: *const (),
    n_tasks: usize,
}

struct Shared {
    /// Unclaimed tasks of the current region. Only a thread that has claimed a task may read `job`.
    unclaimed: CachePadded<AtomicUsize>,
    /// Tasks of the current region that are finished. The region ends when all are.
    finished: CachePadded<AtomicUsize>,
    /// Written only between two regions, by the calling thread.
    job: CachePadded<UnsafeCell<Job>>,
    stop: AtomicBool,
    started_workers: AtomicUsize,
    sleeping_workers: AtomicUsize,
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    work_there: Condvar,
    work_done: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spin: Duration,
}

// SAFETY: `job` is the only part that is not `Sync` by itself. The calling thread writes it while no task is
// unclaimed or unfinished; workers read it only after they have claimed a task (which synchronises with the
// `Release` store that published the region) and before they report that task as finished.
unsafe impl Sync for Shared {}
// SAFETY: as above; the closure that `job` points to is `Sync`, which `Pool::run` demands.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, including the calling one; 0 is treated as 1.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::placed(threads, None)
    }

    /// As [`new`](Self::new), with threads pinned to CPUs; the calling thread is pinned in its first region.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn placed(threads: usize, places: Option<Places>) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            unclaimed: CachePadded::new(AtomicUsize::new(0)),
            finished: CachePadded::new(AtomicUsize::new(0)),
            job: CachePadded::new(UnsafeCell::new(Job {
                call: |_, _, _| (),
                closure: std::ptr::null(),
                n_tasks: 0,
            })),
            stop: AtomicBool::new(false),
            started_workers: AtomicUsize::new(0),
            sleeping_workers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            lock: Mutex::new(()),
            work_there: Condvar::new(),
            work_done: Condvar::new(),
            panic: Mutex::new(None),
            // With more threads than cores, a spinning thread only delays another one.
            spin: if threads <= cores { SPIN } else { Duration::ZERO },
        });
        let (workers, busy) = (Vec::with_capacity(threads - 1), Cell::new(false));
        let mut pool = Self { shared, workers, busy, place: Cell::new(places.clone()) };
        for thread in 1..threads {
            let (shared, places) = (Arc::clone(&pool.shared), places.clone());
            let builder = std::thread::Builder::new().name(format!("cpu-{thread}"));
            pool.workers.push(builder.spawn(move || {
                places.inspect(|places| places.enter(thread));
                shared.work(thread);
            })?);
        }
        // A thread allocates while it starts; wait, so that this does not happen during the first region.
        while pool.shared.started_workers.load(Ordering::SeqCst) < threads - 1 {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    /// Number of threads, including the calling one.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i, thread)` for every `i` below `n_tasks`, in any order, and returns when all are finished.
    /// `thread` is below [`threads`](Self::threads), and no two tasks with the same `thread` run at once.
    ///
    /// # Panics
    /// With the panic of a task, after all tasks that have begun are finished; if called from a task.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, n_tasks: usize, task: F) {
        if n_tasks == 0 {
            return;
        }
        assert!(!self.busy.replace(true), "a parallel region inside a parallel region");
        let busy = Busy(&self.busy);
        if let Some(places) = self.place.take() {
            places.enter(0);
        }
        if self.workers.is_empty() || n_tasks == 1 {
            (0..n_tasks).for_each(|i| task(i, 0));
            return;
        }
        let shared = &*self.shared;
        // SAFETY: `closure` points to `task`, which outlives every call: no task is claimed after `wait`
        // returns.
        let call: Call = |closure, i, thread| unsafe { (*closure.cast::<F>())(i, thread) };
        // SAFETY: the previous region is over (`busy` was not set), so no other thread reads `job` now.
        unsafe { *shared.job.get() = Job { call, closure: (&raw const task).cast(), n_tasks } };
        shared.finished.store(0, Ordering::Relaxed);
        shared.unclaimed.store(n_tasks, Ordering::SeqCst);
        if shared.sleeping_workers.load(Ordering::SeqCst) > 0 {
            let _guard = shared.guard();
            shared.work_there.notify_all();
        }
        shared.take_tasks(0);
        shared.wait(n_tasks);
        drop(busy);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// As [`run`](Self::run), and passes `scratch[thread]` to each task.
    ///
    /// # Panics
    /// As [`run`](Self::run), and if `scratch` has fewer elements than there are threads.
    pub fn run_with<S: Send, F: Fn(usize, &mut S) + Sync>(&self, scratch: &mut [S], n_tasks: usize, task: F) {
        assert!(scratch.len() >= self.threads(), "{} scratch for {} threads", scratch.len(), self.threads());
        let scratch = Raw(scratch.as_mut_ptr());
        self.run(n_tasks, |i, thread| {
            // SAFETY: `thread` is below the length, and no two tasks with the same number run at once.
            task(i, unsafe { &mut *scratch.at(thread) });
        });
    }

    /// Runs `task(i, chunk)` for every chunk of `chunk_len` elements; the last may be shorter.
    ///
    /// # Panics
    /// As [`run`](Self::run), and if `chunk_len` is 0.
    pub fn chunks_mut<T: Send, F: Fn(usize, &mut [T]) + Sync>(
        &self,
        data: &mut [T],
        chunk_len: usize,
        task: F,
    ) {
        let len = data.len();
        let data = Raw(data.as_mut_ptr());
        self.run(len.div_ceil(chunk_len), |i, _| {
            let start = i * chunk_len;
            let chunk_len = chunk_len.min(len - start);
            // SAFETY: within the slice, and chunks of different tasks do not overlap.
            task(i, unsafe { std::slice::from_raw_parts_mut(data.at(start), chunk_len) });
        });
    }

    /// Cuts every grid into tiles of at most `height` x `width` and runs `task(what, tile)` for each, where
    /// `what` comes from the grid's own entry. Tiles are numbered column by column.
    ///
    /// # Panics
    /// As [`run`](Self::run), and if `height` or `width` is 0.
    pub fn tiles<M: Sync, T: Send, F>(
        &self,
        grids: &mut [(M, Grid<'_, T>)],
        height: usize,
        width: usize,
        task: F,
    ) where
        F: Fn(&M, Tile<'_, T>) + Sync,
    {
        let mut scratch = vec![(); self.threads()];
        self.tiles_with(&mut scratch, grids, height, width, |what, tile, ()| task(what, tile));
    }

    /// As [`tiles`](Self::tiles), and passes `scratch[thread]` to each task.
    ///
    /// # Panics
    /// As [`tiles`](Self::tiles), and if `scratch` has fewer elements than there are threads.
    pub fn tiles_with<S: Send, M: Sync, T: Send, F>(
        &self,
        scratch: &mut [S],
        grids: &mut [(M, Grid<'_, T>)],
        height: usize,
        width: usize,
        task: F,
    ) where
        F: Fn(&M, Tile<'_, T>, &mut S) + Sync,
    {
        let tiles_of = |grid: &Grid<'_, T>| (grid.rows.div_ceil(height), grid.cols.div_ceil(width));
        let n_tiles = grids.iter().map(|(_, grid)| tiles_of(grid)).map(|(down, across)| down * across).sum();
        let grids = &*grids;
        self.run_with(scratch, n_tiles, |mut i, scratch| {
            for (what, grid) in grids {
                let (down, across) = tiles_of(grid);
                if i < down * across {
                    let (row, col) = (i % down * height, i / down * width);
                    let rows = row..(row + height).min(grid.rows);
                    let cols = col..(col + width).min(grid.cols);
                    // SAFETY: within the grid, and tiles of different tasks do not overlap.
                    let tile = unsafe { Tile::new(grid.data, grid.stride, rows, cols) };
                    return task(what, tile, scratch);
                }
                i -= down * across;
            }
        });
    }

    /// Cuts runs of rows of a grid into column blocks of `width`, pairs each block with a piece of the run's
    /// slot, and runs `task(i, tile, piece)` for all of them, where `i` is the index of the run. `slots` is
    /// `[slots, pieces, piece_len]` with one piece per column block; `runs` are ranges of rows, each with its
    /// slot.
    ///
    /// # Panics
    /// As [`run`](Self::run); if runs overlap or share a slot; if a slot or a row does not exist.
    pub fn tiles_and_pieces<T: Send, S: Send, F>(
        &self,
        runs: &[(Range<usize>, usize)],
        grid: Grid<'_, T>,
        width: usize,
        slots: &mut [S],
        piece_len: usize,
        task: F,
    ) where
        F: Fn(usize, Tile<'_, T>, &mut [S]) + Sync,
    {
        let across = grid.cols.div_ceil(width);
        let n_slots = slots.len() / (across * piece_len);
        for (i, (rows, slot)) in runs.iter().enumerate() {
            assert!(rows.start <= rows.end && rows.end <= grid.rows && *slot < n_slots, "{rows:?} of {slot}");
            let apart = |other: &(Range<usize>, usize)| other.1 != *slot && other.0.end <= rows.start;
            assert!(runs[..i].iter().all(apart), "runs that share rows or a slot");
        }
        let (slots, grid) = (Raw(slots.as_mut_ptr()), &grid);
        self.run(runs.len() * across, |i, _| {
            let ((rows, slot), cut) = (&runs[i / across], i % across);
            let cols = cut * width..((cut + 1) * width).min(grid.cols);
            // SAFETY: within the grid and the slots, and disjoint from those of other tasks: runs share
            // neither rows nor slots, and column blocks of one run share neither columns nor pieces.
            let (tile, piece) = unsafe {
                let start = slots.at((slot * across + cut) * piece_len);
                let tile = Tile::new(grid.data, grid.stride, rows.clone(), cols);
                (tile, std::slice::from_raw_parts_mut(start, piece_len))
            };
            task(i / across, tile, piece);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _guard = self.shared.guard();
            self.shared.stop.store(true, Ordering::SeqCst);
            self.shared.work_there.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, and nothing else in it can panic.
            let _ = worker.join();
        }
    }
}

/// Clears the flag, also when a task panics.
struct Busy<'a>(&'a Cell<bool>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Shared {
    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: usize) {
        self.started_workers.fetch_add(1, Ordering::SeqCst);
        while !self.stop.load(Ordering::SeqCst) {
            self.take_tasks(thread);
            let something = || self.unclaimed.load(Ordering::SeqCst) > 0 || self.stop.load(Ordering::SeqCst);
            if spin_until(self.spin, something) {
                continue;
            }
            let mut guard = self.guard();
            self.sleeping_workers.fetch_add(1, Ordering::SeqCst);
            while !something() {
                guard = self.work_there.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleeping_workers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Runs tasks until none is unclaimed, then reports them all as finished: the region cannot end before.
    fn take_tasks(&self, thread: usize) {
        let mut mine = 0;
        let mut job = None;
        while let Ok(unclaimed) =
            self.unclaimed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| n.checked_sub(1))
        {
            mine += 1;
            // SAFETY: a task of this region is claimed and not yet reported, so `job` is not written.
            let job: &Job = job.get_or_insert_with(|| unsafe { *self.job.get() });
            let i = job.n_tasks - unclaimed;
            // SAFETY: the closure lives until the region ends, which waits for this task.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.closure, i, thread) }));
            if let Err(panic) = result {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                mine += self.unclaimed.swap(0, Ordering::AcqRel);
            }
        }
        if mine > 0 {
            self.finished.fetch_add(mine, Ordering::SeqCst);
            if self.caller_sleeps.load(Ordering::SeqCst) {
                let _guard = self.guard();
                self.work_done.notify_all();
            }
        }
    }

    /// Waits until all tasks of the region are finished.
    fn wait(&self, n_tasks: usize) {
        let all_finished = || self.finished.load(Ordering::SeqCst) == n_tasks;
        if spin_until(self.spin, all_finished) {
            return;
        }
        let mut guard = self.guard();
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !all_finished() {
            guard = self.work_done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }
}

/// Spins until `condition` holds; false if it does not within `limit`.
fn spin_until(limit: Duration, condition: impl Fn() -> bool) -> bool {
    if condition() {
        return true;
    }
    if limit.is_zero() {
        return false;
    }
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > limit {
            return false;
        }
    }
}

/// A pointer that tasks share; each use states why it is sound.
struct Raw<T>(*mut T);

// SAFETY: it only hands out elements to one thread at a time, which `T: Send` allows.
unsafe impl<T: Send> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// # Safety
    /// `i` is within the slice that the pointer was made from.
    unsafe fn at(&self, i: usize) -> *mut T {
        // SAFETY: promised by the caller.
        unsafe { self.0.add(i) }
    }
}

/// A matrix that [`Pool::tiles`] cuts into tiles. It gives no other access to its elements.
pub struct Grid<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    /// Distance between rows, in elements.
    stride: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a shared `Grid` gives access to its elements only through `Pool::tiles`, which borrows it mutably
// and hands each element to one task.
unsafe impl<T: Send> Sync for Grid<'_, T> {}
// SAFETY: as the mutable slice that it was made from.
unsafe impl<T: Send> Send for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    /// `data` as `[data.len() / cols, cols]`.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows.
    pub fn new(data: &'a mut [T], cols: usize) -> Self {
        assert!(data.len().is_multiple_of(cols), "{} elements in rows of {cols}", data.len());
        Self { rows: data.len() / cols, cols, stride: cols, data: data.as_mut_ptr(), borrow: PhantomData }
    }

    /// A grid of some of the columns.
    ///
    /// # Panics
    /// If a column is out of range.
    #[must_use]
    pub fn columns(self, cols: Range<usize>) -> Self {
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        // A grid without rows has no allocation, so the pointer may point past it.
        Self { data: self.data.wrapping_add(cols.start), cols: cols.len(), ..self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 9] {
            let pool = Pool::new(threads).unwrap();
            for n in [0, 1, 2, 7, 100, 1000] {
                let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n, |i, thread| {
                    assert!(thread < threads);
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_regions_in_a_row() {
        let pool = Pool::new(3).unwrap();
        let mut sums = vec![0_u64; 10];
        for _ in 0..2000 {
            pool.chunks_mut(&mut sums, 3, |_, chunk| chunk.iter_mut().for_each(|sum| *sum += 1));
        }
        assert_eq!(sums, [2000; 10]);
    }

    #[test]
    fn workers_wake_after_a_pause() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(3 * SPIN);
            // Each task waits for the other, so this ends only if the worker wakes up.
            let barrier = std::sync::Barrier::new(2);
            pool.run(2, |_, _| _ = barrier.wait());
        }
    }

    #[test]
    fn the_caller_sleeps_through_a_long_task() {
        let pool = Pool::new(2).unwrap();
        let barrier = std::sync::Barrier::new(2);
        pool.run(2, |_, thread| {
            barrier.wait();
            if thread == 1 {
                std::thread::sleep(5 * SPIN);
            }
        });
    }

    #[test]
    fn chunks_cover_the_slice() {
        let pool = Pool::new(2).unwrap();
        let mut data = vec![usize::MAX; 103];
        pool.chunks_mut(&mut data, 10, |i, chunk| {
            assert_eq!(chunk.len(), if i == 10 { 3 } else { 10 });
            chunk.iter_mut().enumerate().for_each(|(j, value)| *value = 10 * i + j);
        });
        assert!(data.iter().copied().eq(0..103));
    }

    #[test]
    fn scratch_belongs_to_one_thread_at_a_time() {
        let pool = Pool::new(4).unwrap();
        let mut counts = vec![0_usize; 4];
        pool.run_with(&mut counts, 1000, |_, count| *count += 1);
        assert_eq!(counts.iter().sum::<usize>(), 1000);
    }

    #[test]
    fn tiles_cover_every_grid_once() {
        let pool = Pool::new(3).unwrap();
        let (mut a, mut b) = (vec![0_u32; 5 * 7], vec![0_u32; 4]);
        let mut grids = [(100, Grid::new(&mut a, 7)), (200, Grid::new(&mut b, 4))];
        pool.tiles(&mut grids, 2, 3, |what, mut tile| {
            for row in tile.rows() {
                let first = tile.cols().start;
                for (i, value) in tile.row_mut(row).iter_mut().enumerate() {
                    *value += what + (row * 10 + first + i) as u32;
                }
            }
        });
        assert!(a.iter().enumerate().all(|(i, &value)| value as usize == 100 + i / 7 * 10 + i % 7), "{a:?}");
        assert_eq!(b, [200, 201, 202, 203]);
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_lives_on() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for bad in [0, 3, 99] {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(100, |i, _| assert!(i != bad, "task {i} fails"));
                }));
                let panic = result.unwrap_err();
                assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("task {bad} fails"));
                let sum = AtomicUsize::new(0);
                pool.run(10, |i, _| _ = sum.fetch_add(i, Ordering::Relaxed));
                assert_eq!(sum.into_inner(), 45);
            }
        }
    }
}
