//! Which KV pages belong to which sequence, and who else holds them.

use crate::backend::KvPage;
use crate::program::{KvWindow, PAGE, PageTable};

/// The page pool of one engine. Sequences take pages as they grow, which fails when no page is left.
///
/// Sequences and the prefix cache may share pages that are full. A page is written only while it has one
/// holder.
#[derive(Debug)]
pub struct Pages {
    table: PageTable,
    pages: Pool,
    /// Empty unless a codec is windowed.
    exact: Pool,
    window: KvWindow,
}

/// Pages of one kind.
#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    /// Number of holders of each page: sequences, and the prefix cache.
    holders: Vec<u32>,
}

/// A page that a sequence and others may hold, and the exact page beside it, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub page: u32,
    /// The exact page of a windowed codec.
    pub exact: Option<u32>,
}

/// Pages that hold `positions` positions.
pub fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE)
}

/// Exact pages that a sequence holds between steps: its first pages, and what [`Pages::settle`] leaves of the
/// newest.
fn held_exact(window: KvWindow) -> usize {
    window.sink_pages + 1 + 2 * window.newest_pages
}

/// Exact pages for `seqs` sequences of `pages_a_seq` pages each, which grow by `rows` rows in all in one
/// step.
pub fn exact_pages_for(window: KvWindow, seqs: usize, pages_a_seq: usize, rows: usize) -> usize {
    let held = pages_a_seq.min(held_exact(window));
    // Rows of several sequences may each begin a page.
    let grown = pages_for(rows) + usize::from(seqs > 1);
    seqs * held + grown.min(seqs * (pages_a_seq - held))
}

impl Pages {
    /// A pool of `pages` pages and `exact` exact pages, for `seqs` sequences of up to `pages_a_seq` pages
    /// each.
    pub fn new(window: KvWindow, seqs: usize, pages_a_seq: usize, pages: usize, exact: usize) -> Self {
        let table = PageTable::new(seqs, pages_a_seq);
        Self { table, pages: Pool::new(pages), exact: Pool::new(exact), window }
    }

    /// The table that a step carries.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Page `i` of `seq` as the backend names it, and its exact page if it has one.
    pub fn kv_pages(&self, seq: u32, i: usize) -> impl Iterator<Item = KvPage> {
        let exact = self.table.exact(seq).get(i).copied().flatten();
        [KvPage::Quantised(self.table.seq(seq)[i])].into_iter().chain(exact.map(KvPage::Exact))
    }

    /// What is kept exactly.
    pub fn window(&self) -> KvWindow {
        self.window
    }

    /// Whether sequences have exact pages.
    pub fn is_windowed(&self) -> bool {
        !self.exact.holders.is_empty()
    }

    /// Pages of the pool.
    pub fn n_pages(&self) -> usize {
        self.pages.holders.len()
    }

    /// Pages that nobody holds.
    pub fn n_free(&self) -> usize {
        self.pages.free.len()
    }

    /// Whether it is exact pages that are too few for `seq` to grow to `positions`.
    pub fn lacks_exact(&self, seq: u32, positions: usize) -> bool {
        let more = pages_for(positions).saturating_sub(self.table.seq(seq).len());
        self.is_windowed() && self.exact.free.len() < more
    }

    /// Whether a sequence that shares the first `positions` positions of `seq` reads what `seq` read when it
    /// was there: exact pages have not gone since.
    pub fn can_fork(&self, seq: u32, positions: usize) -> bool {
        let KvWindow { sink_pages, newest_pages } = self.window;
        let newest = (positions / PAGE).saturating_sub(newest_pages);
        let is_there = |i: usize| self.table.exact(seq)[i].is_some();
        let is_read = |i: &usize| *i < sink_pages || *i >= newest;
        !self.is_windowed() || (0..pages_for(positions)).filter(is_read).all(is_there)
    }

