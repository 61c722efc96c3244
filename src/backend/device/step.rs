//! The tables of a step on the device, in one buffer; a run writes only what has changed.

use std::ops::Range;

use bytemuck::Pod;

use crate::BackendError;
use sterna_program::{KvDecl, Limits, PageTable};

/// Entry of an exact page, or of a page of a sliding window, that does not exist.
pub const NO_PAGE: u32 = u32::MAX;

/// The words of the tables: the device's current contents (0 at first), and the wanted ones.
pub struct Image {
    there: Vec<u32>,
    wanted: Vec<u32>,
}

/// Offsets of the page tables of all sequences, in 32-bit words.
#[derive(Clone, Copy)]
pub struct PagesAt {
    /// `[n_seqs, stride]`.
    pub pages: usize,
    /// The same for exact pages, if any cache is windowed.
    pub exact: Option<usize>,
    /// The same for caches that keep a sliding window, if there are any.
    pub sliding: Option<usize>,
    n_seqs: usize,
    stride: usize,
}

impl PagesAt {
    /// Tables from word `at` on.
    pub fn new(at: usize, limits: &Limits) -> Self {
        let (n_seqs, stride) = (limits.seqs, limits.pages);
        let append = |before: usize, pages: usize| (pages > 0).then_some(before + n_seqs * stride);
        let exact = append(at, limits.exact_pages);
        let sliding = append(exact.unwrap_or(at), limits.sliding_pages);
        Self { pages: at, exact, sliding, n_seqs, stride }
    }

    /// Offset of the tables with a cache's pages, apart from exact ones.
    pub fn offset(&self, kv: &KvDecl) -> usize {
        self.sliding.filter(|_| kv.sliding.is_some()).unwrap_or(self.pages)
    }

    /// End of the tables.
    pub fn end(&self) -> usize {
        self.sliding.or(self.exact).unwrap_or(self.pages) + self.n_seqs * self.stride
    }

    /// Entries of one sequence.
    pub fn stride(&self) -> usize {
        self.stride
    }
}

impl Image {
    pub fn new(words: usize) -> Self {
        Self { there: vec![0; words], wanted: vec![0; words] }
    }

    /// Puts a value at word `at`.
    pub fn put<T: Pod>(&mut self, at: usize, value: &T) {
        let words = &mut self.wanted[at..at + size_of::<T>() / 4];
        bytemuck::cast_slice_mut(words).copy_from_slice(bytemuck::bytes_of(value));
    }

    /// Writes some words to the device if they differ from its contents; `write` gets the index of the first
    /// and all of them.
    pub fn bring(
        &mut self,
        words: Range<usize>,
        mut write: impl FnMut(usize, &[u32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let wanted = &self.wanted[words.clone()];
        if wanted == &self.there[words.clone()] {
            return Ok(());
        }
        write(words.start, wanted)?;
        self.there[words].copy_from_slice(wanted);
        Ok(())
    }

    /// Writes the page tables of all sequences.
    pub fn bring_pages(
        &mut self,
        table: &PageTable,
        at: PagesAt,
        mut write: impl FnMut(usize, &[u32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        // A table may hold more sequences than the program, and more pages than any row of it needs.
        for seq in 0..table.n_seqs().min(at.n_seqs) {
            let of_seq = seq * at.stride;
            let pages = table.seq(seq as u32);
            let pages = &pages[..pages.len().min(at.stride)];
            let words = at.pages + of_seq..at.pages + of_seq + pages.len();
            self.wanted[words.clone()].copy_from_slice(pages);
            self.bring(words, &mut write)?;
            let seq = seq as u32;
            for (at_some, some) in [(at.exact, table.exact(seq)), (at.sliding, table.sliding(seq))] {
                let Some(at_some) = at_some else { continue };
                let some = &some[..some.len().min(at.stride)];
                let words = at_some + of_seq..at_some + of_seq + some.len();
                let wanted = self.wanted[words.clone()].iter_mut().zip(some);
                wanted.for_each(|(to, page)| *to = page.unwrap_or(NO_PAGE));
                self.bring(words, &mut write)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_brought() {
        let mut image = Image::new(8);
        let mut brought = Vec::new();
        for (value, want) in [(0_u64, None), (7, Some(vec![7, 0])), (7, None), (1 << 32, Some(vec![0, 1]))] {
            brought.clear();
            image.put(2, &value);
            let write = |at: usize, words: &[u32]| {
                brought.push((at, words.to_vec()));
                Ok(())
            };
            image.bring(2..4, write).unwrap();
            assert_eq!(brought, want.map(|words| (2, words)).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn page_tables_are_cut_to_the_limits() {
        let mut table = PageTable::new(3, 4);
        for seq in 0..3 {
            table.seq_mut(seq).extend([10 * seq + 1, 10 * seq + 2, 10 * seq + 3]);
            table.exact_mut(seq).extend([Some(7), None]);
            table.sliding_mut(seq).extend([None, Some(8), Some(9)]);
        }
        let limits =
            Limits { rows: 1, outputs: 1, seqs: 2, pages: 2, exact_pages: 1, sliding_pages: 3, states: 0 };
        let at = PagesAt::new(1, &limits);
        assert_eq!(at.end(), 13);
        let mut device = vec![0; at.end()];
        let mut image = Image::new(at.end());
        let write = |at: usize, words: &[u32]| {
            device[at..at + words.len()].copy_from_slice(words);
            Ok(())
        };
        image.bring_pages(&table, at, write).unwrap();
        assert_eq!(device, [0, 1, 2, 11, 12, 7, NO_PAGE, 7, NO_PAGE, NO_PAGE, 8, NO_PAGE, 8]);
        let without = PagesAt::new(1, &Limits { exact_pages: 0, ..limits });
        assert_eq!((without.exact, without.sliding, without.end()), (None, Some(5), 9));
    }
}
