//! The steps that attention processes in tiles of rows.

use crate::device::tiles::{Tiling, tiles};
use sterna_program::Row;

/// Rows of a step from which tensor cores pay off.
pub const MMA_LEAST: usize = 16;

/// Average rows per tile from which tiles pay off despite the products of their empty rows.
const TILE_LEAST: usize = 4;

/// True if a step runs in tiles on tensor cores.
pub fn is_tiled(rows: &[Row], tiling: Tiling) -> bool {
    rows.len() >= MMA_LEAST && tiles(rows, tiling).count() <= most_tiles(rows.len())
}

/// Maximum number of tiles in such a step.
pub fn most_tiles(rows: usize) -> usize {
    rows / TILE_LEAST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: usize) -> Tiling {
        Tiling { rows, by_window: false }
    }

    fn rows(seq: u32, positions: std::ops::Range<u32>) -> Vec<Row> {
        positions.map(|pos| Row { token: 0, pos, seq, logits: false }).collect()
    }

    #[test]
    fn a_prompt_goes_to_tensor_cores_and_decodes_side_by_side_do_not() {
        assert!(is_tiled(&rows(0, 5..21), of(16)) && !is_tiled(&rows(0, 5..20), of(16)));
        let side_by_side: Vec<Row> = (0..64).flat_map(|seq| rows(seq, 9..10)).collect();
        assert!(!is_tiled(&side_by_side, of(16)));
        // Four rows per tile are enough.
        let fours = |n| (0..n).flat_map(|seq| rows(seq, 9..13)).collect::<Vec<_>>();
        assert!(is_tiled(&fours(5), of(16)));
        assert!(!is_tiled(&[fours(5), rows(9, 0..1)].concat(), of(16)));
    }
}
