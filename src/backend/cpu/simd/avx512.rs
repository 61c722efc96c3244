//! AVX-512: one register per vector. With VNNI a byte product is one instruction; without it, three.
#![allow(unsafe_code)]
// SAFETY, unless a block states otherwise: a value of the set proves that the processor has its instructions,
// and a reference to an array covers the elements that are read or written.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2::{self, Avx2};
use super::lanes::{Kernel, Lanes, array};

/// Byte products.
pub trait Dot512: Copy + 'static {
    /// Byte products of [`Lanes::Few`].
    type Few: Dot512;
    /// As [`Lanes::vectorize`].
    fn vectorize<K: Kernel>(kernel: K) -> K::Out;
    /// As [`Lanes::dot`].
    fn dot(set: Avx512<Self>, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i;
    /// As [`Lanes::ZERO`].
    const ZERO: u8 = 128;
    /// As [`Lanes::dot_signed`].
    #[inline(always)]
    fn dot_signed(set: Avx512<Self>, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        Self::dot(set, acc, codes, acts)
    }
    /// As [`Lanes::TILE_ROWS`].
    const TILE_ROWS: usize = 0;
    /// As [`Lanes::tiles_begin`].
    ///
    /// # Safety
    /// As there.
    unsafe fn tiles_begin(_: Avx512<Self>, _rows: usize) {}
    /// As [`Lanes::tile_sums`].
    ///
    /// # Safety
    /// As there.
    unsafe fn tile_sums(
        _: Avx512<Self>,
        _: *const u8,
        _: *const i8,
        _: usize,
        _: usize,
        _: bool,
        _: *mut i32,
    ) {
    }
    /// As [`Lanes::tiles_awake`].
    ///
    /// # Safety
    /// As there.
    unsafe fn tiles_awake(_: Avx512<Self>) {}
    /// As [`Lanes::tiles_end`].
    fn tiles_end(_: Avx512<Self>) {}
}

/// `vpdpbusd`.
///
/// [`Lanes::dot_packed`] leaves the codes at their place in the byte: there they are 1, 4, 16 and 64 times as
/// large, and each place has a sum of its own. That saves three shifts of eleven operations on two ports,
/// which a core needs to keep up with memory.
#[derive(Clone, Copy)]
pub struct Vnni;

impl Dot512 for Vnni {
    type Few = Self;

    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features of this function are those of the set.
            kernel.run(const { unsafe { Avx512::<Vnni>::new() } })
        }
        // SAFETY: this table of kernels is used only if the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn dot(_: Avx512<Self>, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, acts) }
    }
}

/// `vpmaddubsw`, `vpmaddwd`, `vpaddd`. A pair of products is at most `2 * 128 * 128` in magnitude, and is
/// negative in that case: it fits in 16 bits.
#[derive(Clone, Copy)]
pub struct Madd;

impl Dot512 for Madd {
    type Few = Self;

    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features of this function are those of the set.
            kernel.run(const { unsafe { Avx512::<Madd>::new() } })
        }
        // SAFETY: this table of kernels is used only if the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn dot(_: Avx512<Self>, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        unsafe {
            let pairs = _mm512_maddubs_epi16(codes, acts);
            _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }

    const ZERO: u8 = 0;

    // The sign is applied to the activations, so that a pair is at most `2 * 128 * 127`.
    #[inline(always)]
    fn dot_signed(set: Avx512<Self>, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        unsafe {
            let negative = _mm512_movepi8_mask(codes);
            let acts = _mm512_mask_sub_epi8(acts, negative, _mm512_setzero_si512(), acts);
            Self::dot(set, acc, _mm512_abs_epi8(codes), acts)
        }
    }
}

/// AVX-512 F, BW, VL and DQ.
#[derive(Clone, Copy)]
pub struct Avx512<D>(PhantomData<D>);

impl<D: Dot512> Avx512<D> {
    /// Proof that the processor has the set. Kernels take it as a constant: a call here could unwind, and
    /// their arguments would be copied for that.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ, AVX2, FMA, F16C and the instructions of `D`.
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// The AVX2 set, which every such processor also has.
    #[inline(always)]
    fn avx2(self) -> Avx2<avx2::Madd> {
        const { unsafe { Avx2::new() } }
    }

