//! KV pages of the sequences, and their reference counts.

mod pool;
mod recurrent;
mod saved;
mod sliding;

use std::sync::Arc;

use self::pool::Pool;
use self::recurrent::Recurrent;
pub use self::recurrent::{SLOTS, row_slots};
pub use self::sliding::Sliding;
use sterna_backend::KvPage;
use sterna_program::{AdapterScale, ImageSpan, KvWindow, PAGE, PageTable};

/// The page pools of one engine. Sequences allocate pages as they grow, which fails when no page is free.
///
/// Sequences and the prefix cache may share full pages. A page is written only while its reference count is
/// 1.
#[derive(Debug)]
pub struct Pages {
    table: PageTable,
    /// Pools by [`PageKind`]. A pool of an unused kind is empty.
    pools: [Pool; PageKind::ALL.len()],
    window: KvWindow,
    sliding: Option<Sliding>,
    /// One entry per sequence; empty without recurrent states.
    recurrent: Vec<Recurrent>,
    /// Free slots of the states' pool that are reserved for states after rows of drafts.
    row_slots: Vec<u32>,
}

/// Pool of a page. Saved sessions store the pages of equal positions in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of all positions, in the codecs of the cache.
    Quantised,
    /// Pages of sliding-window layers.
    Sliding,
    /// Exact pages of a windowed codec.
    Exact,
    /// Recurrent states, each as of the end of a full page.
    State,
}

/// A page of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Its pool.
    pub kind: PageKind,
    /// Its index in the pool.
    pub id: u32,
}

/// The pages of the same 64 positions, at most one per kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSet([Option<u32>; PageKind::ALL.len()]);

/// Kinds of page that a sequence has for 64 positions, besides [`PageKind::Quantised`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageKinds {
    /// An exact page.
    pub exact: bool,
    /// A page of sliding-window layers.
    pub sliding: bool,
    /// The recurrent state after them.
    pub state: bool,
}

impl PageKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Quantised, Self::Sliding, Self::Exact, Self::State];
}

impl From<PageRef> for KvPage {
    fn from(PageRef { kind, id }: PageRef) -> Self {
        match kind {
            PageKind::Quantised => Self::Quantised(id),
            PageKind::Sliding => Self::Sliding(id),
            PageKind::Exact => Self::Exact(id),
            PageKind::State => Self::State(id),
        }
    }
}

impl PageSet {
    /// The page of one kind.
    pub fn get(&self, kind: PageKind) -> Option<PageRef> {
        self.0[kind as usize].map(|id| PageRef { kind, id })
    }

    /// Adds a page; replaces the one of its kind.
    pub fn put(&mut self, page: PageRef) {
        self.0[page.kind as usize] = Some(page.id);
    }

    /// The pages, in the order of [`PageKind::ALL`].
    pub fn iter(self) -> impl Iterator<Item = PageRef> {
        PageKind::ALL.into_iter().filter_map(move |kind| self.get(kind))
    }

    /// The pages of the wanted kinds.
    #[must_use]
    pub fn filter(self, wanted: impl Fn(PageKind) -> bool) -> Self {
        self.iter().filter(|page| wanted(page.kind)).collect()
    }
}

impl FromIterator<PageRef> for PageSet {
    fn from_iter<T: IntoIterator<Item = PageRef>>(pages: T) -> Self {
        let mut set = Self::default();
        pages.into_iter().for_each(|page| set.put(page));
        set
    }
}

impl PageKinds {
    /// The set without a kind other than the quantised page.
    #[must_use]
    pub fn without(self, kind: PageKind) -> Self {
        match kind {
            PageKind::Quantised => self,
            PageKind::Sliding => Self { sliding: false, ..self },
            PageKind::Exact => Self { exact: false, ..self },
            PageKind::State => Self { state: false, ..self },
        }
    }

    /// True if the set contains a kind; it always contains the quantised page.
    pub fn has(self, kind: PageKind) -> bool {
        match kind {
            PageKind::Quantised => true,
            PageKind::Sliding => self.sliding,
            PageKind::Exact => self.exact,
            PageKind::State => self.state,
        }
    }
}

/// Number of pages for `positions` positions.
pub fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE)
}

/// Maximum number of pages that a step of `rows` rows adds to those of `seqs` sequences: rows of several
/// sequences may each begin a page.
fn grown(seqs: usize, rows: usize) -> usize {
    pages_for(rows) + usize::from(seqs > 1)
}

