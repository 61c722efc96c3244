//! Blocks of 256 weights in groups, whose scales and minimums are small integers under one scale each.
//!
//! Scale and minimum of a group are products of an f16 with an integer of up to 6 bits, and a code has at
//! most 5 (what an index of IQ4_XS stands for, 7): `scale x code` is exact, so a fused multiply-add gives the
//! bits of `scale x code - minimum`.
#![allow(unsafe_code)]

use super::Form;
use super::blocks::{FROM_0, NONE, UNEVEN, look_up_in, splat_f16};
use crate::lanes::Lanes;

/// Two f16 scales, 12 bytes of 6-bit scales and minimums, then 32 bytes for two groups of 32 weights.
pub struct Q4K;
/// The same, with 32 bytes of fifth bits before the low halves: bit `g` of each belongs to group `g`.
pub struct Q5K;

impl Form for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let groups = scales_and_mins::<L>(block);
            for pair in 0..4 {
                let codes = block.add(16 + 32 * pair);
                nibbles::<L, 0>(codes, &groups, 2 * pair, &mut each);
                nibbles::<L, 1>(codes, &groups, 2 * pair + 1, &mut each);
            }
        }
    }
}

/// A group of Q4_K: the low or the high halves of 32 bytes.
///
/// # Safety
/// As [`Form::decode`].
#[inline(always)]
unsafe fn nibbles<L: Lanes, const HALF: usize>(
    codes: *const u8,
    (scales, mins): &([f32; 8], [f32; 8]),
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    // SAFETY: as for this function.
    unsafe {
        let (scale, min) = (L::splat(scales[group]), L::splat(mins[group]));
        let table = look_up_in::<L>(L::fma(scale, L::load(FROM_0.as_ptr()), min));
        each(32 * group, L::table4(codes, HALF, table));
        each(32 * group + 16, L::table4(codes.add(16), HALF, table));
    }
}

impl Form for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let groups = scales_and_mins::<L>(block);
            // The fifth bits of the group that is next stand at their place.
            let high = block.add(16);
            let mut fifth = [L::shift_left(L::load_u8(high), 4), L::shift_left(L::load_u8(high.add(16)), 4)];
            for pair in 0..4 {
                let low = block.add(48 + 32 * pair);
                five_bits::<L, 0>(low, &mut fifth, &groups, 2 * pair, &mut each);
                five_bits::<L, 1>(low, &mut fifth, &groups, 2 * pair + 1, &mut each);
            }
        }
    }
}

/// A group of Q5_K; its fifth bits are taken off.
///
/// # Safety
/// As [`Form::decode`].
#[inline(always)]
unsafe fn five_bits<L: Lanes, const HALF: usize>(
    low: *const u8,
    fifth: &mut [L::Ints; 2],
    (scales, mins): &([f32; 8], [f32; 8]),
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    // SAFETY: as for this function.
    unsafe {
        let (scale, min) = (L::splat(scales[group]), L::splat(mins[group]));
        for i in 0..2 {
            let low = L::shift_right(L::load_u8(low.add(16 * i)), 4 * HALF);
            let low = L::and(low, L::splat_int(15));
            let code = L::or(low, L::and(fifth[i], L::splat_int(16)));
            each(32 * group + 16 * i, L::fma(scale, L::to_floats(code), min));
            fifth[i] = L::shift_right(fifth[i], 1);
        }
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
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let (scale, min) = (splat_f16::<L>(block.add(80)), splat_f16::<L>(block.add(82)));
            let packed = L::load_u8(block);
            let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
            let low = L::to_floats(L::and(packed, L::splat_int(15)));
            L::store(scales.as_mut_ptr(), L::mul(scale, low));
            let high = L::to_floats(L::shift_right(packed, 4));
            L::store(mins.as_mut_ptr(), L::mul(L::mul(min, L::splat(-1.0)), high));
            for half in 0..2 {
                let codes = block.add(16 + 32 * half);
                let groups = (&scales, &mins);
                two_bits::<L, 0>(codes, groups, 8 * half, &mut each);
                two_bits::<L, 1>(codes, groups, 8 * half + 2, &mut each);
                two_bits::<L, 2>(codes, groups, 8 * half + 4, &mut each);
                two_bits::<L, 3>(codes, groups, 8 * half + 6, &mut each);
            }
        }
    }
}

/// Two groups of Q2_K: the codes of one place in 32 bytes.
///
/// # Safety
/// As [`Form::decode`].
#[inline(always)]
unsafe fn two_bits<L: Lanes, const PLACE: usize>(
    codes: *const u8,
    (scales, mins): (&[f32; 16], &[f32; 16]),
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    /// What 2 bits stand for, again and again.
    static FROM_0_TO_3: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0];
    // SAFETY: as for this function.
    unsafe {
        for i in 0..2 {
            let (scale, min) = (L::splat(scales[group + i]), L::splat(mins[group + i]));
            let table = look_up_in::<L>(L::fma(scale, L::load(FROM_0_TO_3.as_ptr()), min));
            each(16 * (group + i), L::signed(codes.add(16 * i), NONE.as_ptr(), PLACE, table));
        }
    }
}

