//! Pages of the prefix cache outside the process, in the form of a saved session: a batch goes on behind what
//! a session or another batch has computed, and the other way round.

use std::io::{BufRead, Write};
use std::sync::Arc;

use super::prefix::{Block, NodeId};
use super::steps::Batch;
use crate::engine::state::{Summed, exact_of, head, no_such_pages, read_page, write_page};
use crate::engine::{Error, StateError};
use crate::program::PAGE;

impl Batch {
    /// The longest beginning of `tokens`, in full pages, behind which a sequence can go on.
    fn chain(&mut self, tokens: &[u32], salt: &Arc<str>) -> Vec<NodeId> {
        // A look-up leaves the last token to be computed.
        let one_more = [tokens, &[0]].concat();
        self.prefix.find(&self.runner.pages, salt, &one_more)
    }

    /// Writes what the prefix cache has of `tokens`, which are full pages. Returns how many tokens these are;
    /// if it has no page of them, 0, and nothing is written. A writer with a buffer serves best.
    ///
    /// # Errors
    /// [`StateError::Io`]; [`Error::NoSession`] if all slots are taken; [`Error::Backend`].
    pub fn save(&mut self, tokens: &[u32], salt: &Arc<str>, out: &mut impl Write) -> Result<usize, Error> {
        let chain = self.chain(tokens, salt);
        let tokens = &tokens[..chain.len() * PAGE];
        if chain.is_empty() {
            return Ok(0);
        }
        let slot = self.take_slot()?;
        self.prefix.share(&mut self.runner.pages, slot, &chain);
        let saved = self.write(slot, tokens, out);
        self.runner.release_slot(slot);
        saved.map(|()| tokens.len())
    }

    fn write(&mut self, slot: u32, tokens: &[u32], out: &mut impl Write) -> Result<(), Error> {
        let mut out = Summed::new(out);
        let exact = exact_of(&self.runner, slot, tokens.len());
        out.write_all(&head(&self.engine, tokens, &exact)?).map_err(StateError::Io)?;
        let mut bytes = Vec::new();
        for i in 0..exact.len() {
            for page in self.runner.pages.kv_pages(slot, i).collect::<Vec<_>>() {
                read_page(&mut self.runner, page, &mut bytes)?;
                out.write_all(&bytes).map_err(StateError::Io)?;
            }
        }
        out.end()
    }

    /// Takes up what [`save`](Self::save) or [`Session::save`](crate::engine::Session::save) wrote, as pages
    /// that prompts with the same salt find; what was used the longest ago makes way for them. Returns the
    /// tokens. Those behind the last full page will be computed again.
    ///
    /// # Errors
    /// As [`Engine::restore`](crate::engine::Engine::restore); [`Error::OutOfPages`] if sequences that run
    /// hold too many pages.
    pub fn restore(&mut self, from: &mut impl BufRead, salt: &Arc<str>) -> Result<Vec<u32>, Error> {
        let mut from = Summed::new(from);
        let (tokens, exact) = self.engine.read_head(&mut from)?;
        let slot = self.take_slot()?;
        let read = self.read(slot, &tokens, &exact, from);
        if read.is_ok() {
            let mut chain: Vec<NodeId> = Vec::new();
            let blocks: &[Block] = tokens.as_chunks().0;
            for (i, block) in blocks.iter().enumerate() {
                let parent = chain.last().copied();
                chain.push(self.prefix.insert(&mut self.runner.pages, slot, i, parent, salt, block));
            }
            self.prefix.checkpoint(&mut self.runner.pages, slot, &chain);
        }
        self.runner.release_slot(slot);
        read.map(|()| tokens)
    }

    fn read(
        &mut self,
        slot: u32,
        tokens: &[u32],
        exact: &[bool],
        mut from: Summed<&mut impl BufRead>,
    ) -> Result<(), Error> {
        let pages = &mut self.runner.pages;
        while pages.n_free() < exact.len() {
            if !self.prefix.evict(pages) {
                return Err(Error::OutOfPages { need: exact.len(), free: pages.n_free() });
            }
        }
        while !pages.hold(slot, tokens.len(), exact) {
            if !self.prefix.evict_exact(pages) {
                return Err(no_such_pages());
            }
        }
        let mut bytes = Vec::new();
        for i in 0..exact.len() {
            for page in self.runner.pages.kv_pages(slot, i).collect::<Vec<_>>() {
                write_page(&mut self.runner, page, &mut bytes, &mut from)?;
            }
        }
        from.check()
    }

    /// Forgets the pages of `tokens` that nobody else holds and no longer text goes on from.
    pub fn forget(&mut self, tokens: &[u32], salt: &Arc<str>) {
        let chain = self.chain(tokens, salt);
        self.prefix.forget(&mut self.runner.pages, &chain);
    }

    fn take_slot(&mut self) -> Result<u32, Error> {
        let n_seqs = self.engine.program().limits.seqs;
        self.runner.free_slots.pop().ok_or(Error::NoSession { n_seqs })
    }
}