/// Maximum number of exact pages of a sequence between steps: its first pages, and the newest ones that
/// [`Pages::release_stale`] keeps.
fn held_exact(window: KvWindow) -> usize {
    window.sink_pages + 1 + 2 * window.newest_pages
}

/// Exact pages for `seqs` sequences of `pages_a_seq` pages each, which grow by `rows` rows in total in one
/// step.
pub fn exact_pages_for(window: KvWindow, seqs: usize, pages_a_seq: usize, rows: usize) -> usize {
    let held = pages_a_seq.min(held_exact(window));
    seqs * held + grown(seqs, rows).min(seqs * (pages_a_seq - held))
}

impl Pages {
    /// Pools of `pages` pages and `exact` exact pages, for `seqs` sequences of up to `pages_a_seq` pages
    /// each.
    pub fn new(window: KvWindow, seqs: usize, pages_a_seq: usize, pages: usize, exact: usize) -> Self {
        let table = PageTable::new(seqs, pages_a_seq);
        let mut pools = [const { Pool::EMPTY }; PageKind::ALL.len()];
        pools[PageKind::Quantised as usize] = Pool::new(pages);
        pools[PageKind::Exact as usize] = Pool::new(exact);
        Self { table, pools, window, sliding: None, recurrent: Vec::new(), row_slots: Vec::new() }
    }

    /// Adds a pool of `pages` pages for sliding-window layers.
    #[must_use]
    pub fn with_sliding(mut self, sliding: Option<Sliding>, pages: usize) -> Self {
        *self.pool_mut(PageKind::Sliding) = Pool::new(pages);
        Self { sliding, ..self }
    }

    fn pool(&self, kind: PageKind) -> &Pool {
        &self.pools[kind as usize]
    }

    fn pool_mut(&mut self, kind: PageKind) -> &mut Pool {
        &mut self.pools[kind as usize]
    }

    /// True if sequences allocate a page of a kind for new positions.
    fn has(&self, kind: PageKind) -> bool {
        match kind {
            PageKind::Quantised => true,
            PageKind::Sliding => self.sliding.is_some(),
            PageKind::Exact => self.is_windowed(),
            PageKind::State => false,
        }
    }

    /// Kinds of page allocated for new positions.
    fn kinds(&self) -> impl Iterator<Item = PageKind> {
        PageKind::ALL.into_iter().filter(|kind| self.has(*kind))
    }

    /// The page table for a step.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Sets the position in `seq` where the second of two texts begins.
    pub fn set_second(&mut self, seq: u32, at: Option<u32>) {
        self.table.set_second(seq, at);
    }

    /// Sets the adapters of `seq`.
    pub fn set_adapters(&mut self, seq: u32, adapters: &Arc<[AdapterScale]>) {
        self.table.set_adapters(seq, Arc::clone(adapters));
    }

    /// Sets the images of `seq`, in the order of their positions.
    pub fn set_images(&mut self, seq: u32, images: impl IntoIterator<Item = ImageSpan>) {
        self.table.set_images(seq, images);
    }

    /// The pages at index `i` of `seq`.
    pub fn at(&self, seq: u32, i: usize) -> PageSet {
        PageSet([
            self.table.seq(seq).get(i).copied(),
            some(self.table.sliding(seq), i),
            some(self.table.exact(seq), i),
            self.recurrent.get(seq as usize).and_then(|own| some(&own.kept, i)),
        ])
    }

    /// The pages at index `i` of `seq`, as ids of the backend.
    pub fn kv_pages(&self, seq: u32, i: usize) -> impl Iterator<Item = KvPage> {
        self.at(seq, i).iter().map(KvPage::from)
    }

    /// Kinds of the pages of the first `positions` positions of `seq`, one entry per page.
    pub fn kinds_of(&self, seq: u32, positions: usize) -> Vec<PageKinds> {
        let of = |i| {
            let has = |kind| self.at(seq, i).get(kind).is_some();
            PageKinds {
                exact: has(PageKind::Exact),
                sliding: has(PageKind::Sliding),
                state: has(PageKind::State),
            }
        };
        (0..pages_for(positions)).map(of).collect()
    }

    /// Positions that are kept exactly.
    pub fn window(&self) -> KvWindow {
        self.window
    }

