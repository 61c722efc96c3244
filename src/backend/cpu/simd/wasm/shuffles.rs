//! What takes several instructions to move.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::wasm32::*;

/// The floats at 16 indices, their last bytes changed by `turn`.
#[inline(always)]
pub(super) unsafe fn look_up(table: [v128; 4], index: v128, turn: v128) -> [v128; 4] {
    let bytes = quarters_by!(u8x16_swizzle, table, index);
    let last = v128_xor(bytes[3], turn);
    let low = [zip_low(bytes[0], bytes[1]), zip_high(bytes[0], bytes[1])];
    let high = [zip_low(bytes[2], last), zip_high(bytes[2], last)];
    [
        i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(low[0], high[0]),
        i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(low[0], high[0]),
        i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(low[1], high[1]),
        i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(low[1], high[1]),
    ]
}

/// Rows and columns of four rows exchanged.
#[inline(always)]
pub(super) unsafe fn turned4(v: [v128; 4]) -> [v128; 4] {
    let low = [i32x4_shuffle::<0, 4, 1, 5>(v[0], v[1]), i32x4_shuffle::<0, 4, 1, 5>(v[2], v[3])];
    let high = [i32x4_shuffle::<2, 6, 3, 7>(v[0], v[1]), i32x4_shuffle::<2, 6, 3, 7>(v[2], v[3])];
    [
        i64x2_shuffle::<0, 2>(low[0], low[1]),
        i64x2_shuffle::<1, 3>(low[0], low[1]),
        i64x2_shuffle::<0, 2>(high[0], high[1]),
        i64x2_shuffle::<1, 3>(high[0], high[1]),
    ]
}

#[inline(always)]
unsafe fn zip_low(a: v128, b: v128) -> v128 {
    i8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b)
}

#[inline(always)]
unsafe fn zip_high(a: v128, b: v128) -> v128 {
    i8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b)
}

/// The first four f16 as floats.
#[inline(always)]
pub(super) unsafe fn widen_f16(halves: v128) -> v128 {
    let words = u32x4_extend_low_u16x8(halves);
    let sign = u32x4_shl(v128_and(words, u32x4_splat(0x8000)), 16);
    let magnitude = u32x4_shl(v128_and(words, u32x4_splat(0x7fff)), 13);
    // Exponents differ by 112, for numbers below the normal ones too: the product is exact.
    let float = f32x4_mul(magnitude, f32x4_splat(f32::from_bits(0x7780_0000)));
    // Infinities and what is no number.
    let special = v128_and(i32x4_ge(magnitude, u32x4_splat(0x0f80_0000)), u32x4_splat(0x7f80_0000));
    v128_or(v128_or(float, special), sign)
}
