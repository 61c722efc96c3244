//! Blocks of 1 to 5-bit weights with one scale.
//!
//! The 16 possible values of a block's low code bits are computed at once; the codes are looked up in them.
//! All arithmetic is exact, except for one addition of an offset: an f16 times an integer of a few bits.

use super::Form;
use crate::lanes::{Lanes, part, parts};

/// The values of 4 bits, and these minus 8 and minus 16.
pub(super) static FROM_0: [f32; 16] = from(0.0);
static FROM_MINUS_8: [f32; 16] = from(-8.0);
static FROM_MINUS_16: [f32; 16] = from(-16.0);

const fn from(first: f32) -> [f32; 16] {
    let (mut values, mut i) = ([first; 16], 1);
    while i < 16 {
        values[i] = values[i - 1] + 1.0;
        i += 1;
    }
    values
}

/// The values of 2 bits minus 1, repeated.
pub(super) static TERNARY: [f32; 16] =
    [-1.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0, 2.0];

/// The values of IQ4_NL and IQ4_XS.
pub(super) static UNEVEN: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the values of MXFP4's 4-bit floats.
static FLOATS: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// f16 scale, then 16 bytes of 4 bits: value = scale x (code - 8).
pub struct Q4_0;
/// f16 scale, f16 offset, then 16 bytes of 4 bits: value = scale x code + offset.
pub struct Q4_1;
/// f16 scale, the fifth bits of 32 codes, then 16 bytes of 4 bits: value = scale x (code - 16).
pub struct Q5_0;
/// f16 scale, f16 offset, the fifth bits, then 16 bytes of 4 bits: value = scale x code + offset.
pub struct Q5_1;
/// f16 scale, then 16 bytes of indices.
pub struct Iq4Nl;
/// Exponent, then 16 bytes of 4-bit floats.
pub struct Mxfp4;
/// Four 8-bit scales, then 8 bytes of 4-bit floats for each.
pub struct Nvfp4;
/// f16 scale, then `N` codes of 2 bits, four adjacent ones per byte: value = scale x (code - 1).
pub struct TwoBits<const N: usize>;
/// f16 scale, then 128 signs.
pub struct Q1_0;

impl Form for Q4_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let values = l.mul(splat_f16(l, part(block, 0)), l.load(&FROM_MINUS_8));
        nibbles(l, part(block, 2), values, &mut each);
    }
}

impl Form for Q4_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 20;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let (scale, offset) = (splat_f16(l, part(block, 0)), splat_f16(l, part(block, 2)));
        let values = l.fma(scale, l.load(&FROM_0), offset);
        nibbles(l, part(block, 4), values, &mut each);
    }
}

impl Form for Iq4Nl {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let values = l.mul(splat_f16(l, part(block, 0)), l.load(&UNEVEN));
        nibbles(l, part(block, 2), values, &mut each);
    }
}

impl Form for Mxfp4 {
    const BLOCK: usize = 32;
    const BYTES: usize = 17;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let half_scale = f32::from_bits(match block[0] {
            exponent @ 0..2 => 0x0020_0000 << exponent,
            exponent => (u32::from(exponent) - 1) << 23,
        });
        nibbles(l, part(block, 1), l.mul(l.splat(half_scale), l.load(&FLOATS)), &mut each);
    }
}

/// Half the values of NVFP4's scales: 4 bits of exponent, 3 of mantissa, no sign.
static HALF_SCALES: [f32; 256] = {
    let (mut scales, mut code) = ([0.0; 256], 0);
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        scales[code] = match (code, exponent) {
            (0x7f, _) => 0.0,
            (_, 0) => mantissa as f32 / 1024.0,
            _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
        };
        code += 1;
    }
    scales
};

impl Form for Nvfp4 {
    const BLOCK: usize = 64;
    const BYTES: usize = 36;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let (scales, codes): (&[u8; 4], &[[u8; 8]; 4]) = (part(block, 0), parts(block, 4));
        for group in 0..4 {
            let half_scale = l.splat(HALF_SCALES[usize::from(scales[group])]);
            let table = look_up_in(l, l.mul(half_scale, l.load(&FLOATS)));
            let codes = u64::from_le_bytes(codes[group]);
            let low = 0x0f0f_0f0f_0f0f_0f0f;
            let indices = [codes & low, codes >> 4 & low];
            each(16 * group, l.table4(bytemuck::cast_ref(&indices), 0, table));
        }
    }
}

/// Looks up 32 indices of 4 bits in 16 values: byte `b` of 16 has the indices of `b` and `16 + b`.
#[inline(always)]
fn nibbles<L: Lanes>(l: L, codes: &[u8; 16], values: L::Floats, each: &mut impl FnMut(usize, L::Floats)) {
    let table = look_up_in(l, values);
    each(0, l.table4(codes, 0, table));
    each(16, l.table4(codes, 1, table));
}

impl Form for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let scale = splat_f16(l, part(block, 0));
        let table = look_up_in(l, l.mul(scale, l.load(&FROM_MINUS_16)));
        let fifth = l.mul(scale, l.splat(16.0));
        each(0, l.add_where(part(block, 2), l.table4(part(block, 6), 0, table), fifth));
        each(16, l.add_where(part(block, 4), l.table4(part(block, 6), 1, table), fifth));
    }
}

impl Form for Q5_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 24;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let (scale, offset) = (splat_f16(l, part(block, 0)), splat_f16(l, part(block, 2)));
        let table = look_up_in(l, l.mul(scale, l.load(&FROM_0)));
        let fifth = l.mul(scale, l.splat(16.0));
        // The offset is added last, because nothing before it is rounded.
        let first = l.add_where(part(block, 4), l.table4(part(block, 8), 0, table), fifth);
        each(0, l.add(first, offset));
        let second = l.add_where(part(block, 6), l.table4(part(block, 8), 1, table), fifth);
        each(16, l.add(second, offset));
    }
}

impl<const N: usize> Form for TwoBits<N> {
    const BLOCK: usize = N;
    const BYTES: usize = 2 + N / 4;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let table = look_up_in(l, l.mul(splat_f16(l, part(block, 0)), l.load(&TERNARY)));
        let codes = block[2..].as_chunks().0;
        for i in 0..N / 16 {
            each(16 * i, l.table2(&codes[i], table));
        }
    }
}

impl Form for Q1_0 {
    const BLOCK: usize = 128;
    const BYTES: usize = 18;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        // A set bit flips the sign.
        let table = look_up_in(l, l.mul(splat_f16(l, part(block, 0)), l.splat(-1.0)));
        let signs: &[[u8; 2]; 8] = parts(block, 2);
        for i in 0..8 {
            each(16 * i, l.signed(&[0; 16], &signs[i], 0, table));
        }
    }
}

/// Broadcasts the f16 in two bytes.
#[inline(always)]
pub(super) fn splat_f16<L: Lanes>(l: L, bytes: &[u8; 2]) -> L::Floats {
    l.splat(l.f16_to_f32(u16::from_le_bytes(*bytes)))
}

/// Makes a look-up table of the values.
#[inline(always)]
pub(super) fn look_up_in<L: Lanes>(l: L, values: L::Floats) -> L::Table {
    let mut table = [0.0; 16];
    l.store(&mut table, values);
    l.table(&table)
}
