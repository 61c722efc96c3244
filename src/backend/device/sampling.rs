//! Which tokens of a step the device picks, and how the host picks the others.

use crate::BackendError;
use sterna_program::sampling::{Scratch, pick};
use sterna_program::{Program, Sampling, Step};

/// Most logits that a device draws from.
pub const MOST: u32 = 256;

/// True if a device picks so: the largest logit, or a draw from a few of the largest, in their order. Every
/// other draw is the host's.
pub fn on_device(how: &Sampling, n_vocab: usize) -> bool {
    let few = (1..=MOST).contains(&how.top_k) && (how.top_k as usize) < n_vocab;
    how.is_greedy() || (few && how.typical_p >= 1.0)
}

/// Number of output rows that the device goes through: up to the last that it picks for.
pub fn device_rows(step: &Step<'_>, n_vocab: usize) -> usize {
    let picks = |how: &Option<Sampling>| how.is_some_and(|how| on_device(&how, n_vocab));
    step.sampling.iter().rposition(picks).map_or(0, |row| row + 1)
}

/// Sampling of the rows of the last step, and what the host needs to pick from one.
pub struct Sampler {
    rows: Vec<Option<Sampling>>,
    /// Tokens that the device picked, read back.
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

    /// True if the device picks so.
    pub fn on_device(&self, how: &Sampling) -> bool {
        on_device(how, self.n_vocab())
    }

    /// A step is about to run.
    pub fn begin(&mut self, step: &Step<'_>) {
        self.rows.clear();
        self.rows.extend_from_slice(step.sampling);
    }

    /// The tokens that the device picked for output rows from `first` on. `read` copies the tokens of the
    /// first output rows back; it is called if the device picked one of those asked for.
    ///
    /// # Panics
    /// Where the step had fewer rows to pick for.
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

    /// The tokens that are left to the host, by the definition itself; `read` copies the logits of an output
    /// row.
    ///
    /// # Panics
    /// Where the step had fewer rows to pick for.
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
