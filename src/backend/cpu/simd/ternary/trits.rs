//! Product of TQ1_0 weights and int8 activations: some rows at a time are repacked as TQ2_0, within the
//! cache, and multiplied as TQ2_0. Unpacking takes a dozen byte operations per five weights.

use super::{Form, Tq2_0};
use crate::Tile;
use crate::lanes::{Kernel, Lanes};
use crate::{I8Rows, MANY_ROWS, Product, STRIP, Scratch, UNIT, ternary};

/// Bytes of a block: 48 of five trits, 4 of four, f16 scale.
const BYTES: usize = 54;
const FIVE: usize = 48;
const FOUR: usize = 52;

/// Multiplies a tile: unpacks with set `L` and multiplies with set `T`.
///
/// # Panics
/// If the slices do not match.
pub fn tq1_0<L: Lanes, T: Lanes>(
    product: &Product<'_>,
    acts: I8Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    let (cols, outputs) = (product.cols, tile.cols());
    assert!(cols.is_multiple_of(UNIT), "{cols} inputs");
    assert_eq!(product.row_bytes, cols / UNIT * BYTES, "bytes of {cols} weights");
    assert_eq!(product.weights.len(), outputs.len() * product.row_bytes, "bytes of the rows");
    let row_bytes = cols / UNIT * Tq2_0::UNIT_BYTES;
    // With many activation rows a longer strip pays; with few, the unpacked rows should stay in L1.
    let strip = if tile.rows().len() < MANY_ROWS { 16 } else { STRIP };
    let mut unpacked = std::mem::take(&mut scratch.unpacked);
    for first in outputs.clone().step_by(strip) {
        let some = first..(first + strip).min(outputs.end);
        let place = some.start - outputs.start..some.end - outputs.start;
        let packed = &product.weights[place.start * product.row_bytes..place.end * product.row_bytes];
        let unpacked = &mut unpacked[..some.len() * row_bytes];
        L::vectorize(Unpack { packed, unpacked });
        let bias = product.bias.map(|bias| &bias[place]);
        let product = Product { weights: unpacked, row_bytes, bias, ..*product };
        ternary::<T, Tq2_0>(&product, acts, scratch, &mut tile.columns(some));
    }
    scratch.unpacked = unpacked;
}

/// Plain code that the compiler vectorises.
struct Unpack<'a> {
    packed: &'a [u8],
    unpacked: &'a mut [u8],
}

impl Kernel for Unpack<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let packed = self.packed.as_chunks::<BYTES>().0;
        for (packed, unpacked) in packed.iter().zip(self.unpacked.as_chunks_mut().0) {
            unpack(packed, unpacked);
        }
    }
}

/// Repacks a block of TQ1_0 as TQ2_0. A byte is a fraction of 256: a trit is the number of thirds in it, and
/// three times the remainder is the next fraction.
#[inline(always)]
fn unpack(packed: &[u8; BYTES], unpacked: &mut [u8; Tq2_0::UNIT_BYTES]) {
    let (mut fractions, mut codes) = ([0; FIVE], [0; 64]);
    fractions.copy_from_slice(&packed[..FIVE]);
    for trit in 0..5 {
        let mut trits = [0; FIVE];
        for i in 0..FIVE {
            trits[i] = thirds(fractions[i]);
            fractions[i] = fractions[i].wrapping_mul(3);
        }
        // 32 bytes have the weights 0 to 159, 16 bytes the weights from 160 on.
        for i in 0..32 {
            codes[trit / 4 * 32 + i] |= trits[i] << (trit % 4 * 2);
        }
        for i in 0..16 {
            codes[32 + trit % 2 * 16 + i] |= trits[32 + i] << (2 + trit / 2 * 2);
        }
    }
    // 4 bytes have the last 16 weights.
    let mut power = 1_u8;
    for trit in 0..4 {
        for i in 0..4 {
            codes[48 + 4 * trit + i] |= thirds(packed[FIVE + i].wrapping_mul(power)) << 6;
        }
        power = power.wrapping_mul(3);
    }
    unpacked[..64].copy_from_slice(&codes);
    unpacked[64..].copy_from_slice(&packed[FOUR..]);
}

#[inline(always)]
fn thirds(fraction: u8) -> u8 {
    u8::from(fraction > 85) + u8::from(fraction > 170)
}
