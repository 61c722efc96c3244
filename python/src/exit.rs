//! The end of the interpreter: native calls of other threads must not return to it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

/// True once the interpreter is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Number of threads that are about to ask for the interpreter's lock.
static N_RETURNING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// True in the thread that ends the interpreter.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Does not return if the interpreter is ending, except in the thread that ends it: others would only see
/// that their engine is closed.
pub fn stay_out(py: Python<'_>) {
    if IS_ENDING.load(Ordering::SeqCst) && !ENDS.get() {
        without_lock(py, || ());
    }
}

/// Runs a task that may wait, without the interpreter's lock. If the interpreter is ending, other threads
/// than the one that ends it do not return.
pub fn without_lock<T: Send>(py: Python<'_>, task: impl FnOnce() -> T + Send) -> T {
    let done = py.detach(|| {
        let done = task();
        N_RETURNING.fetch_add(1, Ordering::SeqCst);
        if IS_ENDING.load(Ordering::SeqCst) && !ENDS.get() {
            N_RETURNING.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        done
    });
    N_RETURNING.fetch_sub(1, Ordering::SeqCst);
    done
}

/// Makes native calls of all other threads wait for ever. The caller then ends the interpreter.
#[pyfunction]
pub fn end(py: Python<'_>) {
    ENDS.set(true);
    IS_ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        while N_RETURNING.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Forgets the threads of the parent, in a forked child.
#[pyfunction]
pub fn forked() {
    N_RETURNING.store(0, Ordering::SeqCst);
}
