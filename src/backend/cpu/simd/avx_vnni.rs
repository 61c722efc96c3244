//! AVX-VNNI: AVX2 with one instruction for a product of bytes.
#![allow(unsafe_code)]
// Every function here calls instructions under the contract of `Lanes`: blocks would say nothing else.
#![allow(unsafe_op_in_unsafe_fn)]

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
            // SAFETY: the features are those that `Lanes` needs.
            unsafe { kernel.run::<Avx2<Vnni>>() }
        }
        // SAFETY: this table of kernels is handed out only where the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    unsafe fn dot4(acc: __m256i, codes: [__m256i; 4], acts: [__m256i; 4]) -> __m256i {
        let low = Self::dot(Self::dot(acc, codes[0], acts[0]), codes[1], acts[1]);
        Self::dot(Self::dot(low, codes[2], acts[2]), codes[3], acts[3])
    }

    #[inline(always)]
    unsafe fn dot(acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(acc, codes, acts)
    }

    const ZERO: u8 = 128;

    #[inline(always)]
    unsafe fn dot_signed(acc: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        Self::dot(acc, codes, acts)
    }
}