    /// Sum of each of 16 vectors: lanes 8 apart are added, then 4, 2 and 1 apart, of 16, 8, 4 and 2 vectors
    /// at a time.
    #[inline(always)]
    fn sum_by(self, vectors: [__m512i; 16], add: impl Fn(__m512i, __m512i) -> __m512i) -> __m512i {
        unsafe {
            // Input order for which the steps below produce the sums in order.
            const ORDER: [usize; 16] = [0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15];
            let mut v = vectors;
            for i in 0..16 {
                v[i] = vectors[ORDER[i]];
            }
            for i in 0..8 {
                let (a, b) = (v[i], v[8 + i]);
                v[i] = add(_mm512_shuffle_i64x2::<0x44>(a, b), _mm512_shuffle_i64x2::<0xee>(a, b));
            }
            for i in 0..4 {
                let (a, b) = (v[i], v[4 + i]);
                v[i] = add(_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0xdd>(a, b));
            }
            for i in 0..2 {
                let (a, b) = (v[i], v[2 + i]);
                v[i] = add(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            }
            add(_mm512_unpacklo_epi64(v[0], v[1]), _mm512_unpackhi_epi64(v[0], v[1]))
        }
    }
}

impl<D: Dot512> Lanes for Avx512<D> {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Sums = [__m512i; 4];
    type Table = __m512;
    type Few = Avx512<D::Few>;

    // 24 sums, 3 vectors of codes and one of activations: 28 of 32 registers, and 11 loads for 24 products.
    const STRIP_VECTORS: usize = 3;
    const ROWS: usize = 8;
    const FEW_ROWS: usize = 8;
    const FLOAT_BLOCK: (usize, usize) = (3, 8);
    const GEMM_VECTORS: usize = 4;
    const IS_512: bool = true;
    const TILE_ROWS: usize = D::TILE_ROWS;

    #[inline(always)]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        D::vectorize(kernel)
    }