    /// True if sequences have exact pages.
    pub fn is_windowed(&self) -> bool {
        self.pool(PageKind::Exact).n_pages() > 0
    }

    /// True if a sequence can resume only at checkpoints, because it needs more than its pages of all
    /// positions.
    pub fn has_checkpoints(&self) -> bool {
        self.is_windowed() || self.has_states()
    }

    /// Sliding-window rules; `None` if all pages are kept.
    pub fn sliding(&self) -> Option<Sliding> {
        self.sliding
    }

    /// Number of pages of the pool.
    pub fn n_pages(&self) -> usize {
        self.pool(PageKind::Quantised).n_pages()
    }

    /// Number of free pages.
    pub fn n_free(&self) -> usize {
        self.pool(PageKind::Quantised).n_free()
    }

    /// True if all pages of all pools are free.
    pub fn is_whole(&self) -> bool {
        let is_free = |kind| self.pool(kind).n_free() == self.pool(kind).n_pages();
        let n_states = self.pool(PageKind::State).n_free() + self.row_slots.len();
        PageKind::ALL.into_iter().all(|kind| match kind {
            PageKind::State => n_states == self.pool(kind).n_pages(),
            PageKind::Quantised | PageKind::Sliding | PageKind::Exact => is_free(kind),
        })
    }

    /// True if there are too few free pages of a kind for `seq` to grow to `positions`.
    pub fn lacks(&self, kind: PageKind, seq: u32, positions: usize) -> bool {
        self.has(kind) && self.pool(kind).n_free() < self.more(seq, positions)
    }

    /// Number of additional pages that `seq` needs for `positions` positions.
    fn more(&self, seq: u32, positions: usize) -> usize {
        pages_for(positions).saturating_sub(self.table.seq(seq).len())
    }

    /// True if a sequence that shares the first `positions` positions of `seq` would read the same as `seq`
    /// did there: no exact or sliding-window pages have been released since.
    pub fn can_fork(&self, seq: u32, positions: usize) -> bool {
        let KvWindow { sink_pages, newest_pages } = self.window;
        let newest = (positions / PAGE).saturating_sub(newest_pages);
        let is_there = |i: usize| self.table.exact(seq)[i].is_some();
        let is_read = |i: &usize| *i < sink_pages || *i >= newest;
        let exactly = !self.is_windowed() || (0..pages_for(positions)).filter(is_read).all(is_there);
        exactly && self.goes_on(seq, positions / PAGE * PAGE)
    }

    /// True if index `i` of `seq` has all kinds of page that a new page has.
    pub fn has_all(&self, seq: u32, i: usize) -> bool {
        let there = self.at(seq, i);
        self.kinds().all(|kind| there.get(kind).is_some())
    }

    /// True if the row at `pos` of `seq`, which has run, can run again: the pages that it writes and reads
    /// still exist.
    pub fn runs_again(&self, seq: u32, pos: usize) -> bool {
        let exact = self.table.exact(seq);
        let is_exact = |i: usize| !self.is_windowed() || some(exact, i).is_some();
        let page = pos / PAGE;
        // A row cannot update a recurrent state twice.
        if self.has_states() {
            return false;
        }
        let first = self.sliding.map_or(page + 1, |sliding| sliding.first(pos));
        let sees = (first..=page).all(|i| some(self.table.sliding(seq), i).is_some());
        page < self.table.seq(seq).len() && is_exact(page) && sees
    }

    /// True if all sliding-window pages that the row after the first `positions` positions of `seq` reads
    /// still exist.
    fn goes_on(&self, seq: u32, positions: usize) -> bool {
        let table = self.table.sliding(seq);
        let first = self.sliding.map(|sliding| sliding.first(positions));
        first.is_none_or(|first| (first..pages_for(positions)).all(|i| some(table, i).is_some()))
    }

    /// The maximum number of positions, up to `positions`, that `seq` can grow to with the free pages.
    pub fn most(&self, seq: u32, positions: usize) -> usize {
        let free = self.kinds().map(|kind| self.pool(kind).n_free()).min().unwrap_or(0);
        positions.min((self.table.seq(seq).len() + free) * PAGE)
    }

