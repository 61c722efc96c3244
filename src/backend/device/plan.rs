//! Collects the kernels that a device lacks for a program.

use crate::BackendError;
use sterna_program::{Linear, Stage};

/// Most rows per step: they are a grid dimension, whose limit this is.
pub const MAX_ROWS: usize = 65_535;

/// The entry for a stage of latent attention with LoRA adapters of the heads' matrices.
pub const ADAPTERS_OF_HEADS: &str =
    "LoRA adapters of the heads of latent attention (attn_k_b, attn_v_b): they run on the CPU (backend cpu)";

/// True if a stage has such adapters.
pub fn has_adapters_of_heads(stage: &Stage) -> bool {
    let has_pairs = |heads: &[Linear]| heads.iter().any(|linear| !linear.lora.is_empty());
    match stage {
        Stage::LatentIn(s) => has_pairs(&s.wk),
        Stage::HeadProj(s) => has_pairs(&s.w),
        _ => false,
    }
}

/// Kernels that a backend lacks for a program, without duplicates.
#[derive(Default)]
pub struct Missing(Vec<String>);

impl Missing {
    /// Starts with an entry if steps of `rows` rows are not supported.
    pub fn of_rows(rows: usize) -> Self {
        Self(if rows > MAX_ROWS { vec![format!("steps of {rows} rows")] } else { Vec::new() })
    }

    pub fn add(&mut self, what: String) {
        if !self.0.contains(&what) {
            self.0.push(what);
        }
    }

    /// # Errors
    /// [`BackendError::Missing`] if there are any.
    pub fn check(self, backend: &'static str) -> Result<(), BackendError> {
        if self.0.is_empty() { Ok(()) } else { Err(BackendError::Missing { backend, missing: self.0 }) }
    }
}
