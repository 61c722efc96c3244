//! AVX-512: one register a vector. With VNNI a product of bytes is one instruction; without, three.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

mod sums;

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::lanes::{Kernel, Lanes};
use sums::{sum_each, sums_of_fours};

/// How bytes are multiplied.
pub trait Dot512: Copy + 'static {
    /// As [`Lanes::vectorize`].
    fn vectorize<K: Kernel>(kernel: K) -> K::Out;
    /// As [`Lanes::dot`].
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn dot(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i;
    /// As [`Lanes::ZERO`].
    const ZERO: u8 = 128;
    /// As [`Lanes::dot_signed`].
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        Self::dot(acc, codes, acts)
    }
    /// As [`Lanes::TILE_ROWS`].
    const TILE_ROWS: usize = 0;
    /// As [`Lanes::tiles_begin`].
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn tiles_begin(_rows: usize) {}
    /// As [`Lanes::tile_sums`].
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn tile_sums(_: *const u8, _: *const i8, _: usize, _: usize, _: bool, _: *mut i32) {}
    /// As [`Lanes::tiles_awake`].
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn tiles_awake() {}
    /// As [`Lanes::tiles_end`].
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn tiles_end() {}
}

/// `vpdpbusd`.
///
/// It takes the codes where they stand in their bytes: they count 1, 4, 16 and 64 there, each in a sum of its
/// own. That saves three shifts of eleven operations on two ports, which is what a core needs to keep up with
/// memory.
#[derive(Clone, Copy)]
pub struct Vnni;

impl Dot512 for Vnni {
    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features are those that `Lanes` needs.
            unsafe { kernel.run::<Avx512<Vnni>>() }
        }
        // SAFETY: this table of kernels is handed out only where the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        _mm512_dpbusd_epi32(acc, codes, acts)
    }
}

/// `vpmaddubsw`, `vpmaddwd`, `vpaddd`. A pair of products is at most `2 * 128 * 128` in magnitude, and then
/// negative: it fits 16 bits.
#[derive(Clone, Copy)]
pub struct Madd;

impl Dot512 for Madd {
    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features are those that `Lanes` needs.
            unsafe { kernel.run::<Avx512<Madd>>() }
        }
        // SAFETY: this table of kernels is handed out only where the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        let pairs = _mm512_maddubs_epi16(codes, acts);
        _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
    }

    const ZERO: u8 = 0;

    // The sign goes to the activations, so that a pair is at most `2 * 128 * 127`.
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        let negative = _mm512_movepi8_mask(codes);
        let acts = _mm512_mask_sub_epi8(acts, negative, _mm512_setzero_si512(), acts);
        Self::dot(acc, _mm512_abs_epi8(codes), acts)
    }
}

/// AVX-512 F, BW, VL and DQ.
#[derive(Clone, Copy)]
pub struct Avx512<D>(PhantomData<D>);

// SAFETY: each function is the instruction for what the trait says.
unsafe impl<D: Dot512> Lanes for Avx512<D> {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Sums = [__m512i; 4];
    type Table = __m512;

    // 24 sums, 3 vectors of codes and one of activations: 28 of 32 registers, and 11 loads for 24 products.
    const STRIP_VECTORS: usize = 3;
    const ROWS: usize = 8;
    const FEW_ROWS: usize = 8;
    const FLOAT_BLOCK: (usize, usize) = (3, 8);
    const GEMM_VECTORS: usize = 4;
    const TILE_ROWS: usize = D::TILE_ROWS;

