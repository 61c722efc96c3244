//! Blocks of 256 weights in groups, whose scales and minimums are small integers under one scale each.
//!
//! Scale and minimum of a group are products of an f16 with an integer of up to 6 bits, and a code has at most
//! 5: `scale x code` is exact, so a fused multiply-add gives the bits of `scale x code - minimum`.
#![allow(unsafe_code)]

use super::Form;
use super::blocks::{FROM_0, look_up_in, splat_f16};
use crate::backend::cpu::simd::lanes::Lanes;

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
