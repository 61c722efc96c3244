//! Kernels that a plan of a device finds missing.

use crate::BackendError;

/// Rows of a step are a dimension of a grid, which has no more.
pub const MAX_ROWS: usize = 65_535;

/// Kernels that a backend lacks for a program, each once.
#[derive(Default)]
pub struct Missing(Vec<String>);

impl Missing {
    /// Missing kernels for steps of this many rows.
    pub fn of_rows(rows: usize) -> Self {
        Self(if rows > MAX_ROWS { vec![format!("steps of {rows} rows")] } else { Vec::new() })
    }

    pub fn add(&mut self, what: String) {
        if !self.0.contains(&what) {
            self.0.push(what);
        }
    }

    /// # Errors
    /// [`BackendError::Missing`] where something is.
    pub fn check(self, backend: &'static str) -> Result<(), BackendError> {
        if self.0.is_empty() { Ok(()) } else { Err(BackendError::Missing { backend, missing: self.0 }) }
    }
}
