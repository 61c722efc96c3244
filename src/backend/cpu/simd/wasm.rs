//! WebAssembly's vectors of 128 bits: four registers a vector. There is no run-time choice in WebAssembly (a
//! host refuses a whole module with instructions that it lacks), so that these are always compiled, and the
//! relaxed integer dot product where the build says that the host has it (feature `relaxed-simd`). It is used
//! within the range in which every host gives the same sums.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::wasm32::*;

use super::lanes::{Kernel, Lanes};
use shuffles::{look_up, turned4, widen_f16};

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

mod shuffles;

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
    const IS_FETCHED: bool = true;

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
    unsafe fn turned(rows: [Self::Bytes; 16]) -> [Self::Bytes; 16] {
        let mut columns = rows;
        for quarter in 0..4 {
            for four in 0..4 {
                let mut v = [u8x16_splat(0); 4];
                for i in 0..4 {
                    v[i] = rows[4 * four + i][quarter];
                }
                let turned = turned4(v);
                for i in 0..4 {
                    columns[4 * quarter + i][four] = turned[i];
                }
            }
        }
        columns
    }
    #[inline(always)]
    unsafe fn quads(rows: &[*const u8; 16]) -> [Self::Ints; 4] {
        let mut words = [[i32x4_splat(0); 4]; 4];
        for four in 0..4 {
            let mut v = [i32x4_splat(0); 4];
            for i in 0..4 {
                v[i] = v128_load(rows[4 * four + i].cast());
            }
            let turned = turned4(v);
            for i in 0..4 {
                words[i][four] = turned[i];
            }
        }
        words
    }
    #[inline(always)]
    unsafe fn fields(p: *const u8, low: u32, high: u32, mask: u8) -> Self::Bytes {
        let (first, second) = (v128_load(p.cast()), v128_load(p.add(16).cast()));
        let shifted =
            [u8x16_shr(first, low), u8x16_shr(second, low), u8x16_shr(first, high), u8x16_shr(second, high)];
        quarters_by!(v128_and, shifted, u8x16_splat(mask))
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8, q: *const u8) -> Self::Bytes {
        let (p, q) = (p.cast::<v128>(), q.cast::<v128>());
        [v128_load(p), v128_load(p.add(1)), v128_load(q), v128_load(q.add(1))]
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8, q: *const u8) -> Self::Bytes {
        let (p, q, mask) = (v128_load(p.cast()), v128_load(q.cast()), u8x16_splat(15));
        [v128_and(p, mask), u8x16_shr(p, 4), v128_and(q, mask), u8x16_shr(q, 4)]
    }
    #[inline(always)]
    unsafe fn load_quarters(p: [*const u8; 4]) -> Self::Bytes {
        [v128_load(p[0].cast()), v128_load(p[1].cast()), v128_load(p[2].cast()), v128_load(p[3].cast())]
    }
    #[inline(always)]
    unsafe fn trits(bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes {
        let (low, mut digits) = (u16x8_splat(0xff), bytes);
        for i in 0..4 {
            let powers = v128_and(v128_load(powers.as_ptr().add(16 * i).cast()), low);
            let even = i16x8_mul(v128_and(bytes[i], low), powers);
            let odd = i16x8_mul(v128_andnot(bytes[i], low), powers);
            let rest = v128_or(v128_and(even, low), odd);
            let (a_third, two_thirds) = (u8x16_ge(rest, u8x16_splat(86)), u8x16_ge(rest, u8x16_splat(171)));
            digits[i] = i8x16_neg(i8x16_add(a_third, two_thirds));
        }
        digits
    }
    #[inline(always)]
    unsafe fn look_up(indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        quarters!(u8x16_swizzle, [v128_load(table.as_ptr().cast()); 4], indices)
    }
    #[inline(always)]
    unsafe fn as_bytes(ints: Self::Ints) -> Self::Bytes {
        ints
    }
    #[inline(always)]
    unsafe fn with_high<const SHIFT: u32>(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        let shifted = quarters_by!(u8x16_shl, b, SHIFT);
        quarters!(v128_or, a, shifted)
    }
    #[inline(always)]
    unsafe fn with_fifth(codes: Self::Bytes, bits: u64) -> Self::Bytes {
        // Byte `i` gets the byte with its bit, and keeps that bit.
        let (bytes, each) = (u64x2_splat(bits), u64x2_splat(0x8040_2010_0804_0201));
        let order = u8x16(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let mut with = codes;
        for i in 0..4 {
            let of_bit = u8x16_swizzle(bytes, u8x16_add(order, u8x16_splat(2 * i as u8)));
            let set = u8x16_eq(v128_and(of_bit, each), each);
            with[i] = v128_or(codes[i], v128_and(set, u8x16_splat(16)));
        }
        with
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
    const ZERO: u8 = 0;
    #[inline(always)]
    unsafe fn signed_codes(bytes: Self::Bytes) -> Self::Bytes {
        bytes
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        quarters!(dot_signed16, acc, codes, acts)
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
    unsafe fn sums_of_8(vectors: &[Self::Ints; 16]) -> [Self::Ints; 2] {
        let [a, b, c, d] = Self::sums_of_4(vectors);
        [Self::add_ints(a, b), Self::add_ints(c, d)]
    }
    #[inline(always)]
    unsafe fn sums_of_4(vectors: &[Self::Ints; 16]) -> [Self::Ints; 4] {
        let mut sums = [[i32x4_splat(0); 4]; 4];
        for quarter in 0..4 {
            for four in 0..4 {
                let mut v = [i32x4_splat(0); 4];
                for i in 0..4 {
                    v[i] = vectors[4 * four + i][quarter];
                }
                let turned = turned4(v);
                let (low, high) = (i32x4_add(turned[0], turned[1]), i32x4_add(turned[2], turned[3]));
                sums[quarter][four] = i32x4_add(low, high);
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn halves_to_floats(ints: Self::Ints) -> Self::Floats {
        // The first four words of eight are looked at.
        let low = quarters_by!(v128_and, ints, u32x4_splat(0xffff));
        let words = [
            u16x8_narrow_i32x4(low[0], low[0]),
            u16x8_narrow_i32x4(low[1], low[1]),
            u16x8_narrow_i32x4(low[2], low[2]),
            u16x8_narrow_i32x4(low[3], low[3]),
        ];
        quarters!(widen_f16, words)
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

/// The same of bytes with a sign.
#[inline(always)]
unsafe fn dot_signed16(acc: v128, weights: v128, acts: v128) -> v128 {
    // Bytes with even numbers, then those with odd ones, as words.
    let (left, right) = (i16x8_shl(weights, 8), i16x8_shl(acts, 8));
    let even = i32x4_dot_i16x8(i16x8_shr(left, 8), i16x8_shr(right, 8));
    let odd = i32x4_dot_i16x8(i16x8_shr(weights, 8), i16x8_shr(acts, 8));
    i32x4_add(acc, i32x4_add(even, odd))
}
