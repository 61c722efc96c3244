//! Swaps the KV pages of waiting sequences to host memory, in the backend's format, without dequantising.
//!
//! The pages of a preempted sequence are copied to the host if there is room, and copied back when it gets
//! pages again. Swapping does not change its output or a step of other sequences.

use super::prefix::NodeId;
use super::steps::Batch;
use super::task::SwappedOut;
use crate::error::Error;
use crate::pages::PageKind;
use crate::state::{no_such_pages, read_page, write_page};
use sterna_program::PAGE;

impl Batch {
    /// Swaps out a sequence that is about to be preempted, if the host has room for its pages. Ignores read
    /// errors: the next step reports them.
    pub(super) fn swap_out(&mut self, at: usize) {
        let task = &self.tasks[at];
        let Some(slot) = task.seq.slot else { return };
        // The last token is run again: a token sampled after it is lost.
        let positions = task.seq.cached.min(task.seq.tokens.len() - 1);
        let positions = match self.runner.pages.has_states() {
            true => self.runner.pages.cut_back(slot, positions),
            false => positions,
        };
        let room = self.options.host_bytes.saturating_sub(self.swapped_out_bytes());
        let kinds = self.runner.pages.kinds_of(slot, positions);
        let pages: Vec<_> = (0..kinds.len()).flat_map(|i| self.runner.pages.kv_pages(slot, i)).collect();
        let n_bytes: usize = pages.iter().map(|page| self.runner.page_bytes(*page)).sum();
        if n_bytes > room || n_bytes == 0 {
            return;
        }
        let (mut bytes, mut page_of) = (Vec::with_capacity(n_bytes), Vec::new());
        for page in pages {
            if read_page(&mut self.runner, page, &mut page_of).is_err() {
                return;
            }
            bytes.extend_from_slice(&page_of);
        }
        self.tasks[at].swapped_out = Some(SwappedOut { positions, kinds, bytes });
        self.stats.swapped_out += 1;
    }

    fn swapped_out_bytes(&self) -> usize {
        self.tasks.iter().filter_map(|task| task.swapped_out.as_ref()).map(|out| out.bytes.len()).sum()
    }

    /// True if a sequence has more tokens on the host than in the cached pages `chain`.
    pub(super) fn is_swapped_out(&self, at: usize, chain: &[NodeId]) -> bool {
        self.tasks[at].swapped_out.as_ref().is_some_and(|out| out.positions > chain.len() * PAGE)
    }

    /// Loads the swapped-out pages of a sequence into a slot. If there are too few pages, returns `false`,
    /// and only the prefix cache may have changed.
    ///
    /// # Errors
    /// [`Error::Backend`]: the slot is free again then, and the sequence will be recomputed.
    pub(super) fn swap_in(&mut self, at: usize, slot: u32) -> Result<bool, Error> {
        let Some(out) = self.tasks[at].swapped_out.take() else { return Ok(false) };
        let SwappedOut { positions, kinds, bytes } = &out;
        let pages = &mut self.runner.pages;
        while pages.n_free() < kinds.len() && self.prefix.evict(pages, PageKind::Quantised) {}
        let mut holds = pages.hold(slot, *positions, kinds);
        while !holds && self.prefix.evict_secondary(pages) {
            holds = pages.hold(slot, *positions, kinds);
        }
        if !holds {
            self.tasks[at].swapped_out = Some(out);
            return Ok(false);
        }
        let (mut from, mut page_of) = (bytes.as_slice(), Vec::new());
        let pages: Vec<_> =
            (0..kinds.len()).flat_map(|i| self.runner.pages.kv_pages(slot, i).collect::<Vec<_>>()).collect();
        let mut written =
            pages.into_iter().map(|page| write_page(&mut self.runner, page, &mut page_of, &mut from));
        if let Some(err) = written.find_map(Result::err) {
            self.runner.pages.cut_back(slot, 0);
            return Err(err);
        }
        drop(written);
        match from.is_empty() {
            true => {
                self.tasks[at].seq.cached = self.runner.pages.resume_position(slot, *positions);
                self.stats.swapped_in += 1;
                Ok(true)
            }
            false => Err(no_such_pages()),
        }
    }
}
