//! Wakes a batch when a constraint is ready.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

/// A bell that constraints ring, and that the thread of the batch waits for.
#[derive(Debug)]
pub(super) struct Bell {
    state: Arc<BellState>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct BellState {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl Wake for BellState {
    fn wake(self: Arc<Self>) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_all();
    }
}

impl Default for Bell {
    fn default() -> Self {
        let state = Arc::new(BellState::default());
        Self { waker: Waker::from(Arc::clone(&state)), state }
    }
}

impl Bell {
    /// Rings the bell.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Forgets that it was rung.
    pub fn silence(&self) {
        *self.state.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Waits until it has rung since it was silenced, at most `time`.
    pub fn wait(&self, time: Duration) {
        let is_rung = self.state.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.state.rung.wait_timeout_while(is_rung, time, |is_rung| !*is_rung));
    }
}
