//! Drafts by the model's own multi-token prediction (MTP) block, as an option of a generation.

use super::error::Error;
use super::handle::Engine;
use super::mtp::none_loaded;
use super::speculate::{Drafter, MtpDrafts, Speculation};

impl MtpDrafts {
    /// Drafts by the block of `engine`.
    ///
    /// # Errors
    /// [`Error::Option`] if it is not loaded.
    pub fn new(engine: &Engine) -> Result<Self, Error> {
        let Some(bytes) = engine.shared.mtp_cost else { return Err(none_loaded()) };
        // As for a draft model: decoding on a device is memory-bound.
        let ratio = bytes as f64 / engine.decode_cost(0).bytes().max(1) as f64;
        let row_cost = engine.runner()?.is_device().then_some(ratio + 0.05);
        Ok(Self { max: Self::MAX, min: 0, p_min: 0.0, row_cost, acceptance: None })
    }
}

impl Speculation for MtpDrafts {
    fn start(&self) -> Result<Box<dyn Drafter>, Error> {
        Ok(Box::new(ByBlock))
    }

    fn row_cost(&self) -> Option<f64> {
        self.row_cost
    }

    fn least(&self) -> usize {
        self.min.max(1)
    }

    fn mtp(&self) -> Option<Self> {
        Some(*self)
    }

    fn acceptance(&self) -> Option<f64> {
        self.acceptance
    }
}

/// Placeholder: the runner owns the block, and drafts with it.
#[derive(Debug)]
struct ByBlock;

impl Drafter for ByBlock {
    fn draft(&mut self, _: &[u32], _: usize, _: &mut Vec<u32>) -> Result<(), Error> {
        Ok(())
    }

    fn is_ready(&mut self, _: &[u32]) -> bool {
        true
    }
}
