//! Ctrl-C, and SIGTERM with it.

use std::sync::{Mutex, PoisonError};

use super::CliError;

/// Current action of ctrl-C. A process has one handler, and several parts of a command use it one after the
/// other: first a model is downloaded, then it generates.
static ON_CTRL_C: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

/// Has ctrl-C do this from now on.
///
/// # Errors
/// Where the system refuses the handler.
pub fn on_ctrl_c(act: impl FnMut() + Send + 'static) -> Result<(), CliError> {
    let was_set = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner).replace(Box::new(act)).is_some();
    if !was_set {
        ctrlc::set_handler(|| {
            let mut act = ON_CTRL_C.lock().unwrap_or_else(PoisonError::into_inner);
            act.iter_mut().for_each(|act| act());
        })?;
    }
    Ok(())
}
