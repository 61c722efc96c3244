//! Which KV pages belong to which sequence.

use crate::program::{PAGE, PageTable};

/// The page pool of one engine. It holds `n_ctx` positions for every slot, so a session that stays
/// within its context always finds its page.
#[derive(Debug)]
pub struct Pages {
    table: PageTable,
    free: Vec<u32>,
}

/// Pages that hold `positions` positions.
pub fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE)
}

impl Pages {
    /// A pool for `seqs` sequences of `pages_a_seq` pages each.
    pub fn new(seqs: usize, pages_a_seq: usize) -> Self {
        let total = (seqs * pages_a_seq) as u32;
        Self { table: PageTable::new(seqs, pages_a_seq), free: (0..total).rev().collect() }
    }

    /// The table that a step carries.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Makes `seq` hold exactly the pages of its first `positions` positions, taking or giving back.
    ///
    /// # Panics
    /// Where the pool is empty: a caller went beyond the context it asked for.
    pub fn resize(&mut self, seq: u32, positions: usize) {
        let want = pages_for(positions);
        let held = self.table.seq_mut(seq);
        while held.len() > want {
            self.free.extend(held.pop());
        }
        while held.len() < want {
            held.push(self.free.pop().expect("the pool holds n_ctx positions for every slot"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_never_share_a_page_and_give_back_what_they_took() {
        let mut pages = Pages::new(3, 2);
        assert_eq!(pages.free.len(), 6);
        pages.resize(0, 1);
        pages.resize(1, PAGE);
        pages.resize(1, PAGE + 1);
        pages.resize(2, 2 * PAGE);
        assert_eq!(pages.free.len(), 1);
        let mut held: Vec<u32> = (0..3).flat_map(|seq| pages.table().seq(seq).to_vec()).collect();
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), 5);
        let first = pages.table().seq(1)[0];
        pages.resize(1, PAGE);
        assert_eq!(pages.table().seq(1), [first]);
        for seq in 0..3 {
            pages.resize(seq, 0);
        }
        assert_eq!(pages.free.len(), 6);
    }
}
