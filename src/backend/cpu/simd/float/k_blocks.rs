//! Blocks of 256 weights in groups whose scales and minimums are small integers times an f16.
//!
//! Scale and minimum of a group are products of an f16 and an integer of up to 6 bits, and a code has at most
//! 5 bits (the values of IQ4_XS have 7): `scale x code` is exact, so a fused multiply-add gives the bits of
//! `scale x code - minimum`.

use super::Form;
use super::blocks::{FROM_0, UNEVEN, look_up_in, splat_f16};
use crate::lanes::{Lanes, part, parts};

/// Two f16 scales, 12 bytes of 6-bit scales and minimums, then 32 bytes for two groups of 32 weights.
pub struct Q4K;
/// As Q4_K, with 32 bytes of fifth bits before the low halves: bit `g` of each byte belongs to group `g`.
pub struct Q5K;

impl Form for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let groups = scales_and_mins(l, block);
        let codes: &[[u8; 32]; 4] = parts(block, 16);
        for pair in 0..4 {
            let codes = &codes[pair];
            nibbles::<L, 0>(l, codes, &groups, 2 * pair, &mut each);
            nibbles::<L, 1>(l, codes, &groups, 2 * pair + 1, &mut each);
        }
    }
}

/// Decodes a group of Q4_K: the low or the high halves of 32 bytes.
#[inline(always)]
fn nibbles<L: Lanes, const HALF: usize>(
    l: L,
    codes: &[u8; 32],
    (scales, mins): &([f32; 8], [f32; 8]),
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    let (scale, min) = (l.splat(scales[group]), l.splat(mins[group]));
    let table = look_up_in(l, l.fma(scale, l.load(&FROM_0), min));
    each(32 * group, l.table4(part(codes, 0), HALF, table));
    each(32 * group + 16, l.table4(part(codes, 16), HALF, table));
}

impl Form for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let groups = scales_and_mins(l, block);
        // The fifth bits of the next group are at bit 4.
        let high: &[u8; 32] = part(block, 16);
        let mut fifth =
            [l.shift_left(l.load_u8(part(high, 0)), 4), l.shift_left(l.load_u8(part(high, 16)), 4)];
        let low: &[[u8; 32]; 4] = parts(block, 48);
        for pair in 0..4 {
            let low = &low[pair];
            five_bits::<L, 0>(l, low, &mut fifth, &groups, 2 * pair, &mut each);
            five_bits::<L, 1>(l, low, &mut fifth, &groups, 2 * pair + 1, &mut each);
        }
    }
}

/// Decodes a group of Q5_K, and shifts its fifth bits out.
#[inline(always)]
fn five_bits<L: Lanes, const HALF: usize>(
    l: L,
    low: &[u8; 32],
    fifth: &mut [L::Ints; 2],
    (scales, mins): &([f32; 8], [f32; 8]),
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    let (scale, min) = (l.splat(scales[group]), l.splat(mins[group]));
    let low: &[[u8; 16]; 2] = parts(low, 0);
    for i in 0..2 {
        let low = l.shift_right(l.load_u8(&low[i]), 4 * HALF);
        let low = l.and(low, l.splat_int(15));
        let code = l.or(low, l.and(fifth[i], l.splat_int(16)));
        each(32 * group + 16 * i, l.fma(scale, l.to_floats(code), min));
        fifth[i] = l.shift_right(fifth[i], 1);
    }
}

/// Scales and minimums of 16 groups in 4 bits each, 64 bytes of 2-bit codes, then two f16 scales.
pub struct Q2K;
/// 32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of 6-bit scales of 16 groups, then an f16 scale.
pub struct Q3K;
/// f16 scale, 6 bytes of 6-bit scales of 8 groups, then 128 bytes of 4-bit indices.
pub struct Iq4Xs;

impl Form for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let (scale, min) = (splat_f16(l, part(block, 80)), splat_f16(l, part(block, 82)));
        let packed = l.load_u8(part(block, 0));
        let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
        let low = l.to_floats(l.and(packed, l.splat_int(15)));
        l.store(&mut scales, l.mul(scale, low));
        let high = l.to_floats(l.shift_right(packed, 4));
        l.store(&mut mins, l.mul(l.mul(min, l.splat(-1.0)), high));
        let codes: &[[u8; 32]; 2] = parts(block, 16);
        for half in 0..2 {
            let codes = &codes[half];
            let groups = (&scales, &mins);
            two_bits::<L, 0>(l, codes, groups, 8 * half, &mut each);
            two_bits::<L, 1>(l, codes, groups, 8 * half + 2, &mut each);
            two_bits::<L, 2>(l, codes, groups, 8 * half + 4, &mut each);
            two_bits::<L, 3>(l, codes, groups, 8 * half + 6, &mut each);
        }
    }
}

/// Decodes two groups of Q2_K: the codes at one bit position of 32 bytes.
#[inline(always)]
fn two_bits<L: Lanes, const PLACE: usize>(
    l: L,
    codes: &[u8; 32],
    (scales, mins): (&[f32; 16], &[f32; 16]),
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    /// The values of 2 bits, repeated.
    static FROM_0_TO_3: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0];
    let codes: &[[u8; 16]; 2] = parts(codes, 0);
    for i in 0..2 {
        let (scale, min) = (l.splat(scales[group + i]), l.splat(mins[group + i]));
        let table = look_up_in(l, l.fma(scale, l.load(&FROM_0_TO_3), min));
        each(16 * (group + i), l.signed(&codes[i], &[0; 2], PLACE, table));
    }
}