    /// The most positions, up to `positions`, that `seq` could grow to with the pages that are free now.
    pub fn most(&self, seq: u32, positions: usize) -> usize {
        let free = match self.is_windowed() {
            true => self.pages.free.len().min(self.exact.free.len()),
            false => self.pages.free.len(),
        };
        positions.min((self.table.seq(seq).len() + free) * PAGE)
    }

    /// Makes `seq` hold pages for its first `positions` positions, and exact pages for those that are new.
    /// Changes nothing and returns `false` if there are too few.
    #[must_use]
    pub fn grow(&mut self, seq: u32, positions: usize) -> bool {
        if self.most(seq, positions) < positions {
            return false;
        }
        for _ in self.table.seq(seq).len()..pages_for(positions) {
            let page = self.pages.take().expect("counted above");
            self.table.seq_mut(seq).push(page);
            if self.is_windowed() {
                let exact = self.exact.take();
                self.table.exact_mut(seq).push(exact);
            }
        }
        true
    }

    /// Gives back the exact pages that no row reads any more, `seq` having grown to `positions`: neither one
    /// that follows, nor one after a cut by up to [`KvWindow::newest`] positions.
    pub fn settle(&mut self, seq: u32, positions: usize) {
        // A row reads the window before the page it stands in; the cut may bring it into an earlier page.
        let KvWindow { sink_pages, newest_pages } = self.window;
        let first = (positions.saturating_sub(self.window.newest()) / PAGE).saturating_sub(newest_pages);
        for i in sink_pages..first.min(self.table.exact(seq).len()) {
            let page = self.table.exact_mut(seq)[i].take();
            page.into_iter().for_each(|page| self.exact.give_back(page));
        }
    }

    /// Cuts `seq` back to `positions`, or to the start of the page that these end in if that page cannot be
    /// written on: another holder shares it, or only its codes are left. Returns the number of positions that
    /// remain.
    pub fn cut_back(&mut self, seq: u32, positions: usize) -> usize {
        let full = positions / PAGE;
        let ends_full = positions.is_multiple_of(PAGE);
        let lost = |i: usize| self.table.exact(seq).get(i).is_some_and(Option::is_none);
        let whole = ends_full || lost(full) || self.pages.is_shared(self.table.seq(seq)[full]);
        let keep = if whole { full } else { full + 1 };
        while self.table.seq(seq).len() > keep {
            let page = self.table.seq_mut(seq).pop();
            page.into_iter().for_each(|page| self.pages.give_back(page));
            let exact = self.table.exact_mut(seq).pop().flatten();
            exact.into_iter().for_each(|page| self.exact.give_back(page));
        }
        if whole { full * PAGE } else { positions }
    }

    /// Makes `to`, which holds nothing, hold the full pages of the first `positions` positions of `from`.
    /// Returns how many positions these are.
    pub fn share(&mut self, from: u32, to: u32, positions: usize) -> usize {
        let full = positions / PAGE;
        for i in 0..full {
            let held = self.retain(from, i, true);
            self.push(to, held);
        }
        full * PAGE
    }

    /// Page `i` of `seq`, and its exact page if `exact`, with one holder more.
    pub fn retain(&mut self, seq: u32, i: usize, exact: bool) -> Held {
        let page = self.pages.share(self.table.seq(seq)[i]);
        let exact = if exact { self.retain_exact(seq, i) } else { None };
        Held { page, exact }
    }

    /// The exact page of page `i` of `seq`, with one holder more.
    pub fn retain_exact(&mut self, seq: u32, i: usize) -> Option<u32> {
        let exact = self.table.exact(seq).get(i).copied().flatten();
        exact.map(|page| self.exact.share(page))
    }

    /// One holder less.
    pub fn release(&mut self, held: Held) {
        self.pages.give_back(held.page);
        held.exact.into_iter().for_each(|page| self.exact.give_back(page));
    }

    /// One holder of an exact page less.
    pub fn release_exact(&mut self, page: u32) {
        self.exact.give_back(page);
    }

