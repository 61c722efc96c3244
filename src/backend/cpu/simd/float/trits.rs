//! Ternary weights that are multiplied as floats.

use super::Form;
use super::blocks::{TERNARY, look_up_in, splat_f16};
use crate::lanes::{Lanes, part, parts};

/// 64 bytes of 2-bit codes, then an f16 scale.
pub struct Tq2_0;
/// 48 bytes of five trits and 4 of four, then an f16 scale.
pub struct Tq1_0;

impl Form for Tq2_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 66;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let table = look_up_in(l, l.mul(splat_f16(l, part(block, 64)), l.load(&TERNARY)));
        let codes: &[[u8; 32]; 2] = parts(block, 0);
        for half in 0..2 {
            let codes = &codes[half];
            two_bits::<L, 0>(l, codes, table, 128 * half, &mut each);
            two_bits::<L, 1>(l, codes, table, 128 * half + 32, &mut each);
            two_bits::<L, 2>(l, codes, table, 128 * half + 64, &mut each);
            two_bits::<L, 3>(l, codes, table, 128 * half + 96, &mut each);
        }
    }
}

/// Decodes 32 weights of TQ2_0, from `at` on: the codes at one bit position of 32 bytes.
#[inline(always)]
fn two_bits<L: Lanes, const PLACE: usize>(
    l: L,
    codes: &[u8; 32],
    table: L::Table,
    at: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    each(at, l.signed(part(codes, 0), &[0; 2], PLACE, table));
    each(at + 16, l.signed(part(codes, 16), &[0; 2], PLACE, table));
}

impl Form for Tq1_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 54;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let scale = splat_f16(l, part(block, 52));
        let mut fractions = [l.load_u8(part(block, 0)), l.load_u8(part(block, 16))];
        for trit in 0..5 {
            each(32 * trit, next(l, &mut fractions[0], scale));
            each(32 * trit + 16, next(l, &mut fractions[1], scale));
        }
        let mut fractions = l.load_u8(part(block, 32));
        for trit in 0..5 {
            each(160 + 16 * trit, next(l, &mut fractions, scale));
        }
        let mut last = [0; 16];
        let four = *part::<4>(block, 48);
        for (i, last) in last.iter_mut().enumerate() {
            *last = four[i % 4].wrapping_mul(THREE_TO[i / 4]);
        }
        each(240, next(l, &mut l.load_u8(&last), scale));
    }
}

/// 24 bytes of five trits and 2 of four, then an f16 scale.
pub struct Ptq1_0;

impl Form for Ptq1_0 {
    const BLOCK: usize = 128;
    const BYTES: usize = 28;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let scale = splat_f16(l, part(block, 26));
        let mut fractions = l.load_u8(part(block, 0));
        for trit in 0..5 {
            each(16 * trit, next(l, &mut fractions, scale));
        }
        // Two trits of 8 bytes are 16 weights, and so are the fifth trits of these together with the four
        // trits of 2 bytes.
        let (eight, two) = (*part::<8>(block, 16), *part::<2>(block, 24));
        let mut rest = [[0; 16]; 3];
        for i in 0..8 {
            for trit in 0..5 {
                rest[trit / 2][trit % 2 * 8 + i] = eight[i].wrapping_mul(THREE_TO[trit]);
            }
            rest[2][8 + i] = two[i % 2].wrapping_mul(THREE_TO[i / 2]);
        }
        for i in 0..3 {
            each(80 + 16 * i, next(l, &mut l.load_u8(&rest[i]), scale));
        }
    }
}

/// Powers of 3.
const THREE_TO: [u8; 5] = [1, 3, 9, 27, 81];

/// Removes the next trit from each of 16 bytes, and returns the weights. A byte is a fraction of 256: three
/// times its value has the trit above the byte.
#[inline(always)]
fn next<L: Lanes>(l: L, fractions: &mut L::Ints, scale: L::Floats) -> L::Floats {
    let tripled = l.add_ints(*fractions, l.shift_left(*fractions, 1));
    *fractions = l.and(tripled, l.splat_int(255));
    l.mul(scale, l.add(l.to_floats(l.shift_right(tripled, 8)), l.splat(-1.0)))
}
