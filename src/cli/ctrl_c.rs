//! Handling of ctrl-C and SIGTERM.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{CliError, Interrupted};

/// Current action of ctrl-C. A process has only one handler, and a command changes its action as it runs:
/// first a model is downloaded, then it generates.
static ON_CTRL_C: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

/// True if this code runs inside another program, which has its own handler and calls [`press`].
static IS_GUEST: AtomicBool = AtomicBool::new(false);

/// Leaves signal handling to the host program.
pub fn be_guest() {
    IS_GUEST.store(true, Ordering::Relaxed);
}

/// Sets the action of ctrl-C.
///
/// # Errors
/// If the system refuses the handler.
pub fn on_ctrl_c(act: impl FnMut() + Send + 'static) -> Result<(), CliError> {
    let was_set = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner).replace(Box::new(act)).is_some();
    if !was_set && !IS_GUEST.load(Ordering::Relaxed) {
        ctrlc::set_handler(press)?;
    }
    Ok(())
}

/// Runs the current action of ctrl-C.
pub fn press() {
    let mut act = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner);
    act.iter_mut().for_each(|act| act());
}

/// Ends the process with ctrl-C's exit code, unless it belongs to another program.
pub fn exit() {
    if !IS_GUEST.load(Ordering::Relaxed) {
        std::process::exit(Interrupted::EXIT_CODE.into());
    }
}
