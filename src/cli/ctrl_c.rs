//! Ctrl-C, and SIGTERM with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{CliError, Interrupted};

/// Current action of ctrl-C. A process has one handler, and several parts of a command use it one after the
/// other: first a model is downloaded, then it generates.
static ON_CTRL_C: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

/// True where the process is another program's: it has a handler of its own, and calls [`press`].
static IS_GUEST: AtomicBool = AtomicBool::new(false);

/// Leaves signals to the program that this is a part of.
pub fn be_guest() {
    IS_GUEST.store(true, Ordering::Relaxed);
}

/// Has ctrl-C do this from now on.
///
/// # Errors
/// Where the system refuses the handler.
pub fn on_ctrl_c(act: impl FnMut() + Send + 'static) -> Result<(), CliError> {
    let was_set = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner).replace(Box::new(act)).is_some();
    if !was_set && !IS_GUEST.load(Ordering::Relaxed) {
        ctrlc::set_handler(press)?;
    }
    Ok(())
}

/// Does what ctrl-C does now.
pub fn press() {
    let mut act = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner);
    act.iter_mut().for_each(|act| act());
}

/// Ends the process as ctrl-C does, unless it is another program's.
pub fn exit() {
    if !IS_GUEST.load(Ordering::Relaxed) {
        std::process::exit(Interrupted::EXIT_CODE.into());
    }
}
