//! Product of ternary weights with one scale per row, ik_llama.cpp's types, and int8 activations: some rows
//! at a time are repacked in the order of I2_S, within the cache, and multiplied as I2_S; their scales are
//! applied last.

use half::f16;

use super::I2S;
use crate::Tile;
use crate::lanes::{Kernel, Lanes};
use crate::{I8Rows, MANY_ROWS, Product, STRIP, Scratch, UNIT, ternary};

/// Storage format of some rows, each in blocks of 64 weights.
pub trait Packed {
    /// Number of interleaved rows.
    const ROWS: usize = 1;
    /// Bytes of the scales of those rows.
    const HEAD: usize;
    /// Bytes of one block of all of those rows.
    const BYTES: usize;

    /// Scale of a row.
    fn scale(heads: &[u8], row: usize) -> f32;

    /// Block of a row in IQ2_BN's order: byte `b` has the codes `b`, `16 + b`, `32 + b` and `48 + b`, low
    /// bits first.
    fn block(blocks: &[u8], row: usize) -> [u8; 16];
}

/// f32 scale, then blocks in this order.
pub struct Iq2Bn;
/// Four rows of IQ2_BN, interleaved per block in words of each row.
pub struct Iq2BnR4;
/// f16 scale, then five weights per byte.
pub struct Iq1Bn;

impl Packed for Iq2Bn {
    const HEAD: usize = 4;
    const BYTES: usize = 16;

    #[inline(always)]
    fn scale(heads: &[u8], _: usize) -> f32 {
        f32::from_le_bytes([heads[0], heads[1], heads[2], heads[3]])
    }

    #[inline(always)]
    fn block(blocks: &[u8], _: usize) -> [u8; 16] {
        *blocks.first_chunk().expect("16 bytes")
    }
}

impl Packed for Iq2BnR4 {
    const ROWS: usize = 4;
    const HEAD: usize = 16;
    const BYTES: usize = 64;

    #[inline(always)]
    fn scale(heads: &[u8], row: usize) -> f32 {
        Iq2Bn::scale(&heads[4 * row..], 0)
    }

    #[inline(always)]
    fn block(blocks: &[u8], row: usize) -> [u8; 16] {
        // Word `l` of a row has four columns and those 4, 8 and 12 after them, of the `l`-th 16 columns.
        let words = [0, 16, 32, 48].map(|l| {
            let word = &blocks[l + 4 * row..][..4];
            u32::from_le_bytes([word[0], word[1], word[2], word[3]])
        });
        let mut block = [0; 16];
        for (i, four) in block.chunks_exact_mut(4).enumerate() {
            let codes = words.map(|word| word >> (2 * i) & 0x0303_0303);
            let packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6;
            four.copy_from_slice(&packed.to_le_bytes());
        }
        block
    }
}

/// The five codes of a byte of IQ1_BN, two bits each, the first in the low bits.
static FIVE: [u16; 256] = {
    let (mut five, mut byte) = ([0; 256], 0);
    while byte < 256 {
        // The remaining fraction of 256 after each base 3 digit; the first digit is the last weight.
        let (mut fraction, mut at) = (byte, 5);
        while at > 0 {
            at -= 1;
            five[byte] |= ((fraction * 3 / 256) << (2 * at)) as u16;
            fraction = fraction * 3 % 256;
        }
        byte += 1;
    }
    five
};

impl Packed for Iq1Bn {
    const HEAD: usize = 2;
    const BYTES: usize = 13;

    #[inline(always)]
    fn scale(heads: &[u8], _: usize) -> f32 {
        f16::from_le_bytes([heads[0], heads[1]]).to_f32()
    }

    #[inline(always)]
    fn block(blocks: &[u8], _: usize) -> [u8; 16] {
        let bytes: &[u8; 13] = blocks.first_chunk().expect("13 bytes");
        let five = |at: usize| u32::from(FIVE[usize::from(bytes[at])]);
        // 16 adjacent codes per word; the last byte has the sixteenth code of each word.
        let mut words = [0; 4];
        for (l, word) in words.iter_mut().enumerate() {
            let sixteenth = five(12) >> (2 * l) & 3;
            *word = five(3 * l) | five(3 * l + 1) << 10 | five(3 * l + 2) << 20 | sixteenth << 30;
        }
        let mut block = [0; 16];
        for (at, byte) in block.iter_mut().enumerate() {
            let codes = words.map(|word| word >> (2 * at) & 3);
            *byte = (codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6) as u8;
        }
        block
    }
}

