//! Pages of one kind, and their reference counts.

#[derive(Debug)]
pub struct Pool {
    free: Vec<u32>,
    /// Reference count of each page: sequences and the prefix cache.
    holders: Vec<u32>,
}

impl Pool {
    /// A pool without pages.
    pub const EMPTY: Self = Self { free: Vec::new(), holders: Vec::new() };

    pub fn new(pages: usize) -> Self {
        Self { free: (0..pages as u32).rev().collect(), holders: vec![0; pages] }
    }

    /// Number of pages, free or not.
    pub fn n_pages(&self) -> usize {
        self.holders.len()
    }

    /// Number of free pages.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Allocates a page, with a reference count of 1.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        Some(self.share(page))
    }

    /// Increments the reference count.
    pub fn share(&mut self, page: u32) -> u32 {
        self.holders[page as usize] += 1;
        page
    }

    /// Decrements the reference count.
    pub fn give_back(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// Decrements the reference count of a page, if there is one.
    pub fn give_back_some(&mut self, page: Option<u32>) {
        page.into_iter().for_each(|page| self.give_back(page));
    }

    /// True if the reference count is above 1.
    pub fn is_shared(&self, page: u32) -> bool {
        self.holders[page as usize] > 1
    }
}
