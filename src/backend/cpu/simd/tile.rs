//! A rectangle of a matrix, which a kernel writes.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// A rectangle of a matrix, the grid; one task owns it.
pub struct Tile<'a, T> {
    data: *mut T,
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Tile<'_, T> {
    /// The rectangle `rows` x `cols` of the grid at `data`, whose rows are `stride` elements apart.
    ///
    /// # Safety
    /// The rectangle is within memory that the caller has borrowed mutably for the lifetime of the tile, and
    /// nothing else accesses its elements during that time.
    pub unsafe fn new(data: *mut T, stride: usize, rows: Range<usize>, cols: Range<usize>) -> Self {
        Self { data, stride, rows, cols, borrow: PhantomData }
    }

    /// Rows of the grid that the tile covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the grid that the tile covers.
    pub fn cols(&self) -> Range<usize> {
        self.cols.clone()
    }

    /// The tile's part of the grid's columns `cols`.
    ///
    /// # Panics
    /// If the tile does not cover those columns.
    pub fn columns(&mut self, cols: Range<usize>) -> Tile<'_, T> {
        assert!(self.cols.start <= cols.start && cols.start <= cols.end && cols.end <= self.cols.end);
        Tile { data: self.data, stride: self.stride, rows: self.rows.clone(), cols, borrow: PhantomData }
    }

    /// The tile's part of row `row` of the grid, `[cols().len()]`.
    ///
    /// # Panics
    /// If the tile does not cover that row.
    #[inline]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} of a tile of rows {:?}", self.rows);
        // SAFETY: within the grid, since the tile is; no other tile has these elements, and this one is
        // borrowed.
        unsafe {
            let start = self.data.add(row * self.stride + self.cols.start);
            std::slice::from_raw_parts_mut(start, self.cols.len())
        }
    }
}
