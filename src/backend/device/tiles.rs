//! Groups rows of a step that attention processes together.

use std::ops::Range;

use sterna_program::{PAGE, Row};

/// Grouping of rows of a step into tiles.
#[derive(Clone, Copy)]
pub struct Tiling {
    /// Most rows per tile.
    pub rows: usize,
    /// True if a tile ends where the window of a cache moves, so that all its rows read the same exact pages.
    pub by_window: bool,
}

/// The tiles of a step: neighbouring rows at neighbouring positions of one sequence.
pub fn tiles(rows: &[Row], tiling: Tiling) -> impl Iterator<Item = Range<usize>> {
    let runs = rows.chunk_by(move |a, b| {
        let moves = tiling.by_window && (b.pos as usize + 1).is_multiple_of(PAGE);
        a.seq == b.seq && a.pos + 1 == b.pos && !moves
    });
    let mut end = 0;
    runs.flat_map(move |run| run.chunks(tiling.rows)).map(move |tile| {
        end += tile.len();
        end - tile.len()..end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: usize) -> Tiling {
        Tiling { rows, by_window: false }
    }

    fn rows(seq: u32, positions: Range<u32>) -> Vec<Row> {
        positions.map(|pos| Row { token: 0, pos, seq, logits: false }).collect()
    }

    #[test]
    fn tiles_are_runs_of_one_sequence() {
        let step = [rows(0, 3..13), rows(1, 13..15), rows(1, 16..17), rows(0, 13..14)].concat();
        let tiles: Vec<_> = tiles(&step, of(4)).collect();
        assert_eq!(tiles, [0..4, 4..8, 8..10, 10..12, 12..13, 13..14]);
    }

    #[test]
    fn a_tile_ends_where_the_window_moves() {
        let lens = |tiling| tiles(&rows(0, 60..130), tiling).map(|tile| tile.len()).collect::<Vec<_>>();
        assert_eq!(lens(of(32)), [32, 32, 6]);
        // At positions 63 and 127 a page is full.
        assert_eq!(lens(Tiling { by_window: true, ..of(32) }), [3, 32, 32, 3]);
        let step = [rows(0, 13..14), rows(2, 60..66)].concat();
        let tiles: Vec<_> = tiles(&step, Tiling { rows: 4, by_window: true }).collect();
        assert_eq!(tiles, [0..1, 1..4, 4..7]);
    }
}
