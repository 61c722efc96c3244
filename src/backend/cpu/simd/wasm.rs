//! WebAssembly's 128-bit vectors: four registers per vector. WebAssembly has no run-time selection, because a
//! host rejects a whole module with instructions that it lacks. So these kernels are always compiled, and the
//! relaxed integer dot product if the build assumes it (feature `relaxed-simd`). It is used only in the range
//! in which all hosts give the same sums.
#![allow(unsafe_code)]
// SAFETY, unless a block states otherwise: a reference to an array covers the elements that are read or
// written. Every host that runs the module has its instructions.

use std::arch::wasm32::*;

use super::lanes::{Kernel, Lanes, slot};

/// `simd128`.
#[derive(Clone, Copy)]
pub struct Simd128(());

impl Simd128 {
    /// Creates the set: a host that lacks it rejects the module.
    pub const fn new() -> Self {
        Self(())
    }
}

/// Name of these kernels.
pub const NAME: &str = if cfg!(feature = "relaxed-simd") { "simd128-relaxed" } else { "simd128" };

/// Applies an operation to all four quarters.
macro_rules! quarters {
    ($op:path, $($arg:expr),+) => {
        [$op($($arg[0]),+), $op($($arg[1]),+), $op($($arg[2]),+), $op($($arg[3]),+)]
    };
}

/// As `quarters`, with a last argument that all four share.
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

impl Lanes for Simd128 {
    type Bytes = [v128; 4];
    type Ints = [v128; 4];
    type Floats = [v128; 4];
    type Sums = [v128; 4];
    // The first bytes of all floats, then the second bytes, and so on.
    type Table = [v128; 4];
    type Few = Self;

