//! AVX2 with FMA and F16C: two registers per vector.
#![allow(unsafe_code)]
// SAFETY, unless a block states otherwise: a value of the set proves that the processor has its instructions,
// and a reference to an array covers the elements that are read or written.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::lanes::{Kernel, Lanes};

/// Byte products.
pub trait Dot256: Copy + 'static {
    /// As [`Lanes::vectorize`].
    fn vectorize<K: Kernel>(kernel: K) -> K::Out;
    /// As [`Lanes::dot4`], for half the bytes.
    fn dot4(set: Avx2<Self>, acc: __m256i, codes: [__m256i; 4], acts: [__m256i; 4]) -> __m256i;
    /// As [`Lanes::dot`], for half the bytes.
    fn dot(set: Avx2<Self>, acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i;
    /// As [`Lanes::ZERO`].
    const ZERO: u8;
    /// As [`Lanes::dot_signed`], for half the bytes.
    fn dot_signed(set: Avx2<Self>, acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i;
}

/// `vpmaddubsw` and `vpmaddwd`. A pair of products with ternary codes is at most `2 * 3 * 128 = 768`, so the
/// sum of four pairs fits in 16 bits; with codes below 128, one pair fits.
#[derive(Clone, Copy)]
pub struct Madd;

impl Dot256 for Madd {
    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features of this function are those of the set.
            kernel.run(const { unsafe { Avx2::<Madd>::new() } })
        }
        // SAFETY: this table of kernels is used only if the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn dot4(_: Avx2<Self>, acc: __m256i, codes: [__m256i; 4], acts: [__m256i; 4]) -> __m256i {
        unsafe {
            let mut sum = _mm256_maddubs_epi16(codes[0], acts[0]);
            for i in 1..4 {
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[i], acts[i]));
            }
            _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn dot(_: Avx2<Self>, acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        unsafe {
            let pairs = _mm256_maddubs_epi16(codes, acts);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    const ZERO: u8 = 0;

    // The sign is applied to the activations, so that a pair is at most `2 * 128 * 127`.
    #[inline(always)]
    fn dot_signed(set: Avx2<Self>, acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        let (codes, acts) = unsafe { (_mm256_abs_epi8(codes), _mm256_sign_epi8(acts, codes)) };
        Self::dot(set, acc, codes, acts)
    }
}

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2<D>(PhantomData<D>);

impl<D: Dot256> Avx2<D> {
    /// Proof that the processor has the set. Kernels take it as a constant: a call here could unwind, and
    /// their arguments would be copied for that.
    ///
    /// # Safety
    /// The processor has AVX2, FMA, F16C and the instructions of `D`.
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// Sum of 8 floats, in this order: lanes 4 apart are added, then 2 and 1 apart.
    #[inline(always)]
    pub fn sum8(self, x: __m256) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    /// The shuffle of [`Lanes::top_bytes`] within 16 bytes; a negative index gives a zero.
    #[inline(always)]
    pub fn top_bytes_order<const J: usize>(self) -> __m128i {
        let j = 4 * J as i8;
        unsafe { _mm_setr_epi8(-1, -1, -1, j, -1, -1, -1, j + 1, -1, -1, -1, j + 2, -1, -1, -1, j + 3) }
    }
}

/// Applies an operation to both halves.
macro_rules! halves {
    ($op:path, $($arg:ident),+) => {
        [$op($($arg[0]),+), $op($($arg[1]),+)]
    };
}

impl<D: Dot256> Lanes for Avx2<D> {
    type Bytes = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    type Sums = [__m256i; 2];
    type Table = [__m256; 2];
    type Few = Self;

    // 8 registers of sums; the others hold codes, activations and intermediate results.
    const STRIP_VECTORS: usize = 1;
    const ROWS: usize = 4;
    const FLOAT_BLOCK: (usize, usize) = (2, 2);
    const GEMM_VECTORS: usize = 1;

    #[inline(always)]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        D::vectorize(kernel)
    }

    #[inline(always)]
    fn load_bytes(self, p: &[u8; 64]) -> Self::Bytes {
        unsafe { [_mm256_loadu_si256(p.as_ptr().cast()), _mm256_loadu_si256(p.as_ptr().add(32).cast())] }
    }
    #[inline(always)]
    fn load_half(self, p: &[u8; 32]) -> Self::Bytes {
        unsafe { [_mm256_loadu_si256(p.as_ptr().cast()), _mm256_setzero_si256()] }
    }
    #[inline(always)]
    fn store_bytes(self, p: &mut [u8; 64], bytes: Self::Bytes) {
        unsafe {
            _mm256_storeu_si256(p.as_mut_ptr().cast(), bytes[0]);
            _mm256_storeu_si256(p.as_mut_ptr().add(32).cast(), bytes[1]);
        }
    }
    #[inline(always)]
    fn splat4(self, p: &[i8; 4]) -> Self::Bytes {
        unsafe { [_mm256_set1_epi32(p.as_ptr().cast::<i32>().read_unaligned()); 2] }
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::Bytes; 16]) -> [Self::Bytes; 16] {
        unsafe {
            let mut columns = rows;
            for half in 0..2 {
                for eight in 0..2 {
                    // Columns of 4 bytes of 8 rows, within 128 bits.
                    let mut v = [_mm256_setzero_si256(); 8];
                    for four in [0, 4] {
                        let row = 8 * eight + four;
                        let [a, b, c, d] =
                            [rows[row][half], rows[row + 1][half], rows[row + 2][half], rows[row + 3][half]];
                        let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                        let (next_low, next_high) =
                            (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                        v[four] = _mm256_unpacklo_epi64(low, next_low);
                        v[four + 1] = _mm256_unpackhi_epi64(low, next_low);
                        v[four + 2] = _mm256_unpacklo_epi64(high, next_high);
                        v[four + 3] = _mm256_unpackhi_epi64(high, next_high);
                    }
                    for c in 0..4 {
                        columns[8 * half + c][eight] = _mm256_permute2x128_si256::<0x20>(v[c], v[4 + c]);
                        columns[8 * half + 4 + c][eight] = _mm256_permute2x128_si256::<0x31>(v[c], v[4 + c]);
                    }
                }
            }
            columns
        }
    }
    #[inline(always)]
    fn quads(self, rows: &[[u8; 16]; 16]) -> [Self::Ints; 4] {
        unsafe {
            let mut words = [[_mm256_setzero_si256(); 2]; 4];
            for eight in 0..2 {
                let mut v = [_mm256_setzero_si256(); 4];
                for i in 0..4 {
                    // Rows `i` and `4 + i`.
                    v[i] = _mm256_loadu_si256(rows.as_ptr().add(4 * i + 2 * eight).cast());
                }
                let (low, high) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
                let (next_low, next_high) =
                    (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
                words[0][eight] = _mm256_unpacklo_epi64(low, next_low);
                words[1][eight] = _mm256_unpackhi_epi64(low, next_low);
                words[2][eight] = _mm256_unpacklo_epi64(high, next_high);
                words[3][eight] = _mm256_unpackhi_epi64(high, next_high);
            }
            words
        }
    }
    #[inline(always)]
    fn fields(self, p: &[u8; 32], low: u32, high: u32, mask: u8) -> Self::Bytes {
        unsafe {
            let bytes = [_mm256_loadu_si256(p.as_ptr().cast()); 2];
            let shifts = [_mm_cvtsi32_si128(low as i32), _mm_cvtsi32_si128(high as i32)];
            let shifted = halves!(_mm256_srl_epi16, bytes, shifts);
            let mask = [_mm256_set1_epi8(mask.cast_signed()); 2];
            halves!(_mm256_and_si256, shifted, mask)
        }
    }
    #[inline(always)]
    fn load_halves(self, p: &[u8; 32], q: &[u8; 32]) -> Self::Bytes {
        unsafe { [_mm256_loadu_si256(p.as_ptr().cast()), _mm256_loadu_si256(q.as_ptr().cast())] }
    }
    #[inline(always)]
    fn nibbles(self, p: &[u8; 16], q: &[u8; 16]) -> Self::Bytes {
        unsafe {
            let low = [_mm_loadu_si128(p.as_ptr().cast()), _mm_loadu_si128(q.as_ptr().cast())];
            let high = halves!(_mm_srli_epi16::<4>, low);
            let (both, mask) = (halves!(_mm256_set_m128i, high, low), [_mm256_set1_epi8(15); 2]);
            halves!(_mm256_and_si256, both, mask)
        }
    }
    #[inline(always)]
    fn load_quarters(self, p: [&[u8; 16]; 4]) -> Self::Bytes {
        unsafe {
            let low = [_mm_loadu_si128(p[0].as_ptr().cast()), _mm_loadu_si128(p[2].as_ptr().cast())];
            let high = [_mm_loadu_si128(p[1].as_ptr().cast()), _mm_loadu_si128(p[3].as_ptr().cast())];
            halves!(_mm256_set_m128i, high, low)
        }
    }
    #[inline(always)]
    fn trits(self, bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes {
        unsafe {
            let (low, mut digits) = (_mm256_set1_epi16(0xff), bytes);
            for i in 0..2 {
                let powers = _mm256_loadu_si256(powers.as_ptr().add(32 * i).cast());
                let powers = _mm256_and_si256(powers, low);
                let even = _mm256_mullo_epi16(_mm256_and_si256(bytes[i], low), powers);
                let odd = _mm256_mullo_epi16(_mm256_andnot_si256(low, bytes[i]), powers);
                let rest = _mm256_or_si256(_mm256_and_si256(even, low), odd);
                // A byte that is not below a limit is its own maximum with it.
                let third = _mm256_set1_epi8(86);
                let a_third = _mm256_cmpeq_epi8(_mm256_max_epu8(rest, third), rest);
                let third = _mm256_set1_epi8(171_u8.cast_signed());
                let two_thirds = _mm256_cmpeq_epi8(_mm256_max_epu8(rest, third), rest);
                let none = _mm256_setzero_si256();
                digits[i] = _mm256_sub_epi8(none, _mm256_add_epi8(a_third, two_thirds));
            }
            digits
        }
    }
    #[inline(always)]
    fn look_up(self, indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        unsafe {
            let table = [_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())); 2];
            halves!(_mm256_shuffle_epi8, table, indices)
        }
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
        unsafe {
            let shift = [_mm_cvtsi32_si128(SHIFT as i32); 2];
            let shifted = halves!(_mm256_sll_epi16, b, shift);
            halves!(_mm256_or_si256, a, shifted)
        }
    }
    #[inline(always)]
    fn with_fifth(self, codes: Self::Bytes, bits: u64) -> Self::Bytes {
        unsafe {
            // Byte `i` gets the byte that contains its bit, and keeps that bit.
            let order =
                _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let (each, fifth) =
                (_mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed()), _mm256_set1_epi8(16));
            let mut with = codes;
            for i in 0..2 {
                let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((bits >> (32 * i)) as i32), order);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
                with[i] = _mm256_or_si256(codes[i], _mm256_and_si256(set, fifth));
            }
            with
        }
    }
    #[inline(always)]
    fn codes<const SHIFT: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        unsafe {
            let shift = _mm_cvtsi32_si128(SHIFT as i32);
            let (shift, three) = ([shift; 2], [_mm256_set1_epi8(3); 2]);
            let shifted = halves!(_mm256_srl_epi16, bytes, shift);
            halves!(_mm256_and_si256, shifted, three)
        }
    }

    #[inline(always)]
    fn dot(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        [D::dot(self, acc[0], codes[0], acts[0]), D::dot(self, acc[1], codes[1], acts[1])]
    }
    const ZERO: u8 = D::ZERO;
    #[inline(always)]
    fn signed_codes(self, bytes: Self::Bytes) -> Self::Bytes {
        unsafe {
            let zero = [_mm256_set1_epi8(D::ZERO.cast_signed()); 2];
            halves!(_mm256_xor_si256, bytes, zero)
        }
    }
    #[inline(always)]
    fn dot_signed(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        [D::dot_signed(self, acc[0], codes[0], acts[0]), D::dot_signed(self, acc[1], codes[1], acts[1])]
    }
    #[inline(always)]
    fn dot4(self, acc: Self::Ints, codes: [Self::Bytes; 4], acts: [Self::Bytes; 4]) -> Self::Ints {
        let [a, b, c, d] = codes;
        let [e, f, g, h] = acts;
        [
            D::dot4(self, acc[0], [a[0], b[0], c[0], d[0]], [e[0], f[0], g[0], h[0]]),
            D::dot4(self, acc[1], [a[1], b[1], c[1], d[1]], [e[1], f[1], g[1], h[1]]),
        ]
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    fn dot_packed(self, sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums {
        let codes = [
            self.codes::<0>(packed),
            self.codes::<2>(packed),
            self.codes::<4>(packed),
            self.codes::<6>(packed),
        ];
        self.dot4(sums, codes, acts)
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        self.sum_ints(sums)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    fn load_ints(self, p: &[i32; 16]) -> Self::Ints {
        unsafe {
            let p = p.as_ptr().cast::<__m256i>();
            [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))]
        }
    }
    #[inline(always)]
    fn store_ints(self, p: &mut [i32; 16], ints: Self::Ints) {
        unsafe {
            let p = p.as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(p, ints[0]);
            _mm256_storeu_si256(p.add(1), ints[1]);
        }
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { halves!(_mm256_add_epi32, a, b) }
    }
    #[inline(always)]
    fn load_u8(self, p: &[u8; 16]) -> Self::Ints {
        unsafe {
            let halves = [_mm_loadl_epi64(p.as_ptr().cast()), _mm_loadl_epi64(p.as_ptr().add(8).cast())];
            halves!(_mm256_cvtepu8_epi32, halves)
        }
    }
    #[inline(always)]
    fn shift_right(self, ints: Self::Ints, n: usize) -> Self::Ints {
        unsafe {
            let n = [_mm_cvtsi32_si128(n as i32); 2];
            halves!(_mm256_srl_epi32, ints, n)
        }
    }
    #[inline(always)]
    fn shift_left(self, ints: Self::Ints, n: usize) -> Self::Ints {
        unsafe {
            let n = [_mm_cvtsi32_si128(n as i32); 2];
            halves!(_mm256_sll_epi32, ints, n)
        }
    }
    #[inline(always)]
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { halves!(_mm256_and_si256, a, b) }
    }
    #[inline(always)]
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { halves!(_mm256_or_si256, a, b) }
    }
    #[inline(always)]
    fn sum_ints(self, ints: Self::Ints) -> i32 {
        unsafe {
            let eight = _mm256_add_epi32(ints[0], ints[1]);
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b_01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b_10_11_00_01>(two)))
        }
    }
    #[inline(always)]
    fn sums_of_4(self, vectors: &[Self::Ints; 4]) -> Self::Ints {
        unsafe {
            let [a, b, c, d] = *vectors;
            let (low, high) = (halves!(_mm256_hadd_epi32, a, b), halves!(_mm256_hadd_epi32, c, d));
            halves!(_mm256_hadd_epi32, low, high)
        }
    }
    #[inline(always)]
    fn halves_to_floats(self, ints: Self::Ints) -> Self::Floats {
        unsafe {
            let low = [_mm256_set1_epi32(0xffff); 2];
            let words = halves!(_mm256_and_si256, ints, low);
            // Packing works within 128 bits: words come out as blocks of four in the order 0 2 1 3.
            let packed = _mm256_permute4x64_epi64::<0b_11_01_10_00>(_mm256_packus_epi32(words[0], words[1]));
            let halves = [_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed)];
            halves!(_mm256_cvtph_ps, halves)
        }
    }
    #[inline(always)]
    fn to_floats(self, ints: Self::Ints) -> Self::Floats {
        unsafe { halves!(_mm256_cvtepi32_ps, ints) }
    }
    #[inline(always)]
    fn max_magnitude(self, a: Self::Ints, x: Self::Floats) -> Self::Ints {
        unsafe {
            let (x, mask) = (halves!(_mm256_castps_si256, x), [_mm256_set1_epi32(i32::MAX); 2]);
            let magnitude = halves!(_mm256_and_si256, x, mask);
            halves!(_mm256_max_epi32, a, magnitude)
        }
    }
    #[inline(always)]
    fn largest(self, ints: Self::Ints) -> i32 {
        unsafe {
            let eight = _mm256_max_epi32(ints[0], ints[1]);
            let four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b_01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b_10_11_00_01>(two)))
        }
    }
    #[inline(always)]
    fn round(self, x: Self::Floats) -> Self::Ints {
        unsafe {
            let rounded = halves!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>, x);
            halves!(_mm256_cvtps_epi32, rounded)
        }
    }
    #[inline(always)]
    fn store_i8(self, p: &mut [i8; 16], ints: Self::Ints) {
        unsafe {
            // Packing works within 128 bits: words come out as blocks of four in the order 0 8 4 12.
            let words = _mm256_packs_epi32(ints[0], ints[1]);
            let bytes = _mm256_packs_epi16(words, words);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm_storeu_si128(p.as_mut_ptr().cast(), _mm256_castsi256_si128(bytes));
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, p: &[f32; 16]) -> Self::Floats {
        unsafe { [_mm256_loadu_ps(p.as_ptr()), _mm256_loadu_ps(p.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, p: &mut [f32; 16], x: Self::Floats) {
        unsafe {
            _mm256_storeu_ps(p.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(p.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn load_f32(self, p: &[u8; 64]) -> Self::Floats {
        let p = p.as_ptr().cast::<f32>();
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    fn load_f16(self, p: &[u8; 32]) -> Self::Floats {
        unsafe {
            let halves = [_mm_loadu_si128(p.as_ptr().cast()), _mm_loadu_si128(p.as_ptr().add(16).cast())];
            halves!(_mm256_cvtph_ps, halves)
        }
    }
    #[inline(always)]
    fn load_bf16(self, p: &[u8; 32]) -> Self::Floats {
        unsafe {
            let halves = [_mm_loadu_si128(p.as_ptr().cast()), _mm_loadu_si128(p.as_ptr().add(16).cast())];
            let wide = halves!(_mm256_cvtepu16_epi32, halves);
            let bits = halves!(_mm256_slli_epi32::<16>, wide);
            halves!(_mm256_castsi256_ps, bits)
        }
    }
    #[inline(always)]
    fn load_i8(self, p: &[i8; 16]) -> Self::Floats {
        unsafe {
            let halves = [_mm_loadl_epi64(p.as_ptr().cast()), _mm_loadl_epi64(p.as_ptr().add(8).cast())];
            let wide = halves!(_mm256_cvtepi8_epi32, halves);
            halves!(_mm256_cvtepi32_ps, wide)
        }
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { halves!(_mm256_add_ps, a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { halves!(_mm256_min_ps, a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { halves!(_mm256_mul_ps, a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { halves!(_mm256_fmadd_ps, a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { halves!(_mm256_fnmadd_ps, a, b, c) }
    }
    #[inline(always)]
    fn sum(self, x: Self::Floats) -> f32 {
        unsafe { self.sum8(_mm256_add_ps(x[0], x[1])) }
    }

    #[inline(always)]
    fn table(self, p: &[f32; 16]) -> Self::Table {
        self.load(p)
    }
    #[inline(always)]
    fn signed(self, p: &[u8; 16], signs: &[u8; 2], part: usize, table: Self::Table) -> Self::Floats {
        unsafe {
            let shift = _mm_cvtsi32_si128(2 * part as i32);
            // Moves the bit of each lane to the sign bit of a float.
            let left = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
            let mut values = table;
            for i in 0..2 {
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.as_ptr().add(8 * i).cast()));
                // Three bits of an index are used; the table repeats, so the upper one is ignored.
                let magnitudes = _mm256_permutevar8x32_ps(table[0], _mm256_srl_epi32(bytes, shift));
                let negative = _mm256_sllv_epi32(_mm256_set1_epi32(i32::from(signs[i])), left);
                let negative = _mm256_and_ps(_mm256_castsi256_ps(negative), _mm256_set1_ps(-0.0));
                values[i] = _mm256_xor_ps(magnitudes, negative);
            }
            values
        }
    }
    #[inline(always)]
    fn table4(self, p: &[u8; 16], part: usize, table: Self::Table) -> Self::Floats {
        unsafe {
            let shift = _mm_cvtsi32_si128(4 * part as i32);
            let mut values = table;
            for i in 0..2 {
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.as_ptr().add(8 * i).cast()));
                let index = _mm256_srl_epi32(bytes, shift);
                let (low, high) =
                    (_mm256_permutevar8x32_ps(table[0], index), _mm256_permutevar8x32_ps(table[1], index));
                // The fourth bit of an index selects the half of the table.
                let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
                values[i] = _mm256_blendv_ps(low, high, upper);
            }
            values
        }
    }
    #[inline(always)]
    fn table2(self, p: &[u8; 4], table: Self::Table) -> Self::Floats {
        unsafe {
            let places = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
            let mut values = table;
            for i in 0..2 {
                let codes = _mm256_set1_epi32(i32::from(u16::from_le_bytes([p[2 * i], p[2 * i + 1]])));
                // Three bits of an index are used; the table repeats, so the upper one is ignored.
                values[i] = _mm256_permutevar8x32_ps(table[0], _mm256_srlv_epi32(codes, places));
            }
            values
        }
    }
    #[inline(always)]
    fn add_where(self, bits: &[u8; 2], x: Self::Floats, y: Self::Floats) -> Self::Floats {
        unsafe {
            let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let mut sums = x;
            for i in 0..2 {
                let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(bits[i])), each);
                let set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each));
                sums[i] = _mm256_blendv_ps(x[i], _mm256_add_ps(x[i], y[i]), set);
            }
            sums
        }
    }

    #[inline(always)]
    fn f16_to_f32(self, bits: u16) -> f32 {
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }
    #[inline(always)]
    fn unpack_q6(self, low: &[u8; 64], high: &[u8; 32]) -> [Self::Bytes; 2] {
        unsafe {
            let low = self.load_bytes(low);
            let high = _mm256_loadu_si256(high.as_ptr().cast());
            // Bits 2 to 5 are the low bits of a weight. Flipping the upper high bit subtracts 32.
            let (four_bits, two_bits) = (_mm256_set1_epi8(0x3c), _mm256_set1_epi8(0xc0_u8.cast_signed()));
            let mut quarters = [
                (_mm256_slli_epi16::<2>(low[0]), _mm256_slli_epi16::<6>(high)),
                (_mm256_slli_epi16::<2>(low[1]), _mm256_slli_epi16::<4>(high)),
                (_mm256_srli_epi16::<2>(low[0]), _mm256_slli_epi16::<2>(high)),
                (_mm256_srli_epi16::<2>(low[1]), high),
            ];
            for i in 0..4 {
                let (low, high) = quarters[i];
                let bits =
                    _mm256_or_si256(_mm256_and_si256(low, four_bits), _mm256_and_si256(high, two_bits));
                quarters[i].0 = _mm256_xor_si256(bits, _mm256_set1_epi8(i8::MIN));
            }
            [[quarters[0].0, quarters[1].0], [quarters[2].0, quarters[3].0]]
        }
    }
    #[inline(always)]
    fn top_bytes<const J: usize>(self, bytes: Self::Bytes) -> Self::Ints {
        unsafe {
            let order = [_mm256_broadcastsi128_si256(self.top_bytes_order::<J>()); 2];
            halves!(_mm256_shuffle_epi8, bytes, order)
        }
    }
    #[inline(always)]
    fn splat_each4(self, p: &[f32; 4]) -> Self::Floats {
        unsafe {
            let four = |i: usize| _mm_set1_ps(p[i]);
            [_mm256_set_m128(four(1), four(0)), _mm256_set_m128(four(3), four(2))]
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
