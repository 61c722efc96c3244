//! Small allocations inside larger blocks. A driver allocates whole pages of 2 MiB, and a mixture of experts
//! has thousands of matrices of a few MB: allocated one by one they would take a third more memory.

use super::Address;

/// Granularity of a driver's allocations.
const PAGE_BYTES: u64 = 2 << 20;

/// Alignment of pieces.
const ALIGN: u64 = 256;

/// Maximum size of a block for several pieces, and the maximum share (1 / 16) of all earlier blocks. A single
/// piece may exceed both.
const MAX_BYTES: u64 = 32 << 20;
const MAX_SHARE: u64 = 16;

/// Blocks with free space after their pieces.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Address and bytes of the free space of each block.
    rooms: Vec<(Address, u64)>,
    /// Bytes of all blocks.
    bytes: u64,
}

impl Blocks {
    /// An address for a piece, if a block has room for it. Takes the block with the least free space.
    pub fn find(&mut self, bytes: u64) -> Option<Address> {
        let bytes = aligned(bytes);
        let rooms = self.rooms.iter_mut().filter(|(_, room)| *room >= bytes);
        let (at, room) = rooms.min_by_key(|(_, room)| *room)?;
        let place = *at;
        (*at, *room) = (*at + bytes, *room - bytes);
        self.rooms.retain(|(_, room)| *room >= ALIGN);
        Some(place)
    }

    /// Bytes of a new block for a piece that fits into none: room for as many pieces of its size as waste the
    /// least of its pages.
    pub fn block_bytes(&self, piece_bytes: u64) -> u64 {
        let piece = aligned(piece_bytes);
        let most = MAX_BYTES.min(self.bytes / MAX_SHARE) / piece;
        let block = |n: u64| {
            let bytes = n.saturating_mul(piece);
            bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes)
        };
        // By the wasted share of a block; the smallest block if several are equal.
        let left = |n: &u64| (block(*n) - n.saturating_mul(piece)) / (block(*n) / 1024).max(1);
        block((1..=most.max(1)).min_by_key(left).unwrap_or(1))
    }

    /// Adds a block that was allocated for a piece, which is at its start.
    pub fn add(&mut self, at: Address, block_bytes: u64, piece_bytes: u64) {
        let used = aligned(piece_bytes);
        self.bytes = self.bytes.saturating_add(block_bytes);
        if block_bytes >= used + ALIGN {
            self.rooms.push((at + used, block_bytes - used));
        }
    }
}

/// Bytes of a piece, padded to the next one.
fn aligned(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Bytes allocated for some pieces, and the address of each.
    fn placed(pieces: &[u64]) -> (u64, Vec<(Address, u64)>) {
        let (mut blocks, mut made, mut places) = (Blocks::default(), 0, Vec::new());
        for &bytes in pieces {
            let at = blocks.find(bytes).unwrap_or_else(|| {
                let block = blocks.block_bytes(bytes);
                // Blocks are not adjacent.
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

    /// The experts of GPT-OSS 20B: 2,304 matrices of 2880 x 2880 at 4.5 bits. Allocated one by one they would
    /// take 6 MiB each.
    #[test]
    fn matrices_of_experts_take_hardly_more_than_they_have() {
        let pieces = [&[1 << 29][..], &[2880 * 2880 * 9 / 16; 2304]].concat();
        let asked: u64 = pieces.iter().sum();
        let (made, _) = placed(&pieces);
        assert!(made - asked < asked / 50, "{made} bytes for {asked}");
        let alone: u64 = pieces.iter().map(|bytes| bytes.next_multiple_of(PAGE_BYTES)).sum();
        assert!(alone - asked > asked / 4, "there is nothing to gain");
    }

    /// The space wasted by a few pieces of each size is a small part of the total.
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
