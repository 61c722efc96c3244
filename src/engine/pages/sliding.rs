//! Pages that sliding-window layers keep, and their number.

use super::grown;
use sterna_program::{PAGE, Program};

/// Rules for layers that read only the last positions of a sequence, and keep only the pages of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Maximum number of positions that a row reads, including its own.
    window: usize,
}

impl Sliding {
    /// A sequence can be cut back by up to this number of positions without recomputing; after a longer cut
    /// it is recomputed from its start.
    pub const CUT: usize = PAGE;

    /// Rules for windows of up to `window` positions, at least 1.
    pub fn new(window: usize) -> Self {
        Self { window: window.max(1) }
    }

    /// Rules for the caches of a program; `None` if they keep all positions.
    pub fn of(program: &Program) -> Option<Self> {
        program.sliding().map(|window| Self::new(window as usize))
    }

    /// The first page that a row at `pos` reads.
    pub fn first(self, pos: usize) -> usize {
        (pos + 1).saturating_sub(self.window) / PAGE
    }

    /// The first page that a sequence of `positions` positions keeps. A cut may continue to the start of a
    /// page.
    pub fn first_kept(self, positions: usize) -> usize {
        self.first(positions.saturating_sub(Self::CUT) / PAGE * PAGE)
    }

    /// Number of preceding pages that a row at the start of a page reads.
    pub fn n_before(self) -> usize {
        (self.window - 1).div_ceil(PAGE)
    }

    /// Maximum number of pages of a sequence between two steps, and in a step of one row.
    pub fn held(self) -> usize {
        self.n_before() + 2
    }

