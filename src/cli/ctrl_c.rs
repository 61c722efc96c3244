//! Handling of ctrl-C and SIGTERM.

use std::sync::{Mutex, PoisonError};

use super::guest::is_guest;
use super::{CliError, Interrupted};

/// Current action of ctrl-C. A process has only one handler, and a command changes its action as it runs:
/// first a model is downloaded, then it generates.
static ON_CTRL_C: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

/// Sets the action of ctrl-C.
///
/// # Errors
/// If the system refuses the handler.
pub fn on_ctrl_c(act: impl FnMut() + Send + 'static) -> Result<(), CliError> {
    let was_set = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner).replace(Box::new(act)).is_some();
    if !was_set && !is_guest() {
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
    if !is_guest() {
        std::process::exit(Interrupted::EXIT_CODE.into());
    }
}
