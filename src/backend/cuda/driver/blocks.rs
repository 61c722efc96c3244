//! Pieces of memory in blocks of a driver's. A driver hands out whole pages of 2 MiB, and a mixture has
//! thousands of matrices of a few MB: by themselves they would take a third more than they have.

use super::Address;

/// What a driver hands out at least.
const PAGE_BYTES: u64 = 2 << 20;

/// What pieces are aligned to.
const ALIGN: u64 = 256;

/// Blocks are of pieces that are no larger together, nor than a share of all blocks before, or of a single
/// one.
const MOST_BYTES: u64 = 32 << 20;
const MOST_SHARE: u64 = 16;

/// Blocks with room behind the pieces that they have.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Where the room of each begins, and its bytes.
    rooms: Vec<(Address, u64)>,
    /// Bytes of all blocks.
    bytes: u64,
}

impl Blocks {
    /// A place for a piece, if a block has room for it: the one with the least.
    pub fn find(&mut self, bytes: u64) -> Option<Address> {
        let bytes = aligned(bytes);
        let rooms = self.rooms.iter_mut().filter(|(_, room)| *room >= bytes);
        let (at, room) = rooms.min_by_key(|(_, room)| *room)?;
        let place = *at;
        (*at, *room) = (*at + bytes, *room - bytes);
        self.rooms.retain(|(_, room)| *room >= ALIGN);
        Some(place)
    }

    /// Bytes of the block that is made for a piece that finds no place: as many pieces of its size as leave
    /// the least of its pages.
    pub fn block_bytes(&self, piece_bytes: u64) -> u64 {
        let piece = aligned(piece_bytes);
        let most = MOST_BYTES.min(self.bytes / MOST_SHARE) / piece;
        let block = |n: u64| {
            let bytes = n.saturating_mul(piece);
            bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes)
        };
        // By the share of a block that is left, the smallest block among equals.
        let left = |n: &u64| (block(*n) - n.saturating_mul(piece)) / (block(*n) / 1024).max(1);
        block((1..=most.max(1)).min_by_key(left).unwrap_or(1))
    }

    /// A block was made for a piece, which lies at its beginning.
    pub fn add(&mut self, at: Address, block_bytes: u64, piece_bytes: u64) {
        let used = aligned(piece_bytes);
        self.bytes = self.bytes.saturating_add(block_bytes);
        if block_bytes >= used + ALIGN {
            self.rooms.push((at + used, block_bytes - used));
        }
    }
}

/// Bytes of a piece with those up to the next one.
fn aligned(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is made for some pieces, and where each is.
    fn placed(pieces: &[u64]) -> (u64, Vec<(Address, u64)>) {
        let (mut blocks, mut made, mut places) = (Blocks::default(), 0, Vec::new());
        for &bytes in pieces {
            let at = blocks.find(bytes).unwrap_or_else(|| {
                let block = blocks.block_bytes(bytes);
                // Blocks lie apart.
                let at = 1000 * MIB + 2 * made;
                blocks.add(at, block, bytes);
                made += block;
                at
            });
            places.push((at, bytes));
        }
        (made, places)
    }

    #[test]
    fn pieces_lie_side_by_side_and_aligned() {
        let pieces = [5, 3 * MIB, 300, 40 * MIB + 1, 0, 7 * MIB, 257, 3 * MIB, 100 * MIB, MIB];
        let (made, mut places) = placed(&pieces);
        assert!(places.iter().all(|(at, _)| at % ALIGN == 0));
        places.sort_unstable();
        for pair in places.windows(2) {
            assert!(pair[0].0 + pair[0].1.max(1) <= pair[1].0, "{pair:?}");
        }
        assert!(made.is_multiple_of(PAGE_BYTES));
    }

    /// The experts of GPT-OSS 20B: 2,304 matrices of 2880 x 2880 at 4.5 bits. By themselves they would take 6
    /// MiB each.
    #[test]
    fn matrices_of_experts_take_hardly_more_than_they_have() {
        let pieces = [&[1 << 29][..], &[2880 * 2880 * 9 / 16; 2304]].concat();
        let asked: u64 = pieces.iter().sum();
        let (made, _) = placed(&pieces);
        assert!(made - asked < asked / 50, "{made} bytes for {asked}");
        let alone: u64 = pieces.iter().map(|bytes| bytes.next_multiple_of(PAGE_BYTES)).sum();
        assert!(alone - asked > asked / 4, "there is nothing to gain");
    }

    /// What few pieces of a size leave is a small part of all.
    #[test]
    fn small_models_have_small_blocks() {
        let pieces = [[MIB + 1000; 12], [3 * MIB / 2; 12]].concat();
        let (made, _) = placed(&pieces);
        assert!(made <= 24 * PAGE_BYTES, "{made}");
    }

    #[test]
    fn large_pieces_have_blocks_of_their_own_and_small_ones_the_rest_of_a_page() {
        assert_eq!(Blocks::default().block_bytes(u64::MAX - 5), u64::MAX);
        let (made, places) = placed(&[33 * MIB, MIB / 2]);
        assert_eq!(made, 34 * MIB);
        assert_eq!(places[1].0, places[0].0 + 33 * MIB);
    }
}
