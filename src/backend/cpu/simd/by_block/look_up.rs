//! Types whose codes are indices into a table of 16 integers.

use super::super::lanes::{Lanes, part};
use super::codes::{Coded, bits, keep, sixteen};

/// The values of IQ4_NL and IQ4_XS.
static UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of MXFP4's 4-bit floats, plus 12.
static FLOATS: [i8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

pub struct Iq4Nl;
pub struct Iq4Xs;
pub struct Mxfp4;

impl Coded for Iq4Nl {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = None;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        l.signed_codes(l.look_up(l.nibbles(part(block, 2), part(next, 2)), &UNEVEN))
    }
}

impl Coded for Mxfp4 {
    const BLOCK: usize = 32;
    const BYTES: usize = 17;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(12);

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        l.look_up(l.nibbles(part(block, 1), part(next, 1)), &FLOATS)
    }

    #[inline(always)]
    fn head(blocks: &[u8], head: &mut [[u8; 16]]) {
        keep::<Self, 1>(blocks, 0, head);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], _: &mut [f32]) {
        /// 2^-127, which is subnormal.
        const LEAST: u32 = 1 << 22;
        let (scales, words) = (scales.as_chunks_mut::<16>().0, l.quads(sixteen(heads, 0)));
        for group in 0..8 {
            let exponents = l.and(l.shift_right(words[group / 4], group % 4 * 8), l.splat_int(255));
            let bits = l.max_magnitude(l.shift_left(exponents, 23), l.splat(f32::from_bits(LEAST)));
            l.store_ints(bytemuck::cast_mut(&mut scales[group]), bits);
            // Values are twice too large.
            let twice = l.load(&scales[group]);
            l.store(&mut scales[group], l.mul(twice, l.splat(0.5)));
        }
    }
}

impl Coded for Iq4Xs {
    const BLOCK: usize = 256;
    const BYTES: usize = 136;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = None;
    const HEAD: usize = 16;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let groups: &[u8; 32] = part(block, 8 + 32 * STEP);
        l.signed_codes(l.look_up(l.nibbles(part(groups, 0), part(groups, 16)), &UNEVEN))
    }

    #[inline(always)]
    fn head(block: &[u8], head: &mut [[u8; 16]]) {
        head[0] = *part(block, 0);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], _: &mut [f32]) {
        let scales = scales.as_chunks_mut::<16>().0;
        // The f16 and two high bits of eight factors; then four low bits of each.
        let [first, low, ..] = l.quads(sixteen(heads, 0));
        let scale = l.halves_to_floats(first);
        for group in 0..8 {
            let factor = l.fma(bits(l, first, 16 + 2 * group, 3), l.splat(16.0), l.splat(-32.0));
            let factor = l.add(factor, bits(l, low, 4 * group, 15));
            l.store(&mut scales[group], l.mul(scale, factor));
        }
    }
}