/// Multiplies a tile: unpacks with set `L` and multiplies with set `T`.
///
/// # Panics
/// If the slices do not match.
pub fn multiply<L: Lanes, T: Lanes, P: Packed>(
    product: &Product<'_>,
    acts: I8Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    let outputs = tile.cols();
    let (blocks, of_rows) = (product.cols / 64, P::ROWS * product.row_bytes);
    assert!(product.cols.is_multiple_of(64) && acts.cols == product.cols, "{} inputs", product.cols);
    assert!(outputs.len().is_multiple_of(P::ROWS), "{} rows", outputs.len());
    assert_eq!(of_rows, P::HEAD + blocks * P::BYTES, "bytes of {} weights", product.cols);
    assert_eq!(product.weights.len(), outputs.len() * product.row_bytes, "bytes of the rows");
    // A multiple of half a unit; the added codes are 0, and their activations are padding.
    let cols = product.cols.next_multiple_of(UNIT / 2);
    let row_bytes = cols / 4;
    let strip = if tile.rows().len() < MANY_ROWS { 16 } else { STRIP };
    let mut unpacked = std::mem::take(&mut scratch.unpacked);
    for first in outputs.clone().step_by(strip) {
        let some = first..(first + strip).min(outputs.end);
        let place = some.start - outputs.start..some.end - outputs.start;
        let packed = &product.weights[place.start * product.row_bytes..place.end * product.row_bytes];
        let unpacked = &mut unpacked[..some.len() * row_bytes];
        let mut scales = [0.0; STRIP];
        for (packed, (unpacked, scales)) in packed
            .chunks_exact(of_rows)
            .zip(unpacked.chunks_exact_mut(P::ROWS * row_bytes).zip(scales.chunks_exact_mut(P::ROWS)))
        {
            let (heads, blocks) = packed.split_at(P::HEAD);
            for (row, (unpacked, scale)) in unpacked.chunks_exact_mut(row_bytes).zip(scales).enumerate() {
                *scale = P::scale(heads, row);
                L::vectorize(Unpack::<P> { blocks, row, unpacked, form: std::marker::PhantomData });
            }
        }
        let (bias, row_scales) = (product.bias.map(|bias| &bias[place]), Some(&scales));
        let product = Product { weights: unpacked, row_bytes, cols, bias, row_scales, ..*product };
        let acts = I8Rows { cols, ..acts };
        ternary::<T, I2S>(&product, acts, scratch, &mut tile.columns(some));
    }
    scratch.unpacked = unpacked;
}

/// Plain code that the compiler vectorises.
struct Unpack<'a, P> {
    blocks: &'a [u8],
    row: usize,
    unpacked: &'a mut [u8],
    form: std::marker::PhantomData<P>,
}

impl<P: Packed> Kernel for Unpack<'_, P> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let pairs = self.blocks.chunks(2 * P::BYTES);
        for (blocks, unpacked) in pairs.zip(self.unpacked.as_chunks_mut::<32>().0) {
            let (first, second) = blocks.split_at(P::BYTES);
            let first = P::block(first, self.row);
            let second = if second.is_empty() { [0; 16] } else { P::block(second, self.row) };
            // Groups of 32 weights: the first block has two, in its 16-weight quarters 0 and 1, and 2 and 3;
            // so has the second.
            for i in 0..16 {
                let (a, b) = (first[i], second[i]);
                unpacked[i] = (a & 3) << 6 | a & 0x30 | (b & 3) << 2 | b >> 4 & 3;
                unpacked[16 + i] = (a & 0x0c) << 4 | a >> 2 & 0x30 | b & 0x0c | b >> 6;
            }
        }
    }
}
