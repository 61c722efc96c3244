//! WebAssembly's vectors of 128 bits: four registers a vector. There is no run-time choice in WebAssembly (a
//! host refuses a whole module with instructions that it lacks), so that these are always compiled, and the
//! relaxed integer dot product where the build says that the host has it (feature `relaxed-simd`). It is used
//! within the range in which every host gives the same sums.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::wasm32::*;

use super::lanes::{Kernel, Lanes};

/// `simd128`.
#[derive(Clone, Copy)]
pub struct Simd128;

/// The word for these kernels.
pub const NAME: &str = if cfg!(feature = "relaxed-simd") { "simd128-relaxed" } else { "simd128" };

/// Applies an operation to all four quarters.
macro_rules! quarters {
    ($op:path, $($arg:expr),+) => {
        [$op($($arg[0]),+), $op($($arg[1]),+), $op($($arg[2]),+), $op($($arg[3]),+)]
    };
}

/// The same with a last argument that all four share.
macro_rules! quarters_by {
    ($op:path, $x:expr, $by:expr) => {
        [$op($x[0], $by), $op($x[1], $by), $op($x[2], $by), $op($x[3], $by)]
    };
}

/// Byte `$j` of each of 16 floats.
macro_rules! byte_of_each {
    ($x:expr, $j:literal) => {{
        let low = i8x16_shuffle::<
            { $j },
            { $j + 4 },
            { $j + 8 },
            { $j + 12 },
            { $j + 16 },
            { $j + 20 },
            { $j + 24 },
            { $j + 28 },
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        >($x[0], $x[1]);
        let high = i8x16_shuffle::<
            { $j },
            { $j + 4 },
            { $j + 8 },
            { $j + 12 },
            { $j + 16 },
            { $j + 20 },
            { $j + 24 },
            { $j + 28 },
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        >($x[2], $x[3]);
        i64x2_shuffle::<0, 2>(low, high)
    }};
}

// SAFETY: each function is four of the instructions for what the trait says.
unsafe impl Lanes for Simd128 {
    type Bytes = [v128; 4];
    type Ints = [v128; 4];
    type Floats = [v128; 4];
    type Sums = [v128; 4];
    // The first bytes of all floats, then the second ones, and so on.
    type Table = [v128; 4];

