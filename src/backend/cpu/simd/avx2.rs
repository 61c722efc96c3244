//! AVX2 with FMA and F16C: two registers a vector.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::lanes::{Kernel, Lanes};

/// How bytes are multiplied.
pub trait Dot256: Copy + 'static {
    /// As [`Lanes::vectorize`].
    fn vectorize<K: Kernel>(kernel: K) -> K::Out;
    /// As [`Lanes::dot4`], of half the bytes.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn dot4(acc: __m256i, codes: [__m256i; 4], acts: [__m256i; 4]) -> __m256i;
    /// As [`Lanes::dot`], of half the bytes.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn dot(acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i;
}

/// `vpmaddubsw` and `vpmaddwd`. A pair of products is at most `2 * 3 * 128 = 768`, so four of them fit 16
/// bits.
#[derive(Clone, Copy)]
pub struct Madd;

impl Dot256 for Madd {
    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features are those that `Lanes` needs.
            unsafe { kernel.run::<Avx2<Madd>>() }
        }
        // SAFETY: this table of kernels is handed out only where the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    unsafe fn dot4(acc: __m256i, codes: [__m256i; 4], acts: [__m256i; 4]) -> __m256i {
        let mut sum = _mm256_maddubs_epi16(codes[0], acts[0]);
        for i in 1..4 {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[i], acts[i]));
        }
        _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)))
    }

    #[inline(always)]
    unsafe fn dot(acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        let pairs = _mm256_maddubs_epi16(codes, acts);
        _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2<D>(PhantomData<D>);

/// Applies an operation to both halves.
macro_rules! halves {
    ($op:path, $($arg:ident),+) => {
        [$op($($arg[0]),+), $op($($arg[1]),+)]
    };
}

// SAFETY: each function is two of the instruction for what the trait says.
unsafe impl<D: Dot256> Lanes for Avx2<D> {
    type Bytes = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    type Sums = [__m256i; 2];
    type Table = [__m256; 2];

    // 8 registers of sums; the others hold codes, activations and what lies between.
    const STRIP_VECTORS: usize = 1;
    const ROWS: usize = 4;
    const FLOAT_BLOCK: (usize, usize) = (2, 2);
    const GEMM_VECTORS: usize = 1;

    #[inline(always)]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        D::vectorize(kernel)
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> Self::Bytes {
        [_mm256_loadu_si256(p.cast()), _mm256_setzero_si256()]
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, bytes: Self::Bytes) {
        _mm256_storeu_si256(p.cast(), bytes[0]);
        _mm256_storeu_si256(p.add(32).cast(), bytes[1]);
    }
    #[inline(always)]
    unsafe fn splat4(p: *const i8) -> Self::Bytes {
        [_mm256_set1_epi32(p.cast::<i32>().read_unaligned()); 2]
    }
    #[inline(always)]
    unsafe fn codes<const SHIFT: u32>(bytes: Self::Bytes) -> Self::Bytes {
        let shift = _mm_cvtsi32_si128(SHIFT as i32);
        let (shift, three) = ([shift; 2], [_mm256_set1_epi8(3); 2]);
        let shifted = halves!(_mm256_srl_epi16, bytes, shift);
        halves!(_mm256_and_si256, shifted, three)
    }

    #[inline(always)]
    unsafe fn dot(acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        halves!(D::dot, acc, codes, acts)
    }
    #[inline(always)]
    unsafe fn dot4(acc: Self::Ints, codes: [Self::Bytes; 4], acts: [Self::Bytes; 4]) -> Self::Ints {
        let [a, b, c, d] = codes;
        let [e, f, g, h] = acts;
        [
            D::dot4(acc[0], [a[0], b[0], c[0], d[0]], [e[0], f[0], g[0], h[0]]),
            D::dot4(acc[1], [a[1], b[1], c[1], d[1]], [e[1], f[1], g[1], h[1]]),
        ]
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        [_mm256_setzero_si256(); 2]
    }
    #[inline(always)]
    unsafe fn dot_packed(sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums {
        let codes = [
            Self::codes::<0>(packed),
            Self::codes::<2>(packed),
            Self::codes::<4>(packed),
            Self::codes::<6>(packed),
        ];
        Self::dot4(sums, codes, acts)
    }
    #[inline(always)]
    unsafe fn total(sums: Self::Sums) -> i32 {
        Self::sum_ints(sums)
    }

    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        [_mm256_set1_epi32(x); 2]
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
        halves!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::Ints {
        let halves = [_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast())];
        halves!(_mm256_cvtepu8_epi32, halves)
    }
    #[inline(always)]
    unsafe fn shift_right(ints: Self::Ints, n: usize) -> Self::Ints {
        let n = [_mm_cvtsi32_si128(n as i32); 2];
        halves!(_mm256_srl_epi32, ints, n)
    }
    #[inline(always)]
    unsafe fn shift_left(ints: Self::Ints, n: usize) -> Self::Ints {
        let n = [_mm_cvtsi32_si128(n as i32); 2];
        halves!(_mm256_sll_epi32, ints, n)
    }
    #[inline(always)]
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        halves!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        halves!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    unsafe fn sum_ints(ints: Self::Ints) -> i32 {
        let eight = _mm256_add_epi32(ints[0], ints[1]);
        let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b_01_00_11_10>(four));
        _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b_10_11_00_01>(two)))
    }
    #[inline(always)]
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats {
        halves!(_mm256_cvtepi32_ps, ints)
    }
    #[inline(always)]
    unsafe fn max_magnitude(a: Self::Ints, x: Self::Floats) -> Self::Ints {
        let (x, mask) = (halves!(_mm256_castps_si256, x), [_mm256_set1_epi32(i32::MAX); 2]);
        let magnitude = halves!(_mm256_and_si256, x, mask);
        halves!(_mm256_max_epi32, a, magnitude)
    }
    #[inline(always)]
    unsafe fn largest(ints: Self::Ints) -> i32 {
        let eight = _mm256_max_epi32(ints[0], ints[1]);
        let four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
        let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b_01_00_11_10>(four));
        _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b_10_11_00_01>(two)))
    }
    #[inline(always)]
    unsafe fn round(x: Self::Floats) -> Self::Ints {
        let rounded = halves!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>, x);
        halves!(_mm256_cvtps_epi32, rounded)
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, ints: Self::Ints) {
        // Packing works within 128 bits: the words come out as 0 8 4 12 blocks of four and are put in order.
        let words = _mm256_packs_epi32(ints[0], ints[1]);
        let bytes = _mm256_packs_epi16(words, words);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
        let bytes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(bytes));
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::Floats {
        [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::Floats) {
        _mm256_storeu_ps(p, x[0]);
        _mm256_storeu_ps(p.add(8), x[1]);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::Floats {
        let halves = [_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast())];
        halves!(_mm256_cvtph_ps, halves)
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::Floats {
        let halves = [_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast())];
        let wide = halves!(_mm256_cvtepu16_epi32, halves);
        let bits = halves!(_mm256_slli_epi32::<16>, wide);
        halves!(_mm256_castsi256_ps, bits)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::Floats {
        let halves = [_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast())];
        let wide = halves!(_mm256_cvtepi8_epi32, halves);
        halves!(_mm256_cvtepi32_ps, wide)
    }
    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        halves!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        halves!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        halves!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        halves!(_mm256_fnmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn sum(x: Self::Floats) -> f32 {
        sum8(_mm256_add_ps(x[0], x[1]))
    }

    #[inline(always)]
    unsafe fn table(p: *const f32) -> Self::Table {
        Self::load(p)
    }
    #[inline(always)]
    unsafe fn signed(p: *const u8, signs: *const u8, part: usize, table: Self::Table) -> Self::Floats {
        let shift = _mm_cvtsi32_si128(2 * part as i32);
        // Moves the bit of each lane to where a float has its sign.
        let left = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
        let mut values = table;
        for i in 0..2 {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8 * i).cast()));
            // Three bits of an index count; the table repeats, so the upper one may be anything.
            let magnitudes = _mm256_permutevar8x32_ps(table[0], _mm256_srl_epi32(bytes, shift));
            let negative = _mm256_sllv_epi32(_mm256_set1_epi32(i32::from(*signs.add(2 * part + i))), left);
            let negative = _mm256_and_ps(_mm256_castsi256_ps(negative), _mm256_set1_ps(-0.0));
            values[i] = _mm256_xor_ps(magnitudes, negative);
        }
        values
    }
    #[inline(always)]
    unsafe fn table4(p: *const u8, part: usize, table: Self::Table) -> Self::Floats {
        let shift = _mm_cvtsi32_si128(4 * part as i32);
        let mut values = table;
        for i in 0..2 {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8 * i).cast()));
            let index = _mm256_srl_epi32(bytes, shift);
            let (low, high) =
                (_mm256_permutevar8x32_ps(table[0], index), _mm256_permutevar8x32_ps(table[1], index));
            // The fourth bit of an index says which half of the table it means.
            let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
            values[i] = _mm256_blendv_ps(low, high, upper);
        }
        values
    }
    #[inline(always)]
    unsafe fn table2(p: *const u8, table: Self::Table) -> Self::Floats {
        let places = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
        let mut values = table;
        for i in 0..2 {
            let codes = _mm256_set1_epi32(i32::from(p.add(2 * i).cast::<u16>().read_unaligned()));
            // Three bits of an index count; the table repeats, so the upper one may be anything.
            values[i] = _mm256_permutevar8x32_ps(table[0], _mm256_srlv_epi32(codes, places));
        }
        values
    }
    #[inline(always)]
    unsafe fn add_where(bits: *const u8, x: Self::Floats, y: Self::Floats) -> Self::Floats {
        let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let mut sums = x;
        for i in 0..2 {
            let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(*bits.add(i))), each);
            let set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each));
            sums[i] = _mm256_blendv_ps(x[i], _mm256_add_ps(x[i], y[i]), set);
        }
        sums
    }

    #[inline(always)]
    unsafe fn f16_to_f32(bits: u16) -> f32 {
        f16_to_f32(bits)
    }
    #[inline(always)]
    unsafe fn unpack_q6(low: *const u8, high: *const u8) -> [Self::Bytes; 2] {
        let low = Self::load_bytes(low);
        let high = _mm256_loadu_si256(high.cast());
        // Bits 2 to 5 are the low ones; of the high ones, the upper is turned: that subtracts 32.
        let (four_bits, two_bits) = (_mm256_set1_epi8(0x3c), _mm256_set1_epi8(0xc0_u8.cast_signed()));
        let mut quarters = [
            (_mm256_slli_epi16::<2>(low[0]), _mm256_slli_epi16::<6>(high)),
            (_mm256_slli_epi16::<2>(low[1]), _mm256_slli_epi16::<4>(high)),
            (_mm256_srli_epi16::<2>(low[0]), _mm256_slli_epi16::<2>(high)),
            (_mm256_srli_epi16::<2>(low[1]), high),
        ];
        for i in 0..4 {
            let (low, high) = quarters[i];
            let bits = _mm256_or_si256(_mm256_and_si256(low, four_bits), _mm256_and_si256(high, two_bits));
            quarters[i].0 = _mm256_xor_si256(bits, _mm256_set1_epi8(i8::MIN));
        }
        [[quarters[0].0, quarters[1].0], [quarters[2].0, quarters[3].0]]
    }
    #[inline(always)]
    unsafe fn top_bytes<const J: usize>(bytes: Self::Bytes) -> Self::Ints {
        let order = [_mm256_broadcastsi128_si256(top_bytes::<J>()); 2];
        halves!(_mm256_shuffle_epi8, bytes, order)
    }
    #[inline(always)]
    unsafe fn splat_each4(p: *const f32) -> Self::Floats {
        let four = |i: usize| _mm_set1_ps(*p.add(i));
        [_mm256_set_m128(four(1), four(0)), _mm256_set_m128(four(3), four(2))]
    }

    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}

/// Sum of 8 floats: 4, 2 and 1 apart.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
pub unsafe fn sum8(x: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The order of [`Lanes::top_bytes`] within 16 bytes; a negative index is a zero.
///
/// # Safety
/// The processor has SSE2.
#[inline(always)]
pub unsafe fn top_bytes<const J: usize>() -> __m128i {
    let j = 4 * J as i8;
    _mm_setr_epi8(-1, -1, -1, j, -1, -1, -1, j + 1, -1, -1, -1, j + 2, -1, -1, -1, j + 3)
}

/// A f16 as f32.
///
/// # Safety
/// The processor has F16C.
#[inline(always)]
pub unsafe fn f16_to_f32(bits: u16) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}