    /// Allocates pages for the first `positions` positions of `seq`, of all kinds that new pages have.
    /// Changes nothing and returns `false` if there are too few.
    #[must_use]
    pub fn grow(&mut self, seq: u32, positions: usize) -> bool {
        if self.most(seq, positions) < positions || !self.take_next(seq) {
            return false;
        }
        for _ in self.table.seq(seq).len()..pages_for(positions) {
            self.push_new(
                seq,
                PageKinds { exact: self.is_windowed(), sliding: self.sliding.is_some(), state: false },
            );
        }
        true
    }

    fn push_new(&mut self, seq: u32, kinds: PageKinds) {
        let mut take =
            |kind| PageRef { kind, id: self.pool_mut(kind).take().expect("checked by the caller") };
        let set = PageKind::ALL.into_iter().filter(|kind| kinds.has(*kind)).map(&mut take).collect();
        self.push(seq, set);
    }

    /// Releases the pages that no row of `seq`, now at `positions`, can read any more: neither the next row,
    /// nor one after a cut by up to [`KvWindow::newest`] positions, or for sliding windows by up to
    /// [`Sliding::CUT`].
    pub fn release_stale(&mut self, seq: u32, positions: usize) {
        let first = self.first_exact(positions);
        for i in self.window.sink_pages..first.min(self.table.exact(seq).len()) {
            let page = self.table.exact_mut(seq)[i].take();
            self.pool_mut(PageKind::Exact).give_back_some(page);
        }
        let first = self.sliding.map_or(0, |sliding| sliding.first_kept(positions));
        for i in 0..first.min(self.table.sliding(seq).len()) {
            let page = self.table.sliding_mut(seq)[i].take();
            self.pool_mut(PageKind::Sliding).give_back_some(page);
        }
    }

    /// The first page after the sinks whose exact page a sequence at `positions` keeps: a row reads the
    /// window before its own page, and a cut may move it to an earlier page.
    fn first_exact(&self, positions: usize) -> usize {
        (positions.saturating_sub(self.window.newest()) / PAGE).saturating_sub(self.window.newest_pages)
    }

    /// Cuts `seq` back to `positions`, or to the start of the page that these end in if that page cannot be
    /// appended to, because it is shared or only its quantised page is left. Cuts to 0 if the next row needs
    /// sliding-window pages that have been released, since those can only be recomputed from the start. With
    /// recurrent states, cuts to the end of a page whose state was kept. Returns the number of positions that
    /// remain.
    pub fn cut_back(&mut self, seq: u32, positions: usize) -> usize {
        let mut remain = self.newest_state(seq, positions);
        loop {
            let written_on = self.written_on(seq, remain);
            if written_on == remain {
                break;
            }
            remain = self.newest_state(seq, written_on);
        }
        while self.table.seq(seq).len() > pages_for(remain) {
            let last = self.at(seq, self.table.seq(seq).len() - 1);
            self.table.seq_mut(seq).pop();
            self.table.exact_mut(seq).pop();
            self.table.sliding_mut(seq).pop();
            self.recurrent.get_mut(seq as usize).and_then(|own| own.kept.pop());
            self.release(last);
        }
        self.set_position(seq, remain);
        remain
    }

    /// The maximum number of positions, up to `positions`, after which the pages of `seq` can be appended to.
    fn written_on(&self, seq: u32, positions: usize) -> usize {
        let full = positions / PAGE;
        let ends_full = positions.is_multiple_of(PAGE);
        let lost = |i: usize| self.table.exact(seq).get(i).is_some_and(Option::is_none);
        let whole = ends_full || lost(full) || self.is_shared(seq, full);
        let remain = if whole { full * PAGE } else { positions };
        if self.goes_on(seq, remain) { remain } else { 0 }
    }

    fn is_shared(&self, seq: u32, i: usize) -> bool {
        let pages = self.at(seq, i);
        [PageKind::Quantised, PageKind::Sliding]
            .into_iter()
            .filter_map(|kind| pages.get(kind))
            .any(|page| self.has_several_holders(page))
    }

    /// Shares the full pages of the first `positions` positions of `from` with `to`, which has no pages.
    /// Returns the number of shared positions: fewer if the last kept recurrent state is earlier, and 0 if
    /// the sliding-window pages that the next row needs have been released.
    pub fn share(&mut self, from: u32, to: u32, positions: usize) -> usize {
        let kept = self.recurrent.get(from as usize).map(|own| own.newest(positions).map_or(0, |(at, _)| at));
        let full = kept.unwrap_or(positions) / PAGE;
        let full = if self.goes_on(from, full * PAGE) { full } else { 0 };
        for i in 0..full {
            let is_shared = |kind| kind != PageKind::State || i + 1 == full;
            self.push_shared(to, self.at(from, i).filter(is_shared));
        }
        full * PAGE
    }

