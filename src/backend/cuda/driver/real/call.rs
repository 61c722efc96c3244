//! Errors of driver calls.

use cudarc::driver::result::DriverError;

use crate::BackendError;

/// Name of the backend on a real GPU.
pub const NAME: &str = "cuda";

/// Error of a call.
pub fn fail(call: &'static str, detail: impl std::fmt::Display) -> BackendError {
    BackendError::Device { backend: NAME, call, detail: detail.to_string() }
}

/// Adds the name of the failed call to an error.
pub trait Called<T> {
    fn called(self, call: &'static str) -> Result<T, BackendError>;
}

impl<T> Called<T> for Result<T, DriverError> {
    fn called(self, call: &'static str) -> Result<T, BackendError> {
        self.map_err(|err| fail(call, err))
    }
}
