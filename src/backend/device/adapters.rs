//! The tables of a step's LoRA adapters: the adapters of each sequence, and rows in tiles.
//!
//! The rows of a tile have the same adapters, so that a block of threads reads each matrix once for all of
//! them. What a row gives does not depend on the other rows of its tile.

use super::step::Image;
use crate::BackendError;
use sterna_program::{AdapterScale, Program, RowsOf, Step};

/// Most rows of a tile.
pub const TILE: usize = 8;

/// Words of a tile: its number of rows, and the rows.
const TILE_WORDS: usize = 1 + TILE;

/// Offsets of the tables, in 32-bit words. They are empty for a program without adapters.
#[derive(Clone, Copy)]
pub struct AdaptersAt {
    /// Numbers of tiles, in the order of `tiles`.
    pub counts: usize,
    /// Per sequence, [`seq_words`]: its number of adapters, then id and scale of each, ascending.
    pub seqs: usize,
    /// Tiles over the rows of the step, and over those that need logits.
    pub tiles: [usize; 2],
    end: usize,
    n_adapters: usize,
}

/// Number of tiles of a step, by [`RowsOf`]; 0 if no row uses an adapter.
#[derive(Clone, Copy, Default)]
pub struct Tiles {
    pub of_step: usize,
    pub of_outputs: usize,
}

impl Tiles {
    pub fn of(&self, rows: RowsOf) -> usize {
        match rows {
            RowsOf::Step => self.of_step,
            RowsOf::Outputs => self.of_outputs,
        }
    }

    /// True if rows of the step use adapters.
    pub fn are_any(&self) -> bool {
        self.of_step > 0
    }
}

/// Words per sequence.
pub fn seq_words(n_adapters: usize) -> usize {
    1 + 2 * n_adapters
}

impl AdaptersAt {
    /// Tables from word `at` on.
    pub fn new(at: usize, p: &Program) -> Self {
        let n_adapters = p.adapters.len();
        let [counts, seqs, rows, outputs] = match n_adapters {
            0 => [0; 4],
            _ => [2, p.limits.seqs, p.limits.rows, p.limits.outputs],
        };
        let of_step = at + counts + seqs * seq_words(n_adapters);
        let of_outputs = of_step + rows * TILE_WORDS;
        let end = of_outputs + outputs * TILE_WORDS;
        Self { counts: at, seqs: at + counts, tiles: [of_step, of_outputs], end, n_adapters }
    }

    /// End of the tables.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Writes the tables of a step if its rows use adapters, and returns its tiles.
    pub fn bring(
        &self,
        image: &mut Image,
        step: &Step<'_>,
        mut write: impl FnMut(usize, &[u32]) -> Result<(), BackendError>,
    ) -> Result<Tiles, BackendError> {
        let uses = |seq: u32| step.pages.adapters(seq).iter().any(|of| of.scale != 0.0);
        if self.n_adapters == 0 || !step.rows.iter().any(|row| uses(row.seq)) {
            return Ok(Tiles::default());
        }
        for (i, row) in step.rows.iter().enumerate() {
            if i > 0 && step.rows[i - 1].seq == row.seq {
                continue;
            }
            let at = self.seqs + row.seq as usize * seq_words(self.n_adapters);
            let used = used(step, row.seq);
            image.put(at, &(used.len() as u32));
            for (j, AdapterScale { adapter, scale }) in used.iter().enumerate() {
                image.put(at + 1 + 2 * j, &[*adapter, scale.to_bits()]);
            }
            image.bring(at..at + 1 + 2 * used.len(), &mut write)?;
        }
        let of_step = step.rows.iter().map(|row| row.seq).enumerate();
        let of_outputs = step.rows.iter().filter(|row| row.logits).map(|row| row.seq).enumerate();
        let [at_step, at_outputs] = self.tiles;
        let tiles = Tiles {
            of_step: bring_tiles(at_step, image, step, of_step, &mut write)?,
            of_outputs: bring_tiles(at_outputs, image, step, of_outputs, &mut write)?,
        };
        image.put(self.counts, &[tiles.of_step as u32, tiles.of_outputs as u32]);
        image.bring(self.counts..self.counts + 2, write)?;
        Ok(tiles)
    }
}

/// The adapters that a sequence uses, ascending, once each.
fn used(step: &Step<'_>, seq: u32) -> Vec<AdapterScale> {
    let mut used: Vec<AdapterScale> = Vec::new();
    for of in step.pages.adapters(seq) {
        match used.iter_mut().find(|other| other.adapter == of.adapter) {
            Some(other) => other.scale += of.scale,
            None => used.push(*of),
        }
    }
    used.retain(|of| of.scale != 0.0);
    used.sort_unstable_by_key(|of| of.adapter);
    used
}