    /// Increments the reference count of each page.
    pub fn retain(&mut self, pages: PageSet) -> PageSet {
        for PageRef { kind, id } in pages.iter() {
            self.pool_mut(kind).share(id);
        }
        pages
    }

    /// Decrements the reference count of each page.
    pub fn release(&mut self, pages: PageSet) {
        pages.iter().for_each(|PageRef { kind, id }| self.pool_mut(kind).give_back(id));
    }

    /// Appends shared pages to `seq`, and increments their reference counts.
    pub fn push_shared(&mut self, seq: u32, pages: PageSet) {
        let pages = self.retain(pages);
        self.push(seq, pages);
    }

    /// Replaces page `i` of `seq` with `page`, which has the same content.
    pub fn replace(&mut self, seq: u32, i: usize, page: u32) {
        let pool = &mut self.pools[PageKind::Quantised as usize];
        let page = pool.share(page);
        let own = std::mem::replace(&mut self.table.seq_mut(seq)[i], page);
        pool.give_back(own);
    }

    /// True if the reference count of a page is above 1.
    pub fn has_several_holders(&self, PageRef { kind, id }: PageRef) -> bool {
        self.pool(kind).is_shared(id)
    }

    /// Appends pages to `seq`. If they include a recurrent state, it becomes the current one.
    fn push(&mut self, seq: u32, PageSet([page, sliding, exact, state]): PageSet) {
        self.table.seq_mut(seq).push(page.expect("positions have a quantised page"));
        if self.is_windowed() {
            self.table.exact_mut(seq).push(exact);
        }
        if self.sliding.is_some() {
            self.table.sliding_mut(seq).push(sliding);
        }
        let positions = self.table.seq(seq).len() * PAGE;
        if let Some(own) = self.recurrent.get_mut(seq as usize) {
            own.kept.push(state);
            if state.is_some() {
                self.set_position(seq, positions);
            }
        }
    }
}

/// Entry `i` of a list, if it exists and is set.
fn some(list: &[Option<u32>], i: usize) -> Option<u32> {
    list.get(i).copied().flatten()
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
        assert_eq!(pages.n_free(), 6);
        assert!(
            pages.grow(0, 1) && pages.grow(1, PAGE) && pages.grow(1, PAGE + 1) && pages.grow(2, 2 * PAGE)
        );
        assert_eq!(pages.n_free(), 1);
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
        assert_eq!(pages.n_free(), 6);
    }

    #[test]
    fn a_shared_page_lives_as_long_as_one_holder_and_is_not_written() {
        let mut pages = Pages::new(DEFAULT, 2, 4, 8, exact_pages_for(DEFAULT, 2, 4, 64));
        assert!(pages.grow(0, 150));
        assert_eq!(pages.share(0, 1, 150), 2 * PAGE);
        assert_eq!(pages.table().seq(1), &pages.table().seq(0)[..2]);
        assert_eq!(pages.table().exact(1), &pages.table().exact(0)[..2]);
        assert_eq!(pages.cut_back(0, 100), PAGE, "position 100 is in a shared page");
        assert_eq!(pages.cut_back(1, 100), 100, "which is no longer shared");
        pages.cut_back(0, 0);
        pages.cut_back(1, 0);
        assert!(pages.is_whole());
    }

    /// Steps of many sizes, each pool of exactly the planned size: it never runs out, and every exact page
    /// that a row of a step may read exists.
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
                    pages.release_stale(seq, to);
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
                pages.release_stale(0, n);
                let cut = n.saturating_sub(window.newest());
                assert_eq!(pages.cut_back(0, cut), cut);
                for i in (0..pages_for(cut)).filter(|i| window.is_exact(cut, *i)) {
                    assert!(pages.table().exact(0)[i].is_some(), "{window:?}, {n} positions: page {i}");
                }
            }
        }
        let mut pages = Pages::new(DEFAULT, 1, 10, 10, exact_pages_for(DEFAULT, 1, 10, 600));
        assert!(pages.grow(0, 600));
        pages.release_stale(0, 600);
        assert_eq!(pages.cut_back(0, 200), 192, "only the quantised page is left");
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
