//! Access to the prefix cache from outside the batch. Routers listen to its changes, and pages are saved in
//! the format of a session, so that a batch can resume after the tokens of a session or another batch, and
//! vice versa.

use std::io::{BufRead, Write};
use std::sync::Arc;

use super::prefix::{Block, NodeId, PageListener};
use super::steps::Batch;
use crate::adapters::adapters_of;
use crate::error::{Error, StateError};
use crate::pages::{PageKind, PageKinds};
use crate::state::{HEAD_BYTES, Summed, head, no_such_pages, read_page, write_pages};
use sterna_backend::KvPage;
use sterna_program::PAGE;

/// Sizes of saved pages.
#[derive(Clone, Copy, Debug)]
pub struct SavedSize {
    /// Bytes of the pages of 64 positions, summed over the kinds.
    page_bytes: usize,
    /// Bytes of the recurrent state after the last page.
    state_bytes: usize,
}

impl SavedSize {
    /// Maximum size in bytes of the pages of `n` tokens that [`Batch::save_end`] writes.
    pub fn most(&self, n: usize) -> usize {
        HEAD_BYTES + n * size_of::<u32>() + n.div_ceil(PAGE) * (1 + self.page_bytes) + self.state_bytes
    }
}

impl Batch {
    /// The longest prefix of `tokens`, in full pages, from which a sequence can resume.
    fn chain(&mut self, tokens: &[u32], salt: &Arc<str>) -> Vec<NodeId> {
        // A look-up never covers the last token.
        let one_more = [tokens, &[0]].concat();
        self.prefix.find(&self.runner.pages, salt, &one_more)
    }

    /// Writes the cached pages of `tokens`, full pages only, and the checkpoints in them: after a restore,
    /// prompts find as much of them as now. Returns the number of tokens written; if no page is cached,
    /// returns 0 and writes nothing. Use a buffered writer.
    ///
    /// # Errors
    /// [`StateError::Io`]; [`Error::NoSession`] if all slots are taken; [`Error::Backend`].
    pub fn save(&mut self, tokens: &[u32], salt: &Arc<str>, out: &mut impl Write) -> Result<usize, Error> {
        self.save_chain(tokens, salt, true, out)
    }

