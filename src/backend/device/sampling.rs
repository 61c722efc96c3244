//! Decides which tokens of a step the device samples, and samples the others on the host.

use crate::BackendError;
use sterna_program::sampling::{Scratch, pick};
use sterna_program::{Program, Sampling, Step};

/// Largest top_k of a draw on a device.
pub const MAX_TOP_K: u32 = 256;

/// True if a device supports this sampling: greedy, or a draw from a few of the largest logits. All other
/// draws are done on the host.
pub fn on_device(how: &Sampling, n_vocab: usize) -> bool {
    let few = (1..=MAX_TOP_K).contains(&how.top_k) && (how.top_k as usize) < n_vocab;
    how.is_greedy() || (few && how.typical_p >= 1.0)
}

/// Number of output rows that the device processes: up to the last one that it samples.
pub fn device_rows(step: &Step<'_>, n_vocab: usize) -> usize {
    let picks = |how: &Option<Sampling>| how.is_some_and(|how| on_device(&how, n_vocab));
    step.sampling.iter().rposition(picks).map_or(0, |row| row + 1)
}

/// Sampling of the rows of the last step, and buffers for sampling on the host.
pub struct Sampler {
    rows: Vec<Option<Sampling>>,
    /// Tokens that the device sampled, read back.
    tokens: Vec<u32>,
    /// One row.
    logits: Vec<f32>,
    scratch: Scratch,
}

impl Sampler {
    pub fn new(p: &Program) -> Self {
        let n_vocab = p.picked_from();
        Self {
            rows: Vec::with_capacity(p.limits.outputs),
            tokens: vec![0; p.limits.outputs],
            logits: vec![0.0; n_vocab],
            scratch: Scratch::new(n_vocab),
        }
    }

    /// Length of a row of logits.
    pub fn n_vocab(&self) -> usize {
        self.logits.len()
    }

    /// True if the device supports this sampling.
    pub fn on_device(&self, how: &Sampling) -> bool {
        on_device(how, self.n_vocab())
    }

    /// Called before a step runs.
    pub fn begin(&mut self, step: &Step<'_>) {
        self.rows.clear();
        self.rows.extend_from_slice(step.sampling);
    }

    /// Copies the tokens that the device sampled for output rows from `first` on to `out`. `read` copies the
    /// tokens of the first output rows back; it is only called if the device sampled one of the requested
    /// rows.
    ///
    /// # Panics
    /// If the step had fewer output rows.
    pub fn device_tokens(
        &mut self,
        first: usize,
        out: &mut [u32],
        read: impl FnOnce(&mut [u32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let (n_vocab, rows) = (self.n_vocab(), &self.rows[first..first + out.len()]);
        let mine = |how: &Option<Sampling>| how.is_some_and(|how| on_device(&how, n_vocab));
        if !rows.iter().any(mine) {
            return Ok(());
        }
        let tokens = &mut self.tokens[..first + out.len()];
        read(tokens)?;
        let picked = out.iter_mut().zip(&tokens[first..]).zip(rows).filter(|(_, how)| mine(how));
        picked.for_each(|((out, token), _)| *out = *token);
        Ok(())
    }

    /// Samples the tokens that are left to the host; `read` copies the logits of an output row.
    ///
    /// # Panics
    /// If the step had fewer output rows.
    pub fn host_tokens(
        &mut self,
        first: usize,
        out: &mut [u32],
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let rows = &self.rows[first..first + out.len()];
        for (i, (token, how)) in out.iter_mut().zip(rows).enumerate() {
            if let Some(how) = how.filter(|how| !on_device(how, self.logits.len())) {
                read(first + i, &mut self.logits)?;
                *token = pick(&self.logits, &how, &mut self.scratch);
            }
        }
        Ok(())
    }
}
