//! Memory layout of the pages of one head of a cache.

use std::ops::Range;

use ggml_types::{KvCodec, KvSide, QuantError};

use super::EXACT;
use crate::KvPage;
use sterna_program::{KvDecl, Limits, PAGE, PageTable};

/// Memory layout of one head: `[pages, page_bytes]`, then `[exact_pages, exact_bytes]`.
#[derive(Clone, Copy)]
pub struct Layout {
    pub pages: usize,
    pub page_bytes: usize,
    pub exact_pages: usize,
    pub exact_bytes: usize,
    /// True if the pages are those of a sliding window.
    slides: bool,
}

impl Layout {
    pub fn of(
        codec: &'static dyn KvCodec,
        side: KvSide,
        decl: &KvDecl,
        limits: Limits,
    ) -> Result<Self, QuantError> {
        let (pages, head_dim) = (decl.pages(&limits), decl.head_dim);
        let page_bytes = codec.page_bytes(side, head_dim, PAGE)?;
        let (exact_pages, exact_bytes) = match codec.windowed() {
            true => (limits.exact_pages, PAGE * head_dim * EXACT.bytes),
            false => (0, 0),
        };
        Ok(Self { pages, page_bytes, exact_pages, exact_bytes, slides: decl.sliding.is_some() })
    }

    /// Bytes of the pages and of the exact pages.
    pub fn bytes(self) -> [usize; 2] {
        [self.pages * self.page_bytes, self.exact_pages * self.exact_bytes]
    }

    pub fn head_bytes(self) -> usize {
        self.bytes().into_iter().sum()
    }

    /// Byte range of page `i` in a head's memory.
    pub fn page(self, i: usize) -> Range<usize> {
        i * self.page_bytes..(i + 1) * self.page_bytes
    }

    /// Byte range of page `i` of a sequence.
    pub fn page_of(self, pages: &PageTable, seq: u32, i: usize) -> Range<usize> {
        self.page(self.number_of(pages, seq, i))
    }

    /// Number of the page that holds page `i` of a sequence.
    pub fn number_of(self, pages: &PageTable, seq: u32, i: usize) -> usize {
        match self.slides {
            true => pages.sliding(seq)[i].expect("the step was checked") as usize,
            false => pages.seq(seq)[i] as usize,
        }
    }

    /// Byte range of a page; empty if the cache has no such pages.
    pub fn range(self, page: KvPage) -> Range<usize> {
        match page {
            KvPage::Quantised(i) if !self.slides => self.page(i as usize),
            KvPage::Sliding(i) if self.slides => self.page(i as usize),
            KvPage::Quantised(_) | KvPage::Sliding(_) | KvPage::State(_) => 0..0,
            KvPage::Exact(i) => self.exact(i as usize),
        }
    }

    /// Byte range of exact page `i` in a head's memory.
    pub fn exact(self, i: usize) -> Range<usize> {
        let start = self.pages * self.page_bytes + i * self.exact_bytes;
        start..start + self.exact_bytes
    }
}