    /// As [`save`](Self::save), without earlier checkpoints: for a prompt that resumes after all of them.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_end(
        &mut self,
        tokens: &[u32],
        salt: &Arc<str>,
        out: &mut impl Write,
    ) -> Result<usize, Error> {
        self.save_chain(tokens, salt, false, out)
    }

    fn save_chain(
        &mut self,
        tokens: &[u32],
        salt: &Arc<str>,
        checkpoints: bool,
        out: &mut impl Write,
    ) -> Result<usize, Error> {
        let chain = self.chain(tokens, salt);
        let tokens = &tokens[..chain.len() * PAGE];
        if chain.is_empty() {
            return Ok(0);
        }
        let slot = self.take_slot()?;
        match checkpoints {
            true => self.prefix.share_all(&mut self.runner.pages, slot, &chain),
            false => self.prefix.share(&mut self.runner.pages, slot, &chain),
        }
        let saved = self.write(slot, tokens, salt, out);
        self.runner.release_slot(slot);
        saved.map(|()| tokens.len())
    }

    fn write(&mut self, slot: u32, tokens: &[u32], salt: &str, out: &mut impl Write) -> Result<(), Error> {
        let mut out = Summed::new(out);
        let kinds = self.runner.pages.kinds_of(slot, tokens.len());
        out.write_all(&head(&self.engine, tokens, &kinds, adapters_of(salt))?).map_err(StateError::Io)?;
        let mut bytes = Vec::new();
        for i in 0..kinds.len() {
            for page in self.runner.pages.kv_pages(slot, i).collect::<Vec<_>>() {
                read_page(&mut self.runner, page, &mut bytes)?;
                out.write_all(&bytes).map_err(StateError::Io)?;
            }
        }
        out.end()
    }

    /// Loads pages that [`save`](Self::save) or [`Session::save`](crate::Session::save) wrote into the cache,
    /// where prompts with the same salt find them; least recently used pages are evicted for them. If there
    /// is no room for all checkpoints, the earliest are left out. Returns the tokens. Tokens after the last
    /// full page will be recomputed. Pages that were computed with adapters are found with the salt that
    /// [`Engine::salt_with`](crate::Engine::salt_with) returns for them.
    ///
    /// # Errors
    /// As [`Engine::restore`](crate::Engine::restore); [`Error::OutOfPages`] if running sequences use too
    /// many pages.
    pub fn restore(&mut self, from: &mut impl BufRead, salt: &Arc<str>) -> Result<Vec<u32>, Error> {
        self.restore_pages(from, salt, None)
    }

    /// As [`restore`](Self::restore), for pages of `prompt` that another engine has computed: returns an
    /// error if the tokens are not a prefix of `prompt`. Returns the number of tokens.
    ///
    /// # Errors
    /// As [`restore`](Self::restore). The prompt can still be added, and is then computed here.
    pub fn restore_beginning(
        &mut self,
        from: &mut impl BufRead,
        salt: &Arc<str>,
        prompt: &[u32],
    ) -> Result<usize, Error> {
        self.restore_pages(from, salt, Some(prompt)).map(|tokens| tokens.len())
    }

    /// Sizes of what [`save_end`](Self::save_end) writes.
    pub fn saved_size(&self) -> SavedSize {
        let (runner, pages) = (&*self.runner, &self.runner.pages);
        let bytes = |page| runner.page_bytes(page);
        let sliding = if pages.sliding().is_some() { bytes(KvPage::Sliding(0)) } else { 0 };
        let exact = if pages.is_windowed() { bytes(KvPage::Exact(0)) } else { 0 };
        let state_bytes = if pages.has_states() { bytes(KvPage::State(0)) } else { 0 };
        SavedSize { page_bytes: bytes(KvPage::Quantised(0)) + sliding + exact, state_bytes }
    }

    fn restore_pages(
        &mut self,
        from: &mut impl BufRead,
        salt: &Arc<str>,
        prompt: Option<&[u32]>,
    ) -> Result<Vec<u32>, Error> {
        let mut from = Summed::new(from);
        let (tokens, kinds) = self.engine.read_head(&mut from, adapters_of(salt))?;
        if prompt.is_some_and(|prompt| !prompt.starts_with(&tokens)) {
            return Err(StateError::Damaged("its tokens are not a prefix of the prompt").into());
        }
        let slot = self.take_slot()?;
        let read = self.read(slot, &tokens, &kinds, from);
        if read.is_ok() {
            let mut chain: Vec<NodeId> = Vec::new();
            let blocks: &[Block] = tokens.as_chunks().0;
            for (i, block) in blocks.iter().enumerate() {
                let parent = chain.last().copied();
                chain.push(self.prefix.insert(&mut self.runner.pages, slot, i, parent, salt, block));
            }
            self.prefix.keep_all(&mut self.runner.pages, slot, &chain);
        }
        self.runner.release_slot(slot);
        self.prefix.tell_changes(&self.runner.pages);
        read.map(|()| tokens)
    }

    fn read(
        &mut self,
        slot: u32,
        tokens: &[u32],
        kinds: &[PageKinds],
        mut from: Summed<&mut impl BufRead>,
    ) -> Result<(), Error> {
        let pages = &mut self.runner.pages;
        if !pages.can_be(tokens.len(), kinds) {
            return Err(no_such_pages());
        }
        let least = pages.kept_kinds(tokens.len(), kinds);
        let mut held = kinds.to_vec();
        while let Some(kind) = pages.lacking(&held) {
            if self.prefix.evict(pages, kind) {
                continue;
            }
            let mut kinds = held.iter_mut().zip(&least);
            match kinds.find(|(held, least)| held.has(kind) && !least.has(kind)) {
                Some((held, _)) => *held = held.without(kind),
                None if kind == PageKind::Quantised => {
                    return Err(Error::OutOfPages { need: held.len(), free: pages.n_free() });
                }
                None => return Err(no_such_pages()),
            }
        }
        if !pages.hold_checkpoints(slot, tokens.len(), &held) {
            return Err(no_such_pages());
        }
        let mut bytes = Vec::new();
        for (i, kinds) in kinds.iter().enumerate() {
            write_pages(&mut self.runner, slot, i, *kinds, &mut bytes, &mut from)?;
        }
        from.check()
    }

    /// Drops cached pages of `tokens` that nothing uses or extends.
    pub fn forget(&mut self, tokens: &[u32], salt: &Arc<str>) {
        let chain = self.chain(tokens, salt);
        self.prefix.forget(&mut self.runner.pages, &chain);
        self.prefix.tell_changes(&self.runner.pages);
    }

    /// Sets the listener for all later changes of the prefix cache. It runs within the call that makes the
    /// change.
    pub fn listen(&mut self, listener: PageListener) {
        self.prefix.listener = Some(listener);
    }

    /// Drops all cached pages that no sequence uses.
    pub fn clear_prefix_cache(&mut self) {
        self.prefix.clear(&mut self.runner.pages);
        self.prefix.tell_changes(&self.runner.pages);
    }

    /// Keys ([`PageEvent::Stored`](super::PageEvent::Stored)) of all pages that prompts can find now, in no
    /// particular order.
    pub fn shared_pages(&self) -> Vec<u64> {
        self.prefix.shared(&self.runner.pages)
    }

    fn take_slot(&mut self) -> Result<u32, Error> {
        let n_seqs = self.engine.program().limits.seqs;
        self.runner.free_slots.pop().ok_or(Error::NoSession { n_seqs })
    }
}