impl Form for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let packed = words(part(block, 96));
        // Low bits of groups 0 to 7 are in the lower halves of 8 bytes, those of 8 to 15 in the upper halves;
        // a byte has the high bits of every fourth group.
        let (four, two) = (0x0f0f_0f0f, 0x0303_0303);
        let unpacked: [u32; 4] = [
            packed[0] & four | (packed[2] & two) << 4,
            packed[1] & four | (packed[2] >> 2 & two) << 4,
            packed[0] >> 4 & four | (packed[2] >> 4 & two) << 4,
            packed[1] >> 4 & four | (packed[2] >> 6 & two) << 4,
        ];
        let integers = l.add(l.load_i8(bytemuck::cast_ref(&unpacked)), l.splat(-32.0));
        let mut scales = [0.0; 16];
        l.store(&mut scales, l.mul(splat_f16(l, part(block, 108)), integers));
        // The third bits of the next groups are at bit 2.
        let mut third =
            [l.shift_left(l.load_u8(part(block, 0)), 2), l.shift_left(l.load_u8(part(block, 16)), 2)];
        let low: &[[u8; 32]; 2] = parts(block, 32);
        for half in 0..2 {
            let low = &low[half];
            three_bits::<L, 0>(l, low, &mut third, &scales, 8 * half, &mut each);
            three_bits::<L, 1>(l, low, &mut third, &scales, 8 * half + 2, &mut each);
            three_bits::<L, 2>(l, low, &mut third, &scales, 8 * half + 4, &mut each);
            three_bits::<L, 3>(l, low, &mut third, &scales, 8 * half + 6, &mut each);
        }
    }
}

/// Decodes two groups of Q3_K: the low bits at one bit position of 32 bytes; shifts their third bits out.
#[inline(always)]
fn three_bits<L: Lanes, const PLACE: usize>(
    l: L,
    low: &[u8; 32],
    third: &mut [L::Ints; 2],
    scales: &[f32; 16],
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    let low: &[[u8; 16]; 2] = parts(low, 0);
    for i in 0..2 {
        let low = l.shift_right(l.load_u8(&low[i]), 2 * PLACE);
        let code = l.or(l.and(low, l.splat_int(3)), l.and(third[i], l.splat_int(4)));
        let (scale, least) = (scales[group + i], -4.0 * scales[group + i]);
        // `scale (code - 4)`, which is exact.
        each(16 * (group + i), l.fma(l.splat(scale), l.to_floats(code), l.splat(least)));
        third[i] = l.shift_right(third[i], 1);
    }
}

impl Form for Iq4Xs {
    const BLOCK: usize = 256;
    const BYTES: usize = 136;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let high = u16::from_le_bytes(*part(block, 2));
        let low = u32::from_le_bytes(*part(block, 4));
        let mut integers = [0; 16];
        for (group, integer) in integers.iter_mut().enumerate().take(8) {
            *integer = (low >> (4 * group) & 15) as u8 | ((high >> (2 * group) & 3) << 4) as u8;
        }
        let integers = l.add(l.to_floats(l.load_u8(&integers)), l.splat(-32.0));
        let mut scales = [0.0; 16];
        l.store(&mut scales, l.mul(splat_f16(l, part(block, 0)), integers));
        let codes: &[[u8; 16]; 8] = parts(block, 8);
        for group in 0..8 {
            let codes = &codes[group];
            let table = look_up_in(l, l.mul(l.splat(scales[group]), l.load(&UNEVEN)));
            each(32 * group, l.table4(codes, 0, table));
            each(32 * group + 16, l.table4(codes, 1, table));
        }
    }
}

/// Scales of 8 groups, and their negated minimums.
#[inline(always)]
fn scales_and_mins<L: Lanes>(l: L, block: &[u8]) -> ([f32; 8], [f32; 8]) {
    let packed = words(part(block, 4));
    // The lower two words have 6 bits each for the first four groups. For the others, 4 bits are in the third
    // word and 2 above those of the first groups.
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    let unpacked: [u32; 4] = [
        packed[0] & six,
        packed[2] & four | (packed[0] >> 6 & two) << 4,
        packed[1] & six,
        packed[2] >> 4 & four | (packed[1] >> 6 & two) << 4,
    ];
    let (scale, min) = (splat_f16(l, part(block, 0)), splat_f16(l, part(block, 2)));
    let integers = l.load_i8(bytemuck::cast_ref(&unpacked));
    let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
    l.store(&mut scales, l.mul(scale, integers));
    l.store(&mut mins, l.mul(l.mul(min, l.splat(-1.0)), integers));
    (*scales.first_chunk().expect("16"), *mins.last_chunk().expect("16"))
}

/// Three little-endian words.
#[inline(always)]
fn words(bytes: &[u8; 12]) -> [u32; 3] {
    let word = |at: usize| u32::from_le_bytes(*part(bytes, at));
    [word(0), word(4), word(8)]
}