    #[inline(always)]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        D::vectorize(kernel)
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> __m512i {
        _mm512_maskz_loadu_epi64(0x0f, p.cast())
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, bytes: __m512i) {
        _mm512_storeu_si512(p.cast(), bytes);
    }
    #[inline(always)]
    unsafe fn splat4(p: *const i8) -> __m512i {
        _mm512_set1_epi32(p.cast::<i32>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn columns(rows: &[*const u8; 16], whole: bool) -> [__m512i; 16] {
        let mut vectors = [_mm512_setzero_si512(); 16];
        for i in 0..16 {
            vectors[i] = if whole { Self::load_bytes(rows[i]) } else { Self::load_half(rows[i]) };
        }
        Self::turned(vectors)
    }
    #[inline(always)]
    unsafe fn turned(rows: [__m512i; 16]) -> [__m512i; 16] {
        let mut vectors = rows;
        // Columns `c`, `4 + c`, `8 + c` and `12 + c` of four rows, for each `c`: 16 bytes each.
        for four in [0, 4, 8, 12] {
            let [a, b, c, d] = [vectors[four], vectors[four + 1], vectors[four + 2], vectors[four + 3]];
            let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (next_low, next_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            vectors[four] = _mm512_unpacklo_epi64(low, next_low);
            vectors[four + 1] = _mm512_unpackhi_epi64(low, next_low);
            vectors[four + 2] = _mm512_unpacklo_epi64(high, next_high);
            vectors[four + 3] = _mm512_unpackhi_epi64(high, next_high);
        }
        // The same of 16 bytes instead of 4: the even and odd ones of two groups of rows, then of all.
        for c in 0..4 {
            let even = _mm512_shuffle_i32x4::<0x88>(vectors[c], vectors[4 + c]);
            let odd = _mm512_shuffle_i32x4::<0xdd>(vectors[c], vectors[4 + c]);
            let next_even = _mm512_shuffle_i32x4::<0x88>(vectors[8 + c], vectors[12 + c]);
            let next_odd = _mm512_shuffle_i32x4::<0xdd>(vectors[8 + c], vectors[12 + c]);
            vectors[c] = _mm512_shuffle_i32x4::<0x88>(even, next_even);
            vectors[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd, next_odd);
            vectors[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even, next_even);
            vectors[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd, next_odd);
        }
        vectors
    }
    #[inline(always)]
    unsafe fn quads(rows: &[*const u8; 16]) -> [__m512i; 4] {
        let mut v = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            // Rows `i`, `4 + i`, `8 + i` and `12 + i`.
            v[i] = _mm512_castsi128_si512(_mm_loadu_si128(rows[i].cast()));
            v[i] = _mm512_inserti32x4::<1>(v[i], _mm_loadu_si128(rows[4 + i].cast()));
            v[i] = _mm512_inserti32x4::<2>(v[i], _mm_loadu_si128(rows[8 + i].cast()));
            v[i] = _mm512_inserti32x4::<3>(v[i], _mm_loadu_si128(rows[12 + i].cast()));
        }
        let (low, high) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
        let (next_low, next_high) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
        [
            _mm512_unpacklo_epi64(low, next_low),
            _mm512_unpackhi_epi64(low, next_low),
            _mm512_unpacklo_epi64(high, next_high),
            _mm512_unpackhi_epi64(high, next_high),
        ]
    }
    #[inline(always)]
    unsafe fn fields(p: *const u8, low: u32, high: u32, mask: u8) -> __m512i {
        let bytes = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let shifts = _mm512_inserti64x4::<1>(_mm512_set1_epi16(low as i16), _mm256_set1_epi16(high as i16));
        _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts), _mm512_set1_epi8(mask.cast_signed()))
    }
    #[inline(always)]
    unsafe fn load_halves(p: *const u8, q: *const u8) -> __m512i {
        let first = _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
        _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(q.cast()))
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8, q: *const u8) -> __m512i {
        let first = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
        let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(q.cast()));
        let bytes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        let shifts =
            _mm512_broadcast_i64x4(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
        _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts), _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn load_quarters(p: [*const u8; 4]) -> __m512i {
        let bytes = _mm512_castsi128_si512(_mm_loadu_si128(p[0].cast()));
        let bytes = _mm512_inserti32x4::<1>(bytes, _mm_loadu_si128(p[1].cast()));
        let bytes = _mm512_inserti32x4::<2>(bytes, _mm_loadu_si128(p[2].cast()));
        _mm512_inserti32x4::<3>(bytes, _mm_loadu_si128(p[3].cast()))
    }
    #[inline(always)]
    unsafe fn trits(bytes: __m512i, powers: &[u8; 64]) -> __m512i {
        /// `a | b & c`.
        const OR_AND: i32 = 0xf8;
        let low = _mm512_set1_epi16(0xff);
        let powers = _mm512_and_si512(_mm512_loadu_si512(powers.as_ptr().cast()), low);
        let even = _mm512_mullo_epi16(_mm512_and_si512(bytes, low), powers);
        let odd = _mm512_mullo_epi16(_mm512_andnot_si512(low, bytes), powers);
        let rest = _mm512_ternarylogic_epi32::<OR_AND>(odd, even, low);
        let one = _mm512_set1_epi8(1);
        let a_third = _mm512_cmpge_epu8_mask(rest, _mm512_set1_epi8(86));
        let two_thirds = _mm512_cmpge_epu8_mask(rest, _mm512_set1_epi8(171_u8.cast_signed()));
        let digit = _mm512_maskz_mov_epi8(a_third, one);
        _mm512_mask_add_epi8(digit, two_thirds, digit, one)
    }
    #[inline(always)]
    unsafe fn look_up(indices: __m512i, table: &[i8; 16]) -> __m512i {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, indices)
    }
    #[inline(always)]
    unsafe fn as_bytes(ints: __m512i) -> __m512i {
        ints
    }
    #[inline(always)]
    unsafe fn with_high<const SHIFT: u32>(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, _mm512_slli_epi16::<SHIFT>(b))
    }
    #[inline(always)]
    unsafe fn with_fifth(codes: __m512i, bits: u64) -> __m512i {
        _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16))
    }
    #[inline(always)]
    unsafe fn codes<const SHIFT: u32>(bytes: __m512i) -> __m512i {
        _mm512_and_si512(_mm512_srli_epi16::<SHIFT>(bytes), _mm512_set1_epi8(3))
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        D::dot(acc, codes, acts)
    }
    const ZERO: u8 = D::ZERO;
    #[inline(always)]
    unsafe fn signed_codes(bytes: __m512i) -> __m512i {
        _mm512_xor_si512(bytes, _mm512_set1_epi8(D::ZERO.cast_signed()))
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        D::dot_signed(acc, codes, acts)
    }

    #[inline(always)]
    unsafe fn tiles_begin(rows: usize) {
        D::tiles_begin(rows);
    }
    #[inline(always)]
    unsafe fn tile_sums(
        codes: *const u8,
        acts: *const i8,
        stride: usize,
        quads: usize,
        go_on: bool,
        sums: *mut i32,
    ) {
        D::tile_sums(codes, acts, stride, quads, go_on, sums);
    }
    #[inline(always)]
    unsafe fn tiles_awake() {
        D::tiles_awake();
    }
    #[inline(always)]
    unsafe fn tiles_end() {
        D::tiles_end();
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        [_mm512_setzero_si512(); 4]
    }
    #[inline(always)]
    unsafe fn dot_packed(sums: Self::Sums, packed: __m512i, acts: [__m512i; 4]) -> Self::Sums {
        [
            D::dot(sums[0], _mm512_and_si512(packed, _mm512_set1_epi8(0x03)), acts[0]),
            D::dot(sums[1], _mm512_and_si512(packed, _mm512_set1_epi8(0x0c)), acts[1]),
            D::dot(sums[2], _mm512_and_si512(packed, _mm512_set1_epi8(0x30)), acts[2]),
            D::dot(sums[3], _mm512_and_si512(packed, _mm512_set1_epi8(0xc0_u8 as i8)), acts[3]),
        ]
    }
    #[inline(always)]
    unsafe fn total(sums: Self::Sums) -> i32 {
        let low = _mm512_add_epi32(sums[0], _mm512_srai_epi32::<2>(sums[1]));
        let high = _mm512_add_epi32(_mm512_srai_epi32::<4>(sums[2]), _mm512_srai_epi32::<6>(sums[3]));
        _mm512_reduce_add_epi32(_mm512_add_epi32(low, high))
    }

    #[inline(always)]
    unsafe fn splat_int(x: i32) -> __m512i {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn store_ints(p: *mut i32, ints: __m512i) {
        _mm512_storeu_si512(p.cast(), ints);
    }
    #[inline(always)]
    unsafe fn add_ints(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn shift_right(ints: __m512i, n: usize) -> __m512i {
        _mm512_srl_epi32(ints, _mm_cvtsi32_si128(n as i32))
    }
    #[inline(always)]
    unsafe fn shift_left(ints: __m512i, n: usize) -> __m512i {
        _mm512_sll_epi32(ints, _mm_cvtsi32_si128(n as i32))
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn sum_ints(ints: __m512i) -> i32 {
        _mm512_reduce_add_epi32(ints)
    }
    #[inline(always)]
    unsafe fn sum_ints_each(vectors: &[__m512i; 16]) -> __m512i {
        sum_each(
            *vectors,
            #[inline(always)]
            |a, b| _mm512_add_epi32(a, b),
        )
    }
    #[inline(always)]
    unsafe fn sums_of_8(vectors: &[__m512i; 16]) -> [__m512i; 2] {
        let v = sums_of_fours(vectors);
        let mut eight = [v[0]; 2];
        for i in 0..2 {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            eight[i] = _mm512_add_epi32(even, odd);
        }
        [_mm512_shuffle_i32x4::<0x88>(eight[0], eight[1]), _mm512_shuffle_i32x4::<0xdd>(eight[0], eight[1])]
    }
    #[inline(always)]
    unsafe fn sums_of_4(vectors: &[__m512i; 16]) -> [__m512i; 4] {
        let v = sums_of_fours(vectors);
        let (even, odd) =
            (_mm512_shuffle_i32x4::<0x88>(v[0], v[1]), _mm512_shuffle_i32x4::<0xdd>(v[0], v[1]));
        let (next_even, next_odd) =
            (_mm512_shuffle_i32x4::<0x88>(v[2], v[3]), _mm512_shuffle_i32x4::<0xdd>(v[2], v[3]));
        [
            _mm512_shuffle_i32x4::<0x88>(even, next_even),
            _mm512_shuffle_i32x4::<0x88>(odd, next_odd),
            _mm512_shuffle_i32x4::<0xdd>(even, next_even),
            _mm512_shuffle_i32x4::<0xdd>(odd, next_odd),
        ]
    }
    #[inline(always)]
    unsafe fn halves_to_floats(ints: __m512i) -> __m512 {
        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(ints))
    }
    #[inline(always)]
    unsafe fn to_floats(ints: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(ints)
    }
    #[inline(always)]
    unsafe fn max_magnitude(a: __m512i, x: __m512) -> __m512i {
        _mm512_max_epi32(a, _mm512_castps_si512(_mm512_abs_ps(x)))
    }
    #[inline(always)]
    unsafe fn largest(ints: __m512i) -> i32 {
        _mm512_reduce_max_epi32(ints)
    }
    #[inline(always)]
    unsafe fn round(x: __m512) -> __m512i {
        _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, ints: __m512i) {
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(ints));
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        _mm512_storeu_ps(p, x);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        let low = _mm512_castps512_ps256(x);
        super::avx2::sum8(_mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(x)))
    }
    #[inline(always)]
    unsafe fn sum_each(vectors: *const f32) -> __m512 {
        let mut ints = [_mm512_setzero_si512(); 16];
        for i in 0..16 {
            ints[i] = _mm512_castps_si512(_mm512_loadu_ps(vectors.add(16 * i)));
        }
        _mm512_castsi512_ps(sum_each(
            ints,
            #[inline(always)]
            |a, b| _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b))),
        ))
    }

    #[inline(always)]
    unsafe fn table(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn signed(p: *const u8, signs: *const u8, part: usize, table: __m512) -> __m512 {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        // Four bits of an index count; the table repeats, so the upper two may be anything.
        let index = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(2 * part as i32));
        let magnitudes = _mm512_permutexvar_ps(index, table);
        let negative = signs.add(2 * part).cast::<__mmask16>().read_unaligned();
        _mm512_mask_xor_ps(magnitudes, negative, magnitudes, _mm512_set1_ps(-0.0))
    }
    #[inline(always)]
    unsafe fn table4(p: *const u8, part: usize, table: __m512) -> __m512 {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        _mm512_permutexvar_ps(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(4 * part as i32)), table)
    }
    #[inline(always)]
    unsafe fn table2(p: *const u8, table: __m512) -> __m512 {
        let places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let codes = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
        // Four bits of an index count; the table repeats, so the upper two may be anything.
        _mm512_permutexvar_ps(_mm512_srlv_epi32(codes, places), table)
    }
    #[inline(always)]
    unsafe fn add_where(bits: *const u8, x: __m512, y: __m512) -> __m512 {
        _mm512_mask_add_ps(x, bits.cast::<__mmask16>().read_unaligned(), x, y)
    }

    #[inline(always)]
    unsafe fn f16_to_f32(bits: u16) -> f32 {
        super::avx2::f16_to_f32(bits)
    }
    #[inline(always)]
    unsafe fn unpack_q6(low: *const u8, high: *const u8) -> [__m512i; 2] {
        /// `a & b ^ c`.
        const AND_XOR: i32 = 0x6a;
        let low = _mm512_loadu_si512(low.cast());
        let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(high.cast()));
        // Bits 2 to 5 are the low ones; of the high ones, the upper is turned: that subtracts 32.
        let (four_bits, turned) = (_mm512_set1_epi8(0x3c), _mm512_set1_epi8(i8::MIN));
        let first = _mm512_ternarylogic_epi32::<AND_XOR>(_mm512_slli_epi16::<2>(low), four_bits, turned);
        let second = _mm512_ternarylogic_epi32::<AND_XOR>(_mm512_srli_epi16::<2>(low), four_bits, turned);
        let two_bits = _mm512_set1_epi8(0xc0_u8.cast_signed());
        let left = _mm512_inserti64x4::<1>(_mm512_set1_epi16(6), _mm256_set1_epi16(4));
        let high_of_first = _mm512_sllv_epi16(high, left);
        let left = _mm512_inserti64x4::<1>(_mm512_set1_epi16(2), _mm256_setzero_si256());
        let high_of_second = _mm512_sllv_epi16(high, left);
        [
            _mm512_ternarylogic_epi32::<AND_XOR>(high_of_first, two_bits, first),
            _mm512_ternarylogic_epi32::<AND_XOR>(high_of_second, two_bits, second),
        ]
    }
    #[inline(always)]
    unsafe fn top_bytes<const J: usize>(bytes: __m512i) -> __m512i {
        _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(super::avx2::top_bytes::<J>()))
    }
    #[inline(always)]
    unsafe fn splat_each4(p: *const f32) -> __m512 {
        let each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        _mm512_permutexvar_ps(each, _mm512_castps128_ps512(_mm_loadu_ps(p)))
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