    /// Makes `seq` hold `held` behind what it holds; the holders are one more.
    pub fn push_shared(&mut self, seq: u32, held: Held) {
        let held =
            Held { page: self.pages.share(held.page), exact: held.exact.map(|page| self.exact.share(page)) };
        self.push(seq, held);
    }

    /// Makes `seq` hold `page`, which holds the same positions, in place of its page `i`.
    pub fn replace(&mut self, seq: u32, i: usize, page: u32) {
        let page = self.pages.share(page);
        let own = std::mem::replace(&mut self.table.seq_mut(seq)[i], page);
        self.pages.give_back(own);
    }

    /// Whether a page has one holder alone.
    pub fn has_one_holder(&self, page: u32) -> bool {
        !self.pages.is_shared(page)
    }

    /// Whether an exact page has one holder alone.
    pub fn exact_has_one_holder(&self, page: u32) -> bool {
        !self.exact.is_shared(page)
    }

    fn push(&mut self, seq: u32, held: Held) {
        self.table.seq_mut(seq).push(held.page);
        if self.is_windowed() {
            self.table.exact_mut(seq).push(held.exact);
        }
    }

    /// Makes `seq`, which holds nothing, hold the pages of `positions` positions as a sequence holds them
    /// between two steps: exact ones where `exact`, which has an entry a page, says so. `false`, and it holds
    /// nothing, if no sequence could hold such pages, or if there are too few.
    pub fn hold(&mut self, seq: u32, positions: usize, exact: &[bool]) -> bool {
        let sink_pages = self.window.sink_pages;
        let (n, windowed) = (exact.len(), self.is_windowed());
        let held = exact.iter().filter(|exact| **exact).count();
        let first = exact.iter().take(sink_pages).all(|exact| *exact);
        let last = positions.is_multiple_of(PAGE) || exact.last() == Some(&true);
        let possible = match windowed {
            true => first && last && held <= held_exact(self.window),
            false => held == 0,
        };
        if !possible || n != pages_for(positions) || n > self.pages.free.len() || held > self.exact.free.len()
        {
            return false;
        }
        for exact in exact {
            let page = self.pages.take().expect("counted above");
            let exact = exact.then(|| self.exact.take().expect("counted above"));
            self.push(seq, Held { page, exact });
        }
        true
    }
}

impl Pool {
    fn new(pages: usize) -> Self {
        Self { free: (0..pages as u32).rev().collect(), holders: vec![0; pages] }
    }

    fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        Some(self.share(page))
    }

    fn share(&mut self, page: u32) -> u32 {
        self.holders[page as usize] += 1;
        page
    }

    fn give_back(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    fn is_shared(&self, page: u32) -> bool {
        self.holders[page as usize] > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: KvWindow = KvWindow { sink_pages: 1, newest_pages: 1 };
    const WINDOWS: [KvWindow; 3] =
        [DEFAULT, KvWindow { sink_pages: 2, newest_pages: 3 }, KvWindow { sink_pages: 30, newest_pages: 1 }];

    #[test]
    fn sequences_never_share_a_page_and_give_back_what_they_took() {
        let mut pages = Pages::new(DEFAULT, 3, 2, 6, 0);
        assert_eq!(pages.pages.free.len(), 6);
        assert!(
            pages.grow(0, 1) && pages.grow(1, PAGE) && pages.grow(1, PAGE + 1) && pages.grow(2, 2 * PAGE)
        );
        assert_eq!(pages.pages.free.len(), 1);
        let mut held: Vec<u32> = (0..3).flat_map(|seq| pages.table().seq(seq).to_vec()).collect();
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), 5);
        let first = pages.table().seq(1)[0];
        assert_eq!(pages.cut_back(1, PAGE), PAGE);
        assert_eq!(pages.table().seq(1), [first]);
        for seq in 0..3 {
            assert_eq!(pages.cut_back(seq, 0), 0);
        }
        assert_eq!(pages.pages.free.len(), 6);
    }

    #[test]
    fn a_shared_page_lives_as_long_as_one_holder_and_is_not_written() {
        let mut pages = Pages::new(DEFAULT, 2, 4, 8, exact_pages_for(DEFAULT, 2, 4, 64));
        assert!(pages.grow(0, 150));
        assert_eq!(pages.share(0, 1, 150), 2 * PAGE);
        assert_eq!(pages.table().seq(1), &pages.table().seq(0)[..2]);
        assert_eq!(pages.table().exact(1), &pages.table().exact(0)[..2]);
        assert_eq!(pages.cut_back(0, 100), PAGE, "position 100 lies in a shared page");
        assert_eq!(pages.cut_back(1, 100), 100, "which has one holder now");
        pages.cut_back(0, 0);
        pages.cut_back(1, 0);
        let all = |pool: &Pool| pool.free.len() == pool.holders.len();
        assert!(all(&pages.pages) && all(&pages.exact));
    }

    /// Steps of many sizes, each pool of exactly the size that is planned: it never runs dry, and every exact
    /// page that a row of a step may read is there.
    #[test]
    fn the_planned_exact_pages_suffice() {
        let sizes = [(1, 1000), (7, 1000), (64, 1000), (65, 1000), (200, 1000), (512, 130), (8, 300)];
        for (window, (rows, n_ctx)) in WINDOWS.into_iter().flat_map(|w| sizes.map(|size| (w, size))) {
            let pages_a_seq = pages_for(n_ctx);
            let exact = exact_pages_for(window, 3, pages_a_seq, rows);
            let mut pages = Pages::new(window, 3, pages_a_seq, 3 * pages_a_seq, exact);
            for seq in 0..3 {
                let mut pos = 0;
                while pos < n_ctx {
                    let to = (pos + rows).min(n_ctx);
                    assert!(pages.grow(seq, to));
                    let is_read = |i: &usize| (pos..to).any(|pos| window.is_exact(pos, *i));
                    for i in (0..pages_for(to)).filter(is_read) {
                        assert!(
                            pages.table().exact(seq)[i].is_some(),
                            "{window:?}, {rows} rows at {pos}: page {i}"
                        );
                    }
                    pages.settle(seq, to);
                    pos = to;
                }
                assert!(pages.table().exact(seq)[0].is_some());
            }
        }
    }

    #[test]
    fn a_cut_by_up_to_the_window_loses_nothing() {
        for window in WINDOWS {
            for n in 1..600 {
                let mut pages = Pages::new(window, 1, 10, 10, exact_pages_for(window, 1, 10, 600));
                assert!(pages.grow(0, n));
                pages.settle(0, n);
                let cut = n.saturating_sub(window.newest());
                assert_eq!(pages.cut_back(0, cut), cut);
                for i in (0..pages_for(cut)).filter(|i| window.is_exact(cut, *i)) {
                    assert!(pages.table().exact(0)[i].is_some(), "{window:?}, {n} positions: page {i}");
                }
            }
        }
        let mut pages = Pages::new(DEFAULT, 1, 10, 10, exact_pages_for(DEFAULT, 1, 10, 600));
        assert!(pages.grow(0, 600));
        pages.settle(0, 600);
        assert_eq!(pages.cut_back(0, 200), 192, "only the codes of that page are left");
    }

    #[test]
    fn an_empty_pool_refuses_and_changes_nothing() {
        let mut pages = Pages::new(DEFAULT, 2, 4, 5, 0);
        assert!(pages.grow(0, 3 * PAGE));
        assert_eq!(pages.most(1, 4 * PAGE), 2 * PAGE);
        assert!(!pages.grow(1, 2 * PAGE + 1));
        assert!(pages.table().seq(1).is_empty() && pages.n_free() == 2);
        assert!(pages.grow(1, 2 * PAGE) && !pages.grow(1, 2 * PAGE + 1));
        pages.cut_back(0, PAGE);
        assert!(pages.grow(1, 2 * PAGE + 1));
    }
}