/// Writes tiles of rows, given with their sequences, and returns their number.
fn bring_tiles(
    at: usize,
    image: &mut Image,
    step: &Step<'_>,
    rows: impl Iterator<Item = (usize, u32)>,
    write: &mut impl FnMut(usize, &[u32]) -> Result<(), BackendError>,
) -> Result<usize, BackendError> {
    // Rows by the adapters that they use.
    let mut groups: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
    let mut last = None;
    for (row, seq) in rows {
        let group = match last {
            Some((of, group)) if of == seq => group,
            _ => {
                let ids: Vec<u32> = used(step, seq).iter().map(|of| of.adapter).collect();
                let known = groups.iter().position(|(of, _)| *of == ids);
                known.unwrap_or_else(|| {
                    groups.push((ids, Vec::new()));
                    groups.len() - 1
                })
            }
        };
        last = Some((seq, group));
        groups[group].1.push(row as u32);
    }
    groups.retain(|(ids, _)| !ids.is_empty());
    let mut n = 0;
    for tile in groups.iter().flat_map(|(_, rows)| rows.chunks(TILE)) {
        let to = at + n * TILE_WORDS;
        image.put(to, &(tile.len() as u32));
        tile.iter().enumerate().for_each(|(i, row)| image.put(to + 1 + i, row));
        n += 1;
    }
    image.bring(at..at + n * TILE_WORDS, write)?;
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_program::{Limits, PageTable, Row};

    #[test]
    fn rows_with_the_same_adapters_are_in_tiles() {
        let limits =
            Limits { rows: 16, outputs: 16, seqs: 4, pages: 4, exact_pages: 0, sliding_pages: 0, states: 0 };
        let mut p = Program::new("adapted", limits);
        assert_eq!(AdaptersAt::new(5, &p).end(), 5);
        p.adapters = vec!["one".to_owned(), "two".to_owned()];
        let at = AdaptersAt::new(5, &p);
        let mut pages = PageTable::new(4, 1);
        let of = |&(adapter, scale): &(u32, f32)| AdapterScale { adapter, scale };
        // The order of a list, and adapters of scale 0, do not matter.
        let lists: [&[(u32, f32)]; 4] =
            [&[(1, 2.0), (0, 0.5)], &[], &[(0, 1.0), (1, 1.0)], &[(1, 3.0), (0, 0.0)]];
        for (seq, uses) in lists.iter().enumerate() {
            pages.set_adapters(seq as u32, uses.iter().map(of).collect());
        }
        let row = |seq: u32| Row { token: 0, pos: 0, seq, logits: seq != 2 };
        let seqs = [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0];
        let rows: Vec<Row> = seqs.map(row).to_vec();
        let mut device = vec![0; at.end()];
        let mut image = Image::new(at.end());
        let mut bring = |rows: &[Row]| {
            let step = Step { rows, pages: &pages, sampling: &[], changes: &[] };
            let tiles = at.bring(&mut image, &step, |at, words| {
                device[at..at + words.len()].copy_from_slice(words);
                Ok(())
            });
            (tiles.unwrap(), device.clone())
        };
        let (tiles, _) = bring(&rows[1..2]);
        assert!(!tiles.are_any());
        let (tiles, device) = bring(&rows);
        // 10 rows of two adapters are two tiles, the row of one adapter is another.
        assert_eq!((tiles.of_step, tiles.of_outputs), (3, 3));
        let words = |from: usize, n: usize| &device[from..from + n];
        let bits = |scale: f32| scale.to_bits();
        assert_eq!(words(at.seqs, 5), [2, 0, bits(0.5), 1, bits(2.0)]);
        assert_eq!(words(at.seqs + 5, 1), [0]);
        assert_eq!(words(at.seqs + 15, 3), [1, 1, bits(3.0)]);
        let [of_step, of_outputs] = at.tiles;
        assert_eq!(words(of_step, 27)[..9], [8, 0, 2, 4, 5, 6, 7, 8, 9]);
        assert_eq!(words(of_step, 27)[9..12], [2, 10, 11]);
        assert_eq!(words(of_step, 27)[18..20], [1, 3]);
        // Output rows are numbered among those with logits.
        assert_eq!(words(of_outputs, 27)[..9], [8, 0, 3, 4, 5, 6, 7, 8, 9]);
    }
}