    // Hosts have 16 registers (x86-64) or 32; the sums of a block take 16.
    const STRIP_VECTORS: usize = 1;
    const ROWS: usize = 4;
    const FLOAT_BLOCK: (usize, usize) = (2, 2);
    const GEMM_VECTORS: usize = 1;
    const IS_FETCHED: bool = true;

    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "simd128")]
        #[cfg_attr(feature = "relaxed-simd", target_feature(enable = "relaxed-simd"))]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            kernel.run(const { Simd128::new() })
        }
        run(kernel)
    }

    #[inline(always)]
    fn load_bytes(self, p: &[u8; 64]) -> Self::Bytes {
        unsafe { load4(p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_half(self, p: &[u8; 32]) -> Self::Bytes {
        unsafe {
            let p = p.as_ptr().cast::<v128>();
            [v128_load(p), v128_load(p.add(1)), u8x16_splat(0), u8x16_splat(0)]
        }
    }
    #[inline(always)]
    fn store_bytes(self, p: &mut [u8; 64], bytes: Self::Bytes) {
        unsafe { store4(p.as_mut_ptr().cast(), bytes) }
    }
    #[inline(always)]
    fn splat4(self, p: &[i8; 4]) -> Self::Bytes {
        unsafe { [v128_load32_splat(p.as_ptr().cast()); 4] }
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::Bytes; 16]) -> [Self::Bytes; 16] {
        let mut columns = rows;
        for quarter in 0..4 {
            for four in 0..4 {
                let mut v = [u8x16_splat(0); 4];
                for i in 0..4 {
                    v[i] = rows[4 * four + i][quarter];
                }
                let transposed = transpose4(v);
                for i in 0..4 {
                    columns[4 * quarter + i][four] = transposed[i];
                }
            }
        }
        columns
    }
    #[inline(always)]
    fn quads(self, rows: &[[u8; 16]; 16]) -> [Self::Ints; 4] {
        unsafe {
            let mut words = [[i32x4_splat(0); 4]; 4];
            for four in 0..4 {
                let mut v = [i32x4_splat(0); 4];
                for i in 0..4 {
                    v[i] = v128_load(rows[slot(4 * four + i)].as_ptr().cast());
                }
                let transposed = transpose4(v);
                for i in 0..4 {
                    words[i][four] = transposed[i];
                }
            }
            words
        }
    }
    #[inline(always)]
    fn fields(self, p: &[u8; 32], low: u32, high: u32, mask: u8) -> Self::Bytes {
        unsafe {
            let (first, second) = (v128_load(p.as_ptr().cast()), v128_load(p.as_ptr().add(16).cast()));
            let shifted = [
                u8x16_shr(first, low),
                u8x16_shr(second, low),
                u8x16_shr(first, high),
                u8x16_shr(second, high),
            ];
            quarters_by!(v128_and, shifted, u8x16_splat(mask))
        }
    }
    #[inline(always)]
    fn load_halves(self, p: &[u8; 32], q: &[u8; 32]) -> Self::Bytes {
        unsafe {
            let (p, q) = (p.as_ptr().cast::<v128>(), q.as_ptr().cast::<v128>());
            [v128_load(p), v128_load(p.add(1)), v128_load(q), v128_load(q.add(1))]
        }
    }
    #[inline(always)]
    fn nibbles(self, p: &[u8; 16], q: &[u8; 16]) -> Self::Bytes {
        unsafe {
            let (p, q, mask) = (v128_load(p.as_ptr().cast()), v128_load(q.as_ptr().cast()), u8x16_splat(15));
            [v128_and(p, mask), u8x16_shr(p, 4), v128_and(q, mask), u8x16_shr(q, 4)]
        }
    }
    #[inline(always)]
    fn load_quarters(self, p: [&[u8; 16]; 4]) -> Self::Bytes {
        unsafe {
            [
                v128_load(p[0].as_ptr().cast()),
                v128_load(p[1].as_ptr().cast()),
                v128_load(p[2].as_ptr().cast()),
                v128_load(p[3].as_ptr().cast()),
            ]
        }
    }
    #[inline(always)]
    fn trits(self, bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes {
        unsafe {
            let (low, mut digits) = (u16x8_splat(0xff), bytes);
            for i in 0..4 {
                let powers = v128_and(v128_load(powers.as_ptr().add(16 * i).cast()), low);
                let even = i16x8_mul(v128_and(bytes[i], low), powers);
                let odd = i16x8_mul(v128_andnot(bytes[i], low), powers);
                let rest = v128_or(v128_and(even, low), odd);
                let (a_third, two_thirds) =
                    (u8x16_ge(rest, u8x16_splat(86)), u8x16_ge(rest, u8x16_splat(171)));
                digits[i] = i8x16_neg(i8x16_add(a_third, two_thirds));
            }
            digits
        }
    }
    #[inline(always)]
    fn look_up(self, indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        unsafe { quarters!(u8x16_swizzle, [v128_load(table.as_ptr().cast()); 4], indices) }
    }
    #[inline(always)]
    fn as_bytes(self, ints: Self::Ints) -> Self::Bytes {
        ints
    }
    #[inline(always)]
    fn as_ints(self, bytes: Self::Bytes) -> Self::Ints {
        bytes
    }
    #[inline(always)]
    fn with_high<const SHIFT: u32>(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        let shifted = quarters_by!(u8x16_shl, b, SHIFT);
        quarters!(v128_or, a, shifted)
    }
    #[inline(always)]
    fn with_fifth(self, codes: Self::Bytes, bits: u64) -> Self::Bytes {
        // Byte `i` gets the byte that contains its bit, and keeps that bit.
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
    fn codes<const SHIFT: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        let shifted = quarters_by!(u8x16_shr, bytes, SHIFT);
        quarters_by!(v128_and, shifted, u8x16_splat(3))
    }

    #[inline(always)]
    fn dot(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        quarters!(dot16, acc, codes, acts)
    }
    const ZERO: u8 = 0;
    #[inline(always)]
    fn signed_codes(self, bytes: Self::Bytes) -> Self::Bytes {
        bytes
    }
    #[inline(always)]
    fn dot_signed(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        quarters!(dot_signed16, acc, codes, acts)
    }
    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        [i32x4_splat(0); 4]
    }
    #[inline(always)]
    fn dot_packed(self, sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums {
        let mut sums = sums;
        let codes = [
            self.codes::<0>(packed),
            self.codes::<2>(packed),
            self.codes::<4>(packed),
            self.codes::<6>(packed),
        ];
        for i in 0..4 {
            if cfg!(feature = "relaxed-simd") {
                for (codes, acts) in codes.iter().zip(&acts) {
                    sums[i] = dot16(sums[i], codes[i], acts[i]);
                }
            } else {
                // A code is at most 3, so eight products are within 3072.
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
    fn total(self, sums: Self::Sums) -> i32 {
        self.sum_ints(sums)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        [i32x4_splat(x); 4]
    }
    #[inline(always)]
    fn load_ints(self, p: &[i32; 16]) -> Self::Ints {
        unsafe { load4(p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_ints(self, p: &mut [i32; 16], ints: Self::Ints) {
        unsafe { store4(p.as_mut_ptr().cast(), ints) }
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        quarters!(i32x4_add, a, b)
    }
    #[inline(always)]
    fn load_u8(self, p: &[u8; 16]) -> Self::Ints {
        unsafe {
            let bytes = v128_load(p.as_ptr().cast());
            let words = [u16x8_extend_low_u8x16(bytes), u16x8_extend_high_u8x16(bytes)];
            [
                u32x4_extend_low_u16x8(words[0]),
                u32x4_extend_high_u16x8(words[0]),
                u32x4_extend_low_u16x8(words[1]),
                u32x4_extend_high_u16x8(words[1]),
            ]
        }
    }
    #[inline(always)]
    fn shift_right(self, ints: Self::Ints, n: usize) -> Self::Ints {
        quarters_by!(u32x4_shr, ints, n as u32)
    }
    #[inline(always)]
    fn shift_left(self, ints: Self::Ints, n: usize) -> Self::Ints {
        quarters_by!(i32x4_shl, ints, n as u32)
    }
    #[inline(always)]
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        quarters!(v128_and, a, b)
    }
    #[inline(always)]
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        quarters!(v128_or, a, b)
    }
    #[inline(always)]
    fn sum_ints(self, ints: Self::Ints) -> i32 {
        let four = i32x4_add(i32x4_add(ints[0], ints[1]), i32x4_add(ints[2], ints[3]));
        let two = i32x4_add(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        i32x4_extract_lane::<0>(two) + i32x4_extract_lane::<1>(two)
    }
    #[inline(always)]
    fn sums_of_4(self, vectors: &[Self::Ints; 4]) -> Self::Ints {
        let mut sums = [i32x4_splat(0); 4];
        for quarter in 0..4 {
            let mut v = [i32x4_splat(0); 4];
            for i in 0..4 {
                v[i] = vectors[i][quarter];
            }
            let transposed = transpose4(v);
            sums[quarter] =
                i32x4_add(i32x4_add(transposed[0], transposed[1]), i32x4_add(transposed[2], transposed[3]));
        }
        sums
    }
    #[inline(always)]
    fn halves_to_floats(self, ints: Self::Ints) -> Self::Floats {
        // Only the first four words of eight are used.
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
    fn to_floats(self, ints: Self::Ints) -> Self::Floats {
        [
            f32x4_convert_i32x4(ints[0]),
            f32x4_convert_i32x4(ints[1]),
            f32x4_convert_i32x4(ints[2]),
            f32x4_convert_i32x4(ints[3]),
        ]
    }
    #[inline(always)]
    fn max_magnitude(self, a: Self::Ints, x: Self::Floats) -> Self::Ints {
        let magnitude = [f32x4_abs(x[0]), f32x4_abs(x[1]), f32x4_abs(x[2]), f32x4_abs(x[3])];
        quarters!(i32x4_max, a, magnitude)
    }
    #[inline(always)]
    fn largest(self, ints: Self::Ints) -> i32 {
        let four = i32x4_max(i32x4_max(ints[0], ints[1]), i32x4_max(ints[2], ints[3]));
        let two = i32x4_max(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        i32x4_extract_lane::<0>(two).max(i32x4_extract_lane::<1>(two))
    }
    #[inline(always)]
    fn round(self, x: Self::Floats) -> Self::Ints {
        let round = |x| i32x4_trunc_sat_f32x4(f32x4_nearest(x));
        [round(x[0]), round(x[1]), round(x[2]), round(x[3])]
    }
    #[inline(always)]
    fn store_i8(self, p: &mut [i8; 16], ints: Self::Ints) {
        unsafe {
            let low = i16x8_narrow_i32x4(ints[0], ints[1]);
            let high = i16x8_narrow_i32x4(ints[2], ints[3]);
            v128_store(p.as_mut_ptr().cast(), i8x16_narrow_i16x8(low, high));
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        [f32x4_splat(x); 4]
    }
    #[inline(always)]
    fn load(self, p: &[f32; 16]) -> Self::Floats {
        unsafe { load4(p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, p: &mut [f32; 16], x: Self::Floats) {
        unsafe { store4(p.as_mut_ptr().cast(), x) }
    }
    #[inline(always)]
    fn load_f32(self, p: &[u8; 64]) -> Self::Floats {
        self.load_bytes(p)
    }
    #[inline(always)]
    fn load_f16(self, p: &[u8; 32]) -> Self::Floats {
        unsafe {
            let p = p.as_ptr().cast::<u16>();
            [
                widen_f16(v128_load64_zero(p.cast())),
                widen_f16(v128_load64_zero(p.add(4).cast())),
                widen_f16(v128_load64_zero(p.add(8).cast())),
                widen_f16(v128_load64_zero(p.add(12).cast())),
            ]
        }
    }
    #[inline(always)]
    fn load_bf16(self, p: &[u8; 32]) -> Self::Floats {
        unsafe {
            let p = p.as_ptr().cast::<u16>();
            let halves = [
                u32x4_extend_low_u16x8(v128_load64_zero(p.cast())),
                u32x4_extend_low_u16x8(v128_load64_zero(p.add(4).cast())),
                u32x4_extend_low_u16x8(v128_load64_zero(p.add(8).cast())),
                u32x4_extend_low_u16x8(v128_load64_zero(p.add(12).cast())),
            ];
            quarters_by!(u32x4_shl, halves, 16)
        }
    }
    #[inline(always)]
    fn load_i8(self, p: &[i8; 16]) -> Self::Floats {
        unsafe {
            let bytes = v128_load(p.as_ptr().cast());
            let words = [i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes)];
            self.to_floats([
                i32x4_extend_low_i16x8(words[0]),
                i32x4_extend_high_i16x8(words[0]),
                i32x4_extend_low_i16x8(words[1]),
                i32x4_extend_high_i16x8(words[1]),
            ])
        }
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        quarters!(f32x4_add, a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        quarters!(f32x4_pmin, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        quarters!(f32x4_mul, a, b)
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn fnma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        let product = self.mul(a, b);
        quarters!(f32x4_sub, c, product)
    }
    #[inline(always)]
    fn divide(self, x: Self::Floats, divisor: Self::Floats, _reciprocal: Self::Floats) -> Self::Floats {
        quarters!(f32x4_div, x, divisor)
    }
    #[inline(always)]
    fn fma_one(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn sum(self, x: Self::Floats) -> f32 {
        let four = f32x4_add(f32x4_add(x[0], x[2]), f32x4_add(x[1], x[3]));
        let two = f32x4_add(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
    }

    #[inline(always)]
    fn table(self, p: &[f32; 16]) -> Self::Table {
        let x = self.load(p);
        [byte_of_each!(x, 0), byte_of_each!(x, 1), byte_of_each!(x, 2), byte_of_each!(x, 3)]
    }
    #[inline(always)]
    fn signed(self, p: &[u8; 16], signs: &[u8; 2], part: usize, table: Self::Table) -> Self::Floats {
        unsafe {
            let index = v128_and(u8x16_shr(v128_load(p.as_ptr().cast()), 2 * part as u32), u8x16_splat(3));
            let signs = i64x2_shuffle::<0, 2>(u8x16_splat(signs[0]), u8x16_splat(signs[1]));
            let bits = u8x16(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
            let set = i8x16_eq(v128_and(signs, bits), bits);
            look_up(table, index, v128_and(set, u8x16_splat(0x80)))
        }
    }
    #[inline(always)]
    fn table4(self, p: &[u8; 16], part: usize, table: Self::Table) -> Self::Floats {
        unsafe {
            let index = v128_and(u8x16_shr(v128_load(p.as_ptr().cast()), 4 * part as u32), u8x16_splat(15));
            look_up(table, index, u8x16_splat(0))
        }
    }
    #[inline(always)]
    fn table2(self, p: &[u8; 4], table: Self::Table) -> Self::Floats {
        unsafe {
            // Each byte four times, each copy shifted so that the wanted code is in its low bits.
            let codes = v128_load32_splat(p.as_ptr().cast());
            let codes = i8x16_shuffle::<0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3>(codes, codes);
            let shifted = [codes, u8x16_shr(codes, 2), u8x16_shr(codes, 4), u8x16_shr(codes, 6)];
            let even = i8x16_shuffle::<0, 17, 2, 3, 4, 21, 6, 7, 8, 25, 10, 11, 12, 29, 14, 15>(
                shifted[0], shifted[1],
            );
            let odd = i8x16_shuffle::<0, 1, 2, 19, 4, 5, 6, 23, 8, 9, 10, 27, 12, 13, 14, 31>(
                shifted[2], shifted[3],
            );
            let index = i8x16_shuffle::<0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31>(even, odd);
            look_up(table, v128_and(index, u8x16_splat(3)), u8x16_splat(0))
        }
    }
    #[inline(always)]
    fn add_where(self, bits: &[u8; 2], x: Self::Floats, y: Self::Floats) -> Self::Floats {
        let bits = u32::from(u16::from_le_bytes(*bits));
        let each = u32x4(1, 2, 4, 8);
        let mut sums = x;
        for i in 0..4 {
            let set = i32x4_eq(v128_and(u32x4_splat(bits >> (4 * i)), each), each);
            sums[i] = v128_bitselect(f32x4_add(x[i], y[i]), x[i], set);
        }
        sums
    }

    #[inline(always)]
    fn f16_to_f32(self, bits: u16) -> f32 {
        f32x4_extract_lane::<0>(widen_f16(u16x8_splat(bits)))
    }
    #[inline(always)]
    fn unpack_q6(self, low: &[u8; 64], high: &[u8; 32]) -> [Self::Bytes; 2] {
        unsafe {
            let high = high.as_ptr().cast::<v128>();
            let (low, high) = (self.load_bytes(low), [v128_load(high), v128_load(high.add(1))]);
            // Bits 2 to 5 are the low bits of a weight. Flipping the upper high bit subtracts 32.
            let (four_bits, two_bits, sign_bit) = (u8x16_splat(0x3c), u8x16_splat(0xc0), u8x16_splat(0x80));
            let mut unpacked = [low; 2];
            for i in 0..8 {
                let (low, high) = (low[i % 4], high[i % 2]);
                let low = if i < 4 { u8x16_shl(low, 2) } else { u8x16_shr(low, 2) };
                let high = v128_and(u8x16_shl(high, 6 - 2 * (i as u32 / 2)), two_bits);
                unpacked[i / 4][i % 4] = v128_xor(v128_or(v128_and(low, four_bits), high), sign_bit);
            }
            unpacked
        }
    }
    #[inline(always)]
    fn top_bytes<const J: usize>(self, bytes: Self::Bytes) -> Self::Ints {
        // An index out of range gives a zero.
        let j = 4 * J as u8;
        let order = u8x16(255, 255, 255, j, 255, 255, 255, j + 1, 255, 255, 255, j + 2, 255, 255, 255, j + 3);
        quarters_by!(u8x16_swizzle, bytes, order)
    }
    #[inline(always)]
    fn splat_each4(self, p: &[f32; 4]) -> Self::Floats {
        unsafe {
            let p = p.as_ptr().cast::<u32>();
            [
                v128_load32_splat(p),
                v128_load32_splat(p.add(1)),
                v128_load32_splat(p.add(2)),
                v128_load32_splat(p.add(3)),
            ]
        }
    }

    #[inline(always)]
    fn prefetch_far(self, _: *const u8) {}
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}

/// Loads four consecutive vectors.
///
/// # Safety
/// The pointer is to four vectors.
#[inline(always)]
unsafe fn load4(p: *const v128) -> [v128; 4] {
    // SAFETY: the caller ensures them.
    unsafe { [v128_load(p), v128_load(p.add(1)), v128_load(p.add(2)), v128_load(p.add(3))] }
}

/// Writes four consecutive vectors.
///
/// # Safety
/// There is space for four vectors.
#[inline(always)]
unsafe fn store4(p: *mut v128, x: [v128; 4]) {
    for i in 0..4 {
        // SAFETY: the caller ensures the space.
        unsafe { v128_store(p.add(i), x[i]) };
    }
}

/// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`. Codes are below 128, so sums of two products
/// are within 16 bits, and all hosts give the same result.
#[inline(always)]
#[cfg(feature = "relaxed-simd")]
fn dot16(acc: v128, codes: v128, acts: v128) -> v128 {
    i32x4_relaxed_dot_i8x16_i7x16_add(acts, codes, acc)
}

/// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`. Codes are below 128: valid signed bytes.
#[inline(always)]
#[cfg(not(feature = "relaxed-simd"))]
fn dot16(acc: v128, codes: v128, acts: v128) -> v128 {
    // Even bytes, then odd ones, as words.
    let even = i32x4_dot_i16x8(v128_and(codes, u16x8_splat(0xff)), i16x8_shr(i16x8_shl(acts, 8), 8));
    let odd = i32x4_dot_i16x8(u16x8_shr(codes, 8), i16x8_shr(acts, 8));
    i32x4_add(acc, i32x4_add(even, odd))
}

/// As [`dot16`], for signed bytes.
#[inline(always)]
fn dot_signed16(acc: v128, weights: v128, acts: v128) -> v128 {
    // Even bytes, then odd ones, as words.
    let (left, right) = (i16x8_shl(weights, 8), i16x8_shl(acts, 8));
    let even = i32x4_dot_i16x8(i16x8_shr(left, 8), i16x8_shr(right, 8));
    let odd = i32x4_dot_i16x8(i16x8_shr(weights, 8), i16x8_shr(acts, 8));
    i32x4_add(acc, i32x4_add(even, odd))
}

/// Looks up the floats at 16 indices, and flips the bits of `flips` in their last bytes.
#[inline(always)]
fn look_up(table: [v128; 4], index: v128, flips: v128) -> [v128; 4] {
    let bytes = quarters_by!(u8x16_swizzle, table, index);
    let last = v128_xor(bytes[3], flips);
    let low = [zip_low(bytes[0], bytes[1]), zip_high(bytes[0], bytes[1])];
    let high = [zip_low(bytes[2], last), zip_high(bytes[2], last)];
    [
        i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(low[0], high[0]),
        i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(low[0], high[0]),
        i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(low[1], high[1]),
        i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(low[1], high[1]),
    ]
}

/// Transposes four rows.
#[inline(always)]
fn transpose4(v: [v128; 4]) -> [v128; 4] {
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
fn zip_low(a: v128, b: v128) -> v128 {
    i8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b)
}

#[inline(always)]
fn zip_high(a: v128, b: v128) -> v128 {
    i8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b)
}

/// Converts the first four f16 to floats.
#[inline(always)]
fn widen_f16(halves: v128) -> v128 {
    let words = u32x4_extend_low_u16x8(halves);
    let sign = u32x4_shl(v128_and(words, u32x4_splat(0x8000)), 16);
    let magnitude = u32x4_shl(v128_and(words, u32x4_splat(0x7fff)), 13);
    // Exponents differ by 112, for subnormal numbers as well: the product is exact.
    let float = f32x4_mul(magnitude, f32x4_splat(f32::from_bits(0x7780_0000)));
    // Infinities and NaN.
    let special = v128_and(i32x4_ge(magnitude, u32x4_splat(0x0f80_0000)), u32x4_splat(0x7f80_0000));
    v128_or(v128_or(float, special), sign)
}
