//! Sequences whose logits are no numbers: they end, and others go on.

use super::steps::Batch;
use super::task::SeqId;
use crate::{Error, Event};

impl Batch {
    /// Whether the logits behind position `row` of a sequence, computed once more, are no numbers.
    pub(super) fn is_broken_again(&mut self, at: usize, row: usize) -> Result<bool, Error> {
        self.keep_logits()?;
        self.runner.is_broken_again(&self.engine.shared.program, &self.tasks[at].seq, row)
    }

    /// Ends a sequence whose logits behind position `row` are no numbers. Others do not find its pages.
    pub(super) fn break_off(
        &mut self,
        at: usize,
        row: usize,
        events: &mut Vec<(SeqId, Event)>,
    ) -> Result<(), Error> {
        self.keep_logits()?;
        let task = &mut self.tasks[at];
        let fault = self.runner.broken(&self.engine.shared.program, &task.seq, row);
        events.push((task.id, task.decoder.fail(fault.into())));
        task.cache_prompt = false;
        let nodes = std::mem::take(&mut task.nodes);
        self.end(at);
        self.prefix.forget(&mut self.runner.pages, &nodes);
        Ok(())
    }
}