    // Hosts have 16 registers (x86-64) or 32: 16 of a block's sums.
    const STRIP_VECTORS: usize = 1;
    const ROWS: usize = 4;
    const FLOAT_BLOCK: (usize, usize) = (2, 2);
    const GEMM_VECTORS: usize = 1;

    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "simd128")]
        #[cfg_attr(feature = "relaxed-simd", target_feature(enable = "relaxed-simd"))]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the module would not run where the feature is not there.
            unsafe { kernel.run::<Simd128>() }
        }
        run(kernel)
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        let p = p.cast::<v128>();
        [v128_load(p), v128_load(p.add(1)), v128_load(p.add(2)), v128_load(p.add(3))]
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> Self::Bytes {
        let p = p.cast::<v128>();
        [v128_load(p), v128_load(p.add(1)), u8x16_splat(0), u8x16_splat(0)]
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, bytes: Self::Bytes) {
        for i in 0..4 {
            v128_store(p.cast::<v128>().add(i), bytes[i]);
        }
    }
    #[inline(always)]
    unsafe fn splat4(p: *const i8) -> Self::Bytes {
        [v128_load32_splat(p.cast()); 4]
    }
    #[inline(always)]
    unsafe fn codes<const SHIFT: u32>(bytes: Self::Bytes) -> Self::Bytes {
        let shifted = quarters_by!(u8x16_shr, bytes, SHIFT);
        quarters_by!(v128_and, shifted, u8x16_splat(3))
    }

    #[inline(always)]
    unsafe fn dot(acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        quarters!(dot16, acc, codes, acts)
    }
    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        [i32x4_splat(0); 4]
    }
    #[inline(always)]
    unsafe fn dot_packed(sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums {
        let mut sums = sums;
        let codes = [
            Self::codes::<0>(packed),
            Self::codes::<2>(packed),
            Self::codes::<4>(packed),
            Self::codes::<6>(packed),
        ];
        for i in 0..4 {
            if cfg!(feature = "relaxed-simd") {
                for (codes, acts) in codes.iter().zip(&acts) {
                    sums[i] = dot16(sums[i], codes[i], acts[i]);
                }
            } else {
                // A code is at most 3, so that eight products are within 3072.
                let mut words = i16x8_splat(0);
                for group in 0..4 {
                    let (codes, acts) = (codes[group][i], acts[group][i]);
                    words = i16x8_add(words, i16x8_extmul_low_i8x16(codes, acts));
                    words = i16x8_add(words, i16x8_extmul_high_i8x16(codes, acts));
                }
                sums[i] = i32x4_add(sums[i], i32x4_extadd_pairwise_i16x8(words));
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn total(sums: Self::Sums) -> i32 {
        Self::sum_ints(sums)
    }

    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        [i32x4_splat(x); 4]
    }
    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> Self::Ints {
        Self::load_bytes(p.cast())
    }
    #[inline(always)]
    unsafe fn store_ints(p: *mut i32, ints: Self::Ints) {
        Self::store_bytes(p.cast(), ints);
    }
    #[inline(always)]
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        quarters!(i32x4_add, a, b)
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::Ints {
        let bytes = v128_load(p.cast());
        let words = [u16x8_extend_low_u8x16(bytes), u16x8_extend_high_u8x16(bytes)];
        [
            u32x4_extend_low_u16x8(words[0]),
            u32x4_extend_high_u16x8(words[0]),
            u32x4_extend_low_u16x8(words[1]),
            u32x4_extend_high_u16x8(words[1]),
        ]
    }
    #[inline(always)]
    unsafe fn shift_right(ints: Self::Ints, n: usize) -> Self::Ints {
        quarters_by!(u32x4_shr, ints, n as u32)
    }
    #[inline(always)]
    unsafe fn shift_left(ints: Self::Ints, n: usize) -> Self::Ints {
        quarters_by!(i32x4_shl, ints, n as u32)
    }
    #[inline(always)]
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        quarters!(v128_and, a, b)
    }
    #[inline(always)]
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        quarters!(v128_or, a, b)
    }
    #[inline(always)]
    unsafe fn sum_ints(ints: Self::Ints) -> i32 {
        let four = i32x4_add(i32x4_add(ints[0], ints[1]), i32x4_add(ints[2], ints[3]));
        let two = i32x4_add(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        i32x4_extract_lane::<0>(two) + i32x4_extract_lane::<1>(two)
    }
    #[inline(always)]
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats {
        [
            f32x4_convert_i32x4(ints[0]),
            f32x4_convert_i32x4(ints[1]),
            f32x4_convert_i32x4(ints[2]),
            f32x4_convert_i32x4(ints[3]),
        ]
    }
    #[inline(always)]
    unsafe fn max_magnitude(a: Self::Ints, x: Self::Floats) -> Self::Ints {
        let magnitude = [f32x4_abs(x[0]), f32x4_abs(x[1]), f32x4_abs(x[2]), f32x4_abs(x[3])];
        quarters!(i32x4_max, a, magnitude)
    }
    #[inline(always)]
    unsafe fn largest(ints: Self::Ints) -> i32 {
        let four = i32x4_max(i32x4_max(ints[0], ints[1]), i32x4_max(ints[2], ints[3]));
        let two = i32x4_max(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        i32x4_extract_lane::<0>(two).max(i32x4_extract_lane::<1>(two))
    }
    #[inline(always)]
    unsafe fn round(x: Self::Floats) -> Self::Ints {
        let round = |x| i32x4_trunc_sat_f32x4(f32x4_nearest(x));
        [round(x[0]), round(x[1]), round(x[2]), round(x[3])]
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, ints: Self::Ints) {
        let low = i16x8_narrow_i32x4(ints[0], ints[1]);
        let high = i16x8_narrow_i32x4(ints[2], ints[3]);
        v128_store(p.cast(), i8x16_narrow_i16x8(low, high));
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        [f32x4_splat(x); 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::Floats {
        Self::load_bytes(p.cast())
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::Floats) {
        Self::store_bytes(p.cast(), x);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::Floats {
        let p = p.cast::<u16>();
        [
            widen_f16(v128_load64_zero(p.cast())),
            widen_f16(v128_load64_zero(p.add(4).cast())),
            widen_f16(v128_load64_zero(p.add(8).cast())),
            widen_f16(v128_load64_zero(p.add(12).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::Floats {
        let p = p.cast::<u16>();
        let halves = [
            u32x4_extend_low_u16x8(v128_load64_zero(p.cast())),
            u32x4_extend_low_u16x8(v128_load64_zero(p.add(4).cast())),
            u32x4_extend_low_u16x8(v128_load64_zero(p.add(8).cast())),
            u32x4_extend_low_u16x8(v128_load64_zero(p.add(12).cast())),
        ];
        quarters_by!(u32x4_shl, halves, 16)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::Floats {
        let bytes = v128_load(p.cast());
        let words = [i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes)];
        Self::to_floats([
            i32x4_extend_low_i16x8(words[0]),
            i32x4_extend_high_i16x8(words[0]),
            i32x4_extend_low_i16x8(words[1]),
            i32x4_extend_high_i16x8(words[1]),
        ])
    }
    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        quarters!(f32x4_add, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        quarters!(f32x4_mul, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        Self::add(Self::mul(a, b), c)
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        let product = Self::mul(a, b);
        quarters!(f32x4_sub, c, product)
    }
    #[inline(always)]
    unsafe fn divide(x: Self::Floats, divisor: Self::Floats, _reciprocal: Self::Floats) -> Self::Floats {
        quarters!(f32x4_div, x, divisor)
    }
    #[inline(always)]
    fn fma_one(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    unsafe fn sum(x: Self::Floats) -> f32 {
        let four = f32x4_add(f32x4_add(x[0], x[2]), f32x4_add(x[1], x[3]));
        let two = f32x4_add(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
    }

    #[inline(always)]
    unsafe fn table(p: *const f32) -> Self::Table {
        let x = Self::load(p);
        [byte_of_each!(x, 0), byte_of_each!(x, 1), byte_of_each!(x, 2), byte_of_each!(x, 3)]
    }
    #[inline(always)]
    unsafe fn signed(p: *const u8, signs: *const u8, part: usize, table: Self::Table) -> Self::Floats {
        let index = v128_and(u8x16_shr(v128_load(p.cast()), 2 * part as u32), u8x16_splat(3));
        let signs = signs.add(2 * part);
        let signs = i64x2_shuffle::<0, 2>(u8x16_splat(*signs), u8x16_splat(*signs.add(1)));
        let bits = u8x16(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
        let set = i8x16_eq(v128_and(signs, bits), bits);
        look_up(table, index, v128_and(set, u8x16_splat(0x80)))
    }
    #[inline(always)]
    unsafe fn table4(p: *const u8, part: usize, table: Self::Table) -> Self::Floats {
        let index = v128_and(u8x16_shr(v128_load(p.cast()), 4 * part as u32), u8x16_splat(15));
        look_up(table, index, u8x16_splat(0))
    }
    #[inline(always)]
    unsafe fn table2(p: *const u8, table: Self::Table) -> Self::Floats {
        // Each byte four times, of which the code wanted is moved to its two highest bits by a product.
        let codes = v128_load32_splat(p.cast());
        let codes = i8x16_shuffle::<0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3>(codes, codes);
        let shifted = [codes, u8x16_shr(codes, 2), u8x16_shr(codes, 4), u8x16_shr(codes, 6)];
        let even =
            i8x16_shuffle::<0, 17, 2, 3, 4, 21, 6, 7, 8, 25, 10, 11, 12, 29, 14, 15>(shifted[0], shifted[1]);
        let odd =
            i8x16_shuffle::<0, 1, 2, 19, 4, 5, 6, 23, 8, 9, 10, 27, 12, 13, 14, 31>(shifted[2], shifted[3]);
        let index = i8x16_shuffle::<0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31>(even, odd);
        look_up(table, v128_and(index, u8x16_splat(3)), u8x16_splat(0))
    }
    #[inline(always)]
    unsafe fn add_where(bits: *const u8, x: Self::Floats, y: Self::Floats) -> Self::Floats {
        let bits = u32::from(bits.cast::<u16>().read_unaligned());
        let each = u32x4(1, 2, 4, 8);
        let mut sums = x;
        for i in 0..4 {
            let set = i32x4_eq(v128_and(u32x4_splat(bits >> (4 * i)), each), each);
            sums[i] = v128_bitselect(f32x4_add(x[i], y[i]), x[i], set);
        }
        sums
    }

    #[inline(always)]
    unsafe fn f16_to_f32(bits: u16) -> f32 {
        f32x4_extract_lane::<0>(widen_f16(u16x8_splat(bits)))
    }
    #[inline(always)]
    unsafe fn unpack_q6(low: *const u8, high: *const u8) -> [Self::Bytes; 2] {
        let high = high.cast::<v128>();
        let (low, high) = (Self::load_bytes(low), [v128_load(high), v128_load(high.add(1))]);
        // Bits 2 to 5 are the low ones; of the high ones, the upper is turned: that subtracts 32.
        let (four_bits, two_bits, turned) = (u8x16_splat(0x3c), u8x16_splat(0xc0), u8x16_splat(0x80));
        let mut unpacked = [low; 2];
        for i in 0..8 {
            let (low, high) = (low[i % 4], high[i % 2]);
            let low = if i < 4 { u8x16_shl(low, 2) } else { u8x16_shr(low, 2) };
            let high = v128_and(u8x16_shl(high, 6 - 2 * (i as u32 / 2)), two_bits);
            unpacked[i / 4][i % 4] = v128_xor(v128_or(v128_and(low, four_bits), high), turned);
        }
        unpacked
    }
    #[inline(always)]
    unsafe fn top_bytes<const J: usize>(bytes: Self::Bytes) -> Self::Ints {
        // An index beyond the vector is a zero.
        let j = 4 * J as u8;
        let order = u8x16(255, 255, 255, j, 255, 255, 255, j + 1, 255, 255, 255, j + 2, 255, 255, 255, j + 3);
        quarters_by!(u8x16_swizzle, bytes, order)
    }
    #[inline(always)]
    unsafe fn splat_each4(p: *const f32) -> Self::Floats {
        let p = p.cast::<u32>();
        [
            v128_load32_splat(p),
            v128_load32_splat(p.add(1)),
            v128_load32_splat(p.add(2)),
            v128_load32_splat(p.add(3)),
        ]
    }

    #[inline(always)]
    unsafe fn prefetch_far(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

/// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`. Codes are below 128: then a host's sums of two
/// products are within 16 bits, and all hosts give the same.
#[inline(always)]
#[cfg(feature = "relaxed-simd")]
unsafe fn dot16(acc: v128, codes: v128, acts: v128) -> v128 {
    i32x4_relaxed_dot_i8x16_i7x16_add(acts, codes, acc)
}

/// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`. Codes are below 128: they are signed, too.
#[inline(always)]
#[cfg(not(feature = "relaxed-simd"))]
unsafe fn dot16(acc: v128, codes: v128, acts: v128) -> v128 {
    // Bytes with even numbers, then those with odd ones, as words.
    let even = i32x4_dot_i16x8(v128_and(codes, u16x8_splat(0xff)), i16x8_shr(i16x8_shl(acts, 8), 8));
    let odd = i32x4_dot_i16x8(u16x8_shr(codes, 8), i16x8_shr(acts, 8));
    i32x4_add(acc, i32x4_add(even, odd))
}

/// The floats at 16 indices, their last bytes changed by `turn`.
#[inline(always)]
unsafe fn look_up(table: [v128; 4], index: v128, turn: v128) -> [v128; 4] {
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
unsafe fn widen_f16(halves: v128) -> v128 {
    let words = u32x4_extend_low_u16x8(halves);
    let sign = u32x4_shl(v128_and(words, u32x4_splat(0x8000)), 16);
    let magnitude = u32x4_shl(v128_and(words, u32x4_splat(0x7fff)), 13);
    // Exponents differ by 112, for numbers below the normal ones too: the product is exact.
    let float = f32x4_mul(magnitude, f32x4_splat(f32::from_bits(0x7780_0000)));
    // Infinities and what is no number.
    let special = v128_and(i32x4_ge(magnitude, u32x4_splat(0x0f80_0000)), u32x4_splat(0x7f80_0000));
    v128_or(v128_or(float, special), sign)
}
