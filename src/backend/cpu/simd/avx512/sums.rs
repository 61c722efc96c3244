//! Sums of lanes of several vectors at once.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

/// Of four vectors after the other, the sums of four neighbouring lanes: lane `4 k + r` is that of vector `r`
/// and lanes `4 k` to `4 k + 4`.
///
/// # Safety
/// As [`Lanes`](super::super::lanes::Lanes).
#[inline(always)]
pub(super) unsafe fn sums_of_fours(vectors: &[__m512i; 16]) -> [__m512i; 4] {
    let mut sums = [_mm512_setzero_si512(); 4];
    for i in 0..4 {
        let [a, b, c, d] = [vectors[4 * i], vectors[4 * i + 1], vectors[4 * i + 2], vectors[4 * i + 3]];
        let low = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let high = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        sums[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    }
    sums
}

/// Sum of each of 16 vectors: `i` and `i + 8`, then 4, 2 and 1 apart, of 16, 8, 4 and 2 vectors at a time.
///
/// # Safety
/// As [`Lanes`](super::super::lanes::Lanes).
#[inline(always)]
pub(super) unsafe fn sum_each(vectors: [__m512i; 16], add: impl Fn(__m512i, __m512i) -> __m512i) -> __m512i {
    // The order in which the steps below bring the sums into theirs.
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
