//! Which KV pages belong to which sequence.

use crate::program::{KvWindow, PAGE, PageTable};

/// The page pool of one engine. It holds `n_ctx` positions for every slot, so a session that stays
/// within its context always finds its page.
///
/// Sequences may share pages that are full. A page is written only while it has one holder.
#[derive(Debug)]
pub struct Pages {
    table: PageTable,
    pages: Pool,
    /// Empty where no codec is windowed.
    exact: Pool,
    window: KvWindow,
}

/// Pages of one kind.
#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    /// How many sequences hold each.
    holders: Vec<u32>,
}

/// Pages that hold `positions` positions.
pub fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE)
}

/// Exact pages that `seqs` sequences of `pages_a_seq` pages need, one of which grows by up to `rows` rows at a time.
pub fn exact_pages_for(window: KvWindow, seqs: usize, pages_a_seq: usize, rows: usize) -> usize {
    // Between steps a sequence holds its first pages, and what `Pages::settle` leaves of the newest.
    let held = window.sink_pages + 1 + 2 * window.newest_pages;
    seqs * pages_a_seq.min(held) + pages_for(rows).min(pages_a_seq.saturating_sub(held))
}

impl Pages {
    /// A pool for `seqs` sequences of `pages_a_seq` pages each, and `exact` exact pages.
    pub fn new(window: KvWindow, seqs: usize, pages_a_seq: usize, exact: usize) -> Self {
        let table = PageTable::new(seqs, pages_a_seq);
        Self { table, pages: Pool::new(seqs * pages_a_seq), exact: Pool::new(exact), window }
    }

    /// The table that a step carries.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Makes `seq` hold pages for its first `positions` positions, exact ones for those that are new.
    ///
    /// # Panics
    /// Where a pool is empty: a caller went beyond the context it asked for.
    pub fn grow(&mut self, seq: u32, positions: usize) {
        for _ in self.table.seq(seq).len()..pages_for(positions) {
            self.table.seq_mut(seq).push(self.pages.take());
            if self.is_windowed() {
                self.table.exact_mut(seq).push(Some(self.exact.take()));
            }
        }
    }

    /// Gives back the exact pages that no row reads any more, `seq` having grown to `positions`: neither one that
    /// follows, nor one after a cut by up to [`KvWindow::newest`] positions.
    pub fn settle(&mut self, seq: u32, positions: usize) {
        // A row reads the window before the page it stands in; the cut may bring it into an earlier page.
        let KvWindow { sink_pages, newest_pages } = self.window;
        let first = (positions.saturating_sub(self.window.newest()) / PAGE).saturating_sub(newest_pages);
        for i in sink_pages..first.min(self.table.exact(seq).len()) {
            let page = self.table.exact_mut(seq)[i].take();
            page.into_iter().for_each(|page| self.exact.give_back(page));
        }
    }

    /// Cuts `seq` back to `positions`, or to the start of the page that these end in: where the page cannot be
    /// written on, because another sequence holds it or only its codes are left. Returns to where.
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

    /// Makes `to`, which holds nothing, hold the full pages of the first `positions` positions of `from`. Returns how
    /// many positions these are.
    pub fn share(&mut self, from: u32, to: u32, positions: usize) -> usize {
        let full = positions / PAGE;
        for i in 0..full {
            let page = self.table.seq(from)[i];
            self.table.seq_mut(to).push(self.pages.share(page));
            if let Some(exact) = self.table.exact(from).get(i).copied() {
                self.table.exact_mut(to).push(exact.map(|page| self.exact.share(page)));
            }
        }
        full * PAGE
    }

    /// Makes `seq`, which holds nothing, hold the pages of `positions` positions as a sequence holds them between two steps:
    /// exact ones where `exact` says so, which has an entry a page. `false`, and it holds nothing, where no sequence could.
    pub fn hold(&mut self, seq: u32, positions: usize, exact: &[bool]) -> bool {
        let KvWindow { sink_pages, newest_pages } = self.window;
        let (n, windowed) = (exact.len(), self.is_windowed());
        let held = exact.iter().filter(|exact| **exact).count();
        let first = exact.iter().take(sink_pages).all(|exact| *exact);
        let last = positions.is_multiple_of(PAGE) || exact.last() == Some(&true);
        let possible = match windowed {
            true => first && last && held <= sink_pages + 1 + 2 * newest_pages,
            false => held == 0,
        };
        if !possible || n != pages_for(positions) || n > self.pages.free.len() || held > self.exact.free.len()
        {
            return false;
        }
        for exact in exact {
            self.table.seq_mut(seq).push(self.pages.take());
            if windowed {
                let page = exact.then(|| self.exact.take());
                self.table.exact_mut(seq).push(page);
            }
        }
        true
    }

    fn is_windowed(&self) -> bool {
        !self.exact.holders.is_empty()
    }
}

impl Pool {
    fn new(pages: usize) -> Self {
        Self { free: (0..pages as u32).rev().collect(), holders: vec![0; pages] }
    }

    fn take(&mut self) -> u32 {
        let page = self.free.pop().expect("the pool holds n_ctx positions for every slot");
        self.share(page)
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
        let mut pages = Pages::new(DEFAULT, 3, 2, 0);
        assert_eq!(pages.pages.free.len(), 6);
        pages.grow(0, 1);
        pages.grow(1, PAGE);
        pages.grow(1, PAGE + 1);
        pages.grow(2, 2 * PAGE);
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
        let mut pages = Pages::new(DEFAULT, 2, 4, exact_pages_for(DEFAULT, 2, 4, 64));
        pages.grow(0, 150);
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

    /// Steps of many sizes, each pool of exactly the size that is planned: it never runs dry, and every exact page that
    /// a row of a step may read is there.
    #[test]
    fn the_planned_exact_pages_suffice() {
        let sizes = [(1, 1000), (7, 1000), (64, 1000), (65, 1000), (200, 1000), (512, 130), (8, 300)];
        for (window, (rows, n_ctx)) in WINDOWS.into_iter().flat_map(|w| sizes.map(|size| (w, size))) {
            let pages_a_seq = pages_for(n_ctx);
            let mut pages = Pages::new(window, 3, pages_a_seq, exact_pages_for(window, 3, pages_a_seq, rows));
            for seq in 0..3 {
                let mut pos = 0;
                while pos < n_ctx {
                    let to = (pos + rows).min(n_ctx);
                    pages.grow(seq, to);
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
                let mut pages = Pages::new(window, 1, 10, exact_pages_for(window, 1, 10, 600));
                pages.grow(0, n);
                pages.settle(0, n);
                let cut = n.saturating_sub(window.newest());
                assert_eq!(pages.cut_back(0, cut), cut);
                for i in (0..pages_for(cut)).filter(|i| window.is_exact(cut, *i)) {
                    assert!(pages.table().exact(0)[i].is_some(), "{window:?}, {n} positions: page {i}");
                }
            }
        }
        let mut pages = Pages::new(DEFAULT, 1, 10, exact_pages_for(DEFAULT, 1, 10, 600));
        pages.grow(0, 600);
        pages.settle(0, 600);
        assert_eq!(pages.cut_back(0, 200), 192, "only the codes of that page are left");
    }
}
