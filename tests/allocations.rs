//! A run allocates nothing: not in a decode step, not in a batch, on no thread. And a compiled program has
//! allocated what was planned.
//!
//! A program of its own, without the test harness, whose threads allocate too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use sterna::program::{Row, Sampling, Step};
use support::case::model::{Model, SMALL};
use support::case::{backends, limits, shuffled_pages, windowed_limits, windowed_pages};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are in use.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// What a program's description, its weights' handles and a thread's first steps may take.
const SMALL_CHANGE: usize = 64 << 10;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let sampling =
        [Some(Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::GREEDY })];
    for model in [
        SMALL,
        Model { weights: "q6_k", ffn_dim: 512, ..SMALL },
        Model { weights: "q4_0", kv: "f32", ..SMALL },
        Model { kv: "turboquant", ..SMALL },
        Model { kv: "tq3_0", ..SMALL },
        Model { kv: "tq3_0", head_dim: 64, ..SMALL },
        Model { kv: "q4_0", ..SMALL },
    ] {
        let windowed = ["turboquant", "tq3_0"].contains(&model.kv);
        let limits = if windowed { windowed_limits(96, 1, 6) } else { limits(96, 1, 6) };
        let (case, _) = model.case("a small model", limits);
        let pages = if windowed { windowed_pages(1, 6) } else { shuffled_pages(1, 6) };
        let row = |pos: u32, logits| Row { token: pos % 300, pos, seq: 0, logits };
        let prompt: Vec<Row> = (0..96).map(|pos| row(pos, pos == 95)).collect();
        // A step through wgpu allocates an encoder and what the driver wants.
        for mut backend in backends().into_iter().filter(|backend| backend.name() != "wgpu") {
            if !case.has_kernels(&*backend) {
                continue;
            }
            let plan = backend.plan(&case.p).expect("a plan");
            let planned = (plan.kv_bytes + plan.bufs_bytes) as usize;
            let before = BYTES.load(Ordering::SeqCst);
            let running = case.on(&mut *backend);
            let taken = BYTES.load(Ordering::SeqCst) - before;
            // What a card takes is not this process's.
            let of_host = running.backend.name() == "cpu";
            assert!(
                !of_host || (planned..planned + SMALL_CHANGE).contains(&taken),
                "{} weights on {}: {planned} bytes planned, {taken} taken",
                model.weights,
                running.backend.device()
            );
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            let batch = Step { rows: &prompt, pages: &pages, sampling: &sampling };
            running.backend.run(running.exec, &batch).expect("a run");
            // Two pages fill; the processor goes on to the next one, and is fast.
            let end = if of_host { 300 } else { 200 };
            for pos in 96..end {
                let step = Step { rows: &[row(pos, true)], pages: &pages, sampling: &sampling };
                running.backend.run(running.exec, &step).expect("a run");
                running.backend.tokens(running.exec, 0, &mut [0]).expect("a token");
            }
            let fed = |pos| Row { token: Row::PICKED, ..row(pos, true) };
            for pos in end..end + 50 {
                let step = Step { rows: &[fed(pos)], pages: &pages, sampling: &sampling };
                running.backend.run(running.exec, &step).expect("a run");
                running.backend.picked(running.exec, 0, 1).expect("a token");
            }
            let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
            assert_eq!(allocations, 0, "{} weights on {}", model.weights, running.backend.device());
        }
    }
    println!("a run allocates nothing: ok");
}
