//! Pages of one kind, and the number of holders of each.

/// Pages of one kind.
#[derive(Debug)]
pub struct Pool {
    free: Vec<u32>,
    /// Number of holders of each page: sequences, and the prefix cache.
    holders: Vec<u32>,
}

impl Pool {
    /// A pool without pages.
    pub const EMPTY: Self = Self { free: Vec::new(), holders: Vec::new() };

    pub fn new(pages: usize) -> Self {
        Self { free: (0..pages as u32).rev().collect(), holders: vec![0; pages] }
    }

    /// Pages of the pool, free or not.
    pub fn n_pages(&self) -> usize {
        self.holders.len()
    }

    /// Pages without a holder.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// A free page, which has one holder from now on.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        Some(self.share(page))
    }

    /// One holder more.
    pub fn share(&mut self, page: u32) -> u32 {
        self.holders[page as usize] += 1;
        page
    }

    /// One holder less.
    pub fn give_back(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// One holder less of a page, if there is one.
    pub fn give_back_some(&mut self, page: Option<u32>) {
        page.into_iter().for_each(|page| self.give_back(page));
    }

    /// True if it has several holders.
    pub fn is_shared(&self, page: u32) -> bool {
        self.holders[page as usize] > 1
    }
}
