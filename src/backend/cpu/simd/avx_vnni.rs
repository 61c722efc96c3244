//! AVX-VNNI: AVX2 with a single instruction for byte products.
#![allow(unsafe_code)]
// SAFETY, unless a block states otherwise: a value of the set proves that the processor has its instructions,
// and a reference to an array covers the elements that are read or written.

use std::arch::x86_64::*;

use super::avx2::{Avx2, Dot256};
use super::lanes::Kernel;

/// `vpdpbusd` in its VEX form.
#[derive(Clone, Copy)]
pub struct Vnni;

impl Dot256 for Vnni {
    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features of this function are those of the set.
            kernel.run(const { unsafe { Avx2::<Vnni>::new() } })
        }
        // SAFETY: this table of kernels is used only if the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn dot4(set: Avx2<Self>, acc: __m256i, codes: [__m256i; 4], acts: [__m256i; 4]) -> __m256i {
        let low = Self::dot(set, Self::dot(set, acc, codes[0], acts[0]), codes[1], acts[1]);
        Self::dot(set, Self::dot(set, low, codes[2], acts[2]), codes[3], acts[3])
    }

    #[inline(always)]
    fn dot(_: Avx2<Self>, acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        unsafe { _mm256_dpbusd_avx_epi32(acc, codes, acts) }
    }

    const ZERO: u8 = 128;

    #[inline(always)]
    fn dot_signed(set: Avx2<Self>, acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        Self::dot(set, acc, codes, acts)
    }
}