    /// Pages for `seqs` sequences of `pages_a_seq` pages each, which grow by `rows` rows in total in one
    /// step, and for `checkpoints` positions that the prefix cache can resume from.
    pub fn pages_for(self, seqs: usize, pages_a_seq: usize, rows: usize, checkpoints: usize) -> usize {
        let held = pages_a_seq.min(self.held());
        let in_step = seqs * held + grown(seqs, rows).min(seqs * (pages_a_seq - held));
        in_step.saturating_add(checkpoints.saturating_mul((self.n_before() + 1).min(pages_a_seq)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PageKinds, Pages, pages_for};
    use super::*;
    use sterna_program::KvWindow;

    const WINDOWS: [usize; 9] = [1, 2, 63, 64, 65, 66, 128, 512, 1000];

    fn pages(window: usize, seqs: usize, n_ctx: usize, rows: usize) -> Pages {
        let (sliding, a_seq) = (Sliding::new(window), pages_for(n_ctx));
        let n = sliding.pages_for(seqs, a_seq, rows, 0);
        Pages::new(KvWindow::default(), seqs, a_seq, seqs * a_seq, 0).with_sliding(Some(sliding), n)
    }

    fn sees(pages: &Pages, window: usize, seq: u32, pos: usize) -> bool {
        let sliding = pages.table().sliding(seq);
        ((pos + 1).saturating_sub(window)..=pos).all(|seen| sliding[seen / PAGE].is_some())
    }

    /// Steps of many sizes with a pool of exactly the planned size: it never runs out, every row finds its
    /// whole window, and all pages are free in the end.
    #[test]
    fn the_planned_pages_suffice() {
        let sizes = [(1, 900), (7, 900), (64, 900), (65, 900), (66, 900), (200, 900), (512, 130), (8, 300)];
        for (window, (rows, n_ctx)) in WINDOWS.into_iter().flat_map(|w| sizes.map(|size| (w, size))) {
            let mut pages = pages(window, 3, n_ctx, rows);
            for seq in 0..3 {
                let mut pos = 0;
                while pos < n_ctx {
                    let to = (pos + rows).min(n_ctx);
                    assert!(pages.grow(seq, to), "{window}, {rows} rows at {pos} of {n_ctx}");
                    for pos in pos..to {
                        assert!(sees(&pages, window, seq, pos), "window {window}, {rows} rows, at {pos}");
                    }
                    pages.release_stale(seq, to);
                    pos = to;
                }
            }
            (0..3).for_each(|seq| assert_eq!(pages.cut_back(seq, 0), 0));
            assert!(pages.is_whole());
        }
    }

    /// Sequences that decode together at every distance from the end of a page, with prompts in the same
    /// steps.
    #[test]
    fn they_suffice_for_several_sequences_in_one_step() {
        for (window, rows) in [(1, 3), (64, 3), (65, 70), (128, 66), (130, 200)] {
            for apart in 0..70 {
                let mut pages = pages(window, 3, 900, rows);
                let mut at = [0, 0, 0];
                for (seq, pos) in [(0, 300), (1, 300 + apart)] {
                    while at[seq] < pos {
                        let to = (at[seq] + rows).min(pos);
                        assert!(pages.grow(seq as u32, to));
                        pages.release_stale(seq as u32, to);
                        at[seq] = to;
                    }
                }
                for _ in 0..140 {
                    let step = [at[0] + 1, at[1] + 1, (at[2] + rows - 2).min(880)];
                    for (seq, to) in step.into_iter().enumerate() {
                        assert!(pages.grow(seq as u32, to), "{window}, {rows}, {apart}: {at:?} to {step:?}");
                    }
                    (0..3).for_each(|seq| pages.release_stale(seq as u32, step[seq]));
                    at = step;
                }
            }
        }
    }

    #[test]
    fn a_short_cut_loses_nothing_and_a_longer_one_all_that_cannot_go_on() {
        for window in WINDOWS {
            for n in 1..900 {
                let (mut pages, sliding) = (pages(window, 1, 900, 900), Sliding::new(window));
                assert!(pages.grow(0, n));
                pages.release_stale(0, n);
                assert!(pages.table().sliding(0).iter().flatten().count() <= sliding.held());
                let cut = n.saturating_sub(Sliding::CUT);
                assert_eq!(pages.cut_back(0, cut), cut);
                let to = cut.saturating_sub(200);
                let remain = pages.cut_back(0, to);
                // The rest is enough for the next row, or it is empty.
                assert!(remain == 0 || remain == to && pages.grow(0, to + 1) && sees(&pages, window, 0, to));
                let is_there = sliding.first(to) >= sliding.first_kept(n);
                assert!(!is_there || remain == to, "{window}, {n}: cut to {to} left {remain}");
            }
        }
    }

    #[test]
    fn a_branch_shares_a_window_or_nothing() {
        let mut pages = pages(100, 2, 640, 640);
        assert!(pages.grow(0, 640));
        pages.release_stale(0, 640);
        assert!(pages.can_fork(0, 600) && !pages.can_fork(0, 300));
        assert_eq!(pages.share(0, 1, 300), 0);
        assert_eq!(pages.share(0, 1, 600), 9 * PAGE);
        let there = |seq| pages.table().sliding(seq).iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(there(1), there(0)[..9]);
        assert_eq!(there(1).iter().filter(|there| **there).count(), 2);
        assert_eq!(pages.cut_back(1, 550), 0, "the page is shared, and the window before it is gone");
        assert!(pages.grow(1, 600));
        pages.cut_back(0, 0);
        pages.cut_back(1, 0);
        assert!(pages.is_whole());
    }

    #[test]
    fn a_saved_sequence_holds_what_the_next_row_sees() {
        let kinds = |n: usize, first: usize| -> Vec<PageKinds> {
            (0..n).map(|i| PageKinds { sliding: i >= first, ..PageKinds::default() }).collect()
        };
        for (first, holds) in [(0, false), (5, false), (6, true), (7, true), (8, false), (10, false)] {
            let mut pages = pages(100, 1, 640, 640);
            assert_eq!(pages.hold(0, 600, &kinds(10, first)), holds, "from page {first} on");
        }
        let mut hole = kinds(10, 6);
        hole[8].sliding = false;
        assert!(!pages(100, 1, 640, 640).hold(0, 600, &hole));
        let without = |kinds: &[PageKinds]| Pages::new(KvWindow::default(), 1, 10, 10, 0).hold(0, 600, kinds);
        assert!(without(&kinds(10, 10)) && !without(&kinds(10, 6)));
    }
}