impl Form for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let packed = block.add(96).cast::<[u32; 3]>().read_unaligned();
            // Low bits of groups 0 to 7 in the lower halves of 8 bytes, of 8 to 15 in the upper ones; high
            // bits of every fourth group in a byte.
            let (four, two) = (0x0f0f_0f0f, 0x0303_0303);
            let unpacked: [u32; 4] = [
                packed[0] & four | (packed[2] & two) << 4,
                packed[1] & four | (packed[2] >> 2 & two) << 4,
                packed[0] >> 4 & four | (packed[2] >> 4 & two) << 4,
                packed[1] >> 4 & four | (packed[2] >> 6 & two) << 4,
            ];
            let integers = L::add(L::load_i8(unpacked.as_ptr().cast()), L::splat(-32.0));
            let mut scales = [0.0; 16];
            L::store(scales.as_mut_ptr(), L::mul(splat_f16::<L>(block.add(108)), integers));
            // The third bits of the groups that are next stand at their place.
            let mut third =
                [L::shift_left(L::load_u8(block), 2), L::shift_left(L::load_u8(block.add(16)), 2)];
            for half in 0..2 {
                let low = block.add(32 + 32 * half);
                three_bits::<L, 0>(low, &mut third, &scales, 8 * half, &mut each);
                three_bits::<L, 1>(low, &mut third, &scales, 8 * half + 2, &mut each);
                three_bits::<L, 2>(low, &mut third, &scales, 8 * half + 4, &mut each);
                three_bits::<L, 3>(low, &mut third, &scales, 8 * half + 6, &mut each);
            }
        }
    }
}

/// Two groups of Q3_K: the low bits of one place in 32 bytes; their third bits are taken off.
///
/// # Safety
/// As [`Form::decode`].
#[inline(always)]
unsafe fn three_bits<L: Lanes, const PLACE: usize>(
    low: *const u8,
    third: &mut [L::Ints; 2],
    scales: &[f32; 16],
    group: usize,
    each: &mut impl FnMut(usize, L::Floats),
) {
    // SAFETY: as for this function.
    unsafe {
        for i in 0..2 {
            let low = L::shift_right(L::load_u8(low.add(16 * i)), 2 * PLACE);
            let code = L::or(L::and(low, L::splat_int(3)), L::and(third[i], L::splat_int(4)));
            let (scale, least) = (scales[group + i], -4.0 * scales[group + i]);
            // `scale (code - 4)`, which is exact.
            each(16 * (group + i), L::fma(L::splat(scale), L::to_floats(code), L::splat(least)));
            third[i] = L::shift_right(third[i], 1);
        }
    }
}

impl Form for Iq4Xs {
    const BLOCK: usize = 256;
    const BYTES: usize = 136;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let high = block.add(2).cast::<u16>().read_unaligned();
            let low = block.add(4).cast::<u32>().read_unaligned();
            let mut integers = [0; 16];
            for (group, integer) in integers.iter_mut().enumerate().take(8) {
                *integer = (low >> (4 * group) & 15) as u8 | ((high >> (2 * group) & 3) << 4) as u8;
            }
            let integers = L::add(L::to_floats(L::load_u8(integers.as_ptr())), L::splat(-32.0));
            let mut scales = [0.0; 16];
            L::store(scales.as_mut_ptr(), L::mul(splat_f16::<L>(block), integers));
            for group in 0..8 {
                let codes = block.add(8 + 16 * group);
                let table = look_up_in::<L>(L::mul(L::splat(scales[group]), L::load(UNEVEN.as_ptr())));
                each(32 * group, L::table4(codes, 0, table));
                each(32 * group + 16, L::table4(codes, 1, table));
            }
        }
    }
}

/// Scales of 8 groups, and their minimums with the other sign.
///
/// # Safety
/// As [`Lanes`]; a block of Q4_K or Q5_K lies behind the pointer.
#[inline(always)]
unsafe fn scales_and_mins<L: Lanes>(block: *const u8) -> ([f32; 8], [f32; 8]) {
    // SAFETY: as for this function.
    unsafe {
        let packed = block.add(4).cast::<[u32; 3]>().read_unaligned();
        // Bytes: 6 bits of the first four groups in the lower two; of the others 4 bits in the third, 2 above
        // those of the first.
        let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
        let unpacked: [u32; 4] = [
            packed[0] & six,
            packed[2] & four | (packed[0] >> 6 & two) << 4,
            packed[1] & six,
            packed[2] >> 4 & four | (packed[1] >> 6 & two) << 4,
        ];
        let (scale, min) = (splat_f16::<L>(block), splat_f16::<L>(block.add(2)));
        let integers = L::load_i8(unpacked.as_ptr().cast());
        let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
        L::store(scales.as_mut_ptr(), L::mul(scale, integers));
        L::store(mins.as_mut_ptr(), L::mul(L::mul(min, L::splat(-1.0)), integers));
        (*scales.first_chunk().expect("16"), *mins.last_chunk().expect("16"))
    }
}