    #[inline(always)]
    fn load_bytes(self, p: &[u8; 64]) -> __m512i {
        unsafe { _mm512_loadu_si512(p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_half(self, p: &[u8; 32]) -> __m512i {
        unsafe { _mm512_maskz_loadu_epi64(0x0f, p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_bytes(self, p: &mut [u8; 64], bytes: __m512i) {
        unsafe {
            _mm512_storeu_si512(p.as_mut_ptr().cast(), bytes);
        }
    }
    #[inline(always)]
    fn splat4(self, p: &[i8; 4]) -> __m512i {
        unsafe { _mm512_set1_epi32(p.as_ptr().cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn columns(self, rows: &[*const u8; 16], whole: bool) -> [__m512i; 16] {
        let mut vectors = [self.splat_int(0); 16];
        for i in 0..16 {
            // SAFETY: the caller ensures 64 bytes of each row, or 32.
            vectors[i] = unsafe {
                if whole { self.load_bytes(array(rows[i])) } else { self.load_half(array(rows[i])) }
            };
        }
        self.transpose(vectors)
    }
    #[inline(always)]
    fn transpose(self, rows: [__m512i; 16]) -> [__m512i; 16] {
        unsafe {
            let mut vectors = rows;
            // Columns `c`, `4 + c`, `8 + c` and `12 + c` of four rows for each `c`, 4 bytes of each row.
            for four in [0, 4, 8, 12] {
                let [a, b, c, d] = [vectors[four], vectors[four + 1], vectors[four + 2], vectors[four + 3]];
                let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let (next_low, next_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                vectors[four] = _mm512_unpacklo_epi64(low, next_low);
                vectors[four + 1] = _mm512_unpackhi_epi64(low, next_low);
                vectors[four + 2] = _mm512_unpacklo_epi64(high, next_high);
                vectors[four + 3] = _mm512_unpackhi_epi64(high, next_high);
            }
            // The same with units of 16 bytes: the even and odd ones of two groups of rows, then of all.
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
    }
    #[inline(always)]
    fn quads(self, rows: &[[u8; 16]; 16]) -> [__m512i; 4] {
        unsafe {
            let mut v = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                // Rows `i`, `4 + i`, `8 + i` and `12 + i`.
                v[i] = _mm512_loadu_si512(rows.as_ptr().add(4 * i).cast());
            }
            let (low, high) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
            let (next_low, next_high) =
                (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
            [
                _mm512_unpacklo_epi64(low, next_low),
                _mm512_unpackhi_epi64(low, next_low),
                _mm512_unpacklo_epi64(high, next_high),
                _mm512_unpackhi_epi64(high, next_high),
            ]
        }
    }
    #[inline(always)]
    fn fields(self, p: &[u8; 32], low: u32, high: u32, mask: u8) -> __m512i {
        unsafe {
            let bytes = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.as_ptr().cast()));
            let shifts =
                _mm512_inserti64x4::<1>(_mm512_set1_epi16(low as i16), _mm256_set1_epi16(high as i16));
            _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts), _mm512_set1_epi8(mask.cast_signed()))
        }
    }
    #[inline(always)]
    fn load_halves(self, p: &[u8; 32], q: &[u8; 32]) -> __m512i {
        unsafe {
            let first = _mm512_castsi256_si512(_mm256_loadu_si256(p.as_ptr().cast()));
            _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(q.as_ptr().cast()))
        }
    }
    #[inline(always)]
    fn nibbles(self, p: &[u8; 16], q: &[u8; 16]) -> __m512i {
        unsafe {
            let first = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.as_ptr().cast()));
            let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(q.as_ptr().cast()));
            let bytes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
            let shifts =
                _mm512_broadcast_i64x4(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
            _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts), _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    fn load_quarters(self, p: [&[u8; 16]; 4]) -> __m512i {
        unsafe {
            let bytes = _mm512_castsi128_si512(_mm_loadu_si128(p[0].as_ptr().cast()));
            let bytes = _mm512_inserti32x4::<1>(bytes, _mm_loadu_si128(p[1].as_ptr().cast()));
            let bytes = _mm512_inserti32x4::<2>(bytes, _mm_loadu_si128(p[2].as_ptr().cast()));
            _mm512_inserti32x4::<3>(bytes, _mm_loadu_si128(p[3].as_ptr().cast()))
        }
    }
    #[inline(always)]
    fn trits(self, bytes: __m512i, powers: &[u8; 64]) -> __m512i {
        unsafe {
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
    }
    #[inline(always)]
    fn look_up(self, indices: __m512i, table: &[i8; 16]) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }
    #[inline(always)]
    fn as_bytes(self, ints: __m512i) -> __m512i {
        ints
    }
    #[inline(always)]
    fn as_ints(self, bytes: __m512i) -> __m512i {
        bytes
    }
    #[inline(always)]
    fn with_high<const SHIFT: u32>(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, _mm512_slli_epi16::<SHIFT>(b)) }
    }
    #[inline(always)]
    fn with_fifth(self, codes: __m512i, bits: u64) -> __m512i {
        unsafe { _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16)) }
    }
    #[inline(always)]
    fn codes<const SHIFT: u32>(self, bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<SHIFT>(bytes), _mm512_set1_epi8(3)) }
    }

    #[inline(always)]
    fn dot(self, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        D::dot(self, acc, codes, acts)
    }
    const ZERO: u8 = D::ZERO;
    #[inline(always)]
    fn signed_codes(self, bytes: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(bytes, _mm512_set1_epi8(D::ZERO.cast_signed())) }
    }
    #[inline(always)]
    fn dot_signed(self, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        D::dot_signed(self, acc, codes, acts)
    }

    #[inline(always)]
    unsafe fn tiles_begin(self, rows: usize) {
        // SAFETY: the contract is the same.
        unsafe { D::tiles_begin(self, rows) };
    }
    #[inline(always)]
    unsafe fn tile_sums(
        self,
        codes: *const u8,
        acts: *const i8,
        stride: usize,
        quads: usize,
        go_on: bool,
        sums: *mut i32,
    ) {
        // SAFETY: the contract is the same.
        unsafe { D::tile_sums(self, codes, acts, stride, quads, go_on, sums) };
    }
    #[inline(always)]
    unsafe fn tiles_awake(self) {
        // SAFETY: the contract is the same.
        unsafe { D::tiles_awake(self) };
    }
    #[inline(always)]
    fn tiles_end(self) {
        D::tiles_end(self);
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        unsafe { [_mm512_setzero_si512(); 4] }
    }
    #[inline(always)]
    fn dot_packed(self, sums: Self::Sums, packed: __m512i, acts: [__m512i; 4]) -> Self::Sums {
        unsafe {
            [
                D::dot(self, sums[0], _mm512_and_si512(packed, _mm512_set1_epi8(0x03)), acts[0]),
                D::dot(self, sums[1], _mm512_and_si512(packed, _mm512_set1_epi8(0x0c)), acts[1]),
                D::dot(self, sums[2], _mm512_and_si512(packed, _mm512_set1_epi8(0x30)), acts[2]),
                D::dot(self, sums[3], _mm512_and_si512(packed, _mm512_set1_epi8(0xc0_u8 as i8)), acts[3]),
            ]
        }
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        unsafe {
            let low = _mm512_add_epi32(sums[0], _mm512_srai_epi32::<2>(sums[1]));
            let high = _mm512_add_epi32(_mm512_srai_epi32::<4>(sums[2]), _mm512_srai_epi32::<6>(sums[3]));
            _mm512_reduce_add_epi32(_mm512_add_epi32(low, high))
        }
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn load_ints(self, p: &[i32; 16]) -> __m512i {
        unsafe { _mm512_loadu_si512(p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_ints(self, p: &mut [i32; 16], ints: __m512i) {
        unsafe {
            _mm512_storeu_si512(p.as_mut_ptr().cast(), ints);
        }
    }
    #[inline(always)]
    fn add_ints(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn load_u8(self, p: &[u8; 16]) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.as_ptr().cast())) }
    }
    #[inline(always)]
    fn shift_right(self, ints: __m512i, n: usize) -> __m512i {
        unsafe { _mm512_srl_epi32(ints, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn shift_left(self, ints: __m512i, n: usize) -> __m512i {
        unsafe { _mm512_sll_epi32(ints, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn sum_ints(self, ints: __m512i) -> i32 {
        unsafe { _mm512_reduce_add_epi32(ints) }
    }
    #[inline(always)]
    fn sum_ints_each(self, vectors: &[__m512i; 16]) -> __m512i {
        unsafe {
            self.sum_by(
                *vectors,
                #[inline(always)]
                |a, b| _mm512_add_epi32(a, b),
            )
        }
    }
    #[inline(always)]
    fn sums_of_4(self, vectors: &[__m512i; 4]) -> __m512i {
        unsafe {
            let [a, b, c, d] = *vectors;
            let low = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let high = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high))
        }
    }
    #[inline(always)]
    fn halves_to_floats(self, ints: __m512i) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(ints)) }
    }
    #[inline(always)]
    fn to_floats(self, ints: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(ints) }
    }
    #[inline(always)]
    fn max_magnitude(self, a: __m512i, x: __m512) -> __m512i {
        unsafe { _mm512_max_epi32(a, _mm512_castps_si512(_mm512_abs_ps(x))) }
    }
    #[inline(always)]
    fn largest(self, ints: __m512i) -> i32 {
        unsafe { _mm512_reduce_max_epi32(ints) }
    }
    #[inline(always)]
    fn round(self, x: __m512) -> __m512i {
        unsafe { _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }
    #[inline(always)]
    fn store_i8(self, p: &mut [i8; 16], ints: __m512i) {
        unsafe {
            _mm_storeu_si128(p.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(ints));
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, p: &[f32; 16]) -> __m512 {
        unsafe { _mm512_loadu_ps(p.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, p: &mut [f32; 16], x: __m512) {
        unsafe {
            _mm512_storeu_ps(p.as_mut_ptr(), x);
        }
    }
    #[inline(always)]
    fn load_f32(self, p: &[u8; 64]) -> __m512 {
        unsafe { _mm512_loadu_ps(p.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_f16(self, p: &[u8; 32]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, p: &[u8; 32]) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn load_i8(self, p: &[i8; 16]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        unsafe {
            let low = _mm512_castps512_ps256(x);
            self.avx2().sum8(_mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(x)))
        }
    }
    #[inline(always)]
    fn sum_each(self, vectors: &[f32; 256]) -> __m512 {
        unsafe {
            let mut ints = [_mm512_setzero_si512(); 16];
            for i in 0..16 {
                ints[i] = _mm512_castps_si512(_mm512_loadu_ps(vectors.as_ptr().add(16 * i)));
            }
            _mm512_castsi512_ps(self.sum_by(
                ints,
                #[inline(always)]
                |a, b| _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b))),
            ))
        }
    }

    #[inline(always)]
    fn table(self, p: &[f32; 16]) -> __m512 {
        unsafe { _mm512_loadu_ps(p.as_ptr()) }
    }
    #[inline(always)]
    fn signed(self, p: &[u8; 16], signs: &[u8; 2], part: usize, table: __m512) -> __m512 {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.as_ptr().cast()));
            // Four bits of an index are used; the table repeats, so the upper two are ignored.
            let index = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(2 * part as i32));
            let magnitudes = _mm512_permutexvar_ps(index, table);
            let negative = __mmask16::from_le_bytes(*signs);
            _mm512_mask_xor_ps(magnitudes, negative, magnitudes, _mm512_set1_ps(-0.0))
        }
    }
    #[inline(always)]
    fn table4(self, p: &[u8; 16], part: usize, table: __m512) -> __m512 {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.as_ptr().cast()));
            _mm512_permutexvar_ps(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(4 * part as i32)), table)
        }
    }
    #[inline(always)]
    fn table2(self, p: &[u8; 4], table: __m512) -> __m512 {
        unsafe {
            let places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let codes = _mm512_set1_epi32(i32::from_le_bytes(*p));
            // Four bits of an index are used; the table repeats, so the upper two are ignored.
            _mm512_permutexvar_ps(_mm512_srlv_epi32(codes, places), table)
        }
    }
    #[inline(always)]
    fn add_where(self, bits: &[u8; 2], x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_add_ps(x, __mmask16::from_le_bytes(*bits), x, y) }
    }

    #[inline(always)]
    fn f16_to_f32(self, bits: u16) -> f32 {
        self.avx2().f16_to_f32(bits)
    }
    #[inline(always)]
    fn unpack_q6(self, low: &[u8; 64], high: &[u8; 32]) -> [__m512i; 2] {
        unsafe {
            /// `a & b ^ c`.
            const AND_XOR: i32 = 0x6a;
            let low = _mm512_loadu_si512(low.as_ptr().cast());
            let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(high.as_ptr().cast()));
            // Bits 2 to 5 are the low bits of a weight. Flipping the upper high bit subtracts 32.
            let (four_bits, sign_bit) = (_mm512_set1_epi8(0x3c), _mm512_set1_epi8(i8::MIN));
            let first =
                _mm512_ternarylogic_epi32::<AND_XOR>(_mm512_slli_epi16::<2>(low), four_bits, sign_bit);
            let second =
                _mm512_ternarylogic_epi32::<AND_XOR>(_mm512_srli_epi16::<2>(low), four_bits, sign_bit);
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
    }
    #[inline(always)]
    fn top_bytes<const J: usize>(self, bytes: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(self.avx2().top_bytes_order::<J>())) }
    }
    #[inline(always)]
    fn splat_each4(self, p: &[f32; 4]) -> __m512 {
        unsafe {
            let each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_ps(each, _mm512_castps128_ps512(_mm_loadu_ps(p.as_ptr())))
        }
    }

    #[inline(always)]
    fn prefetch_far(self, p: *const u8) {
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(p.cast());
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
    }
}
