//! AMX: AVX-512 with VNNI, and tiles of 16 x 64 bytes that are multiplied as matrices.
//!
//! A tile product is 16 activation rows times 16 weight rows over 64 inputs: 16384 byte products in 16
//! cycles, eight times the rate of VNNI. The unpacked codes of a strip have the layout of a right-hand tile
//! (four inputs of 16 rows per line), the activations that of a left-hand one. The standard library has no
//! stable functions for these instructions, so this file uses assembly.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx512::{Avx512, Dot512, Vnni};
use super::lanes::Kernel;

/// Activation rows of a tile.
pub const TILE_ROWS: usize = 16;

/// True if the processor has AMX for int8 and the system lets this process use it: Linux requires a request,
/// because it makes a thread's register state 8 KiB larger.
pub fn available() -> bool {
    /// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    let leaf = 7;
    if __cpuid(0).eax < leaf || __cpuid_count(leaf, 0).edx & AMX_TILE_AND_INT8 != AMX_TILE_AND_INT8 {
        return false;
    }
    let result: i64;
    // SAFETY: a system call that takes two numbers and does not write to our memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// `vpdpbusd` for single rows, tiles for many.
#[derive(Clone, Copy)]
pub struct Amx;

/// Operand of `ldtilecfg`: palette 1, and for each tile the bytes per line and the lines.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    lines: [u8; 16],
}

impl Dot512 for Amx {
    type Few = Vnni;

    const TILE_ROWS: usize = TILE_ROWS;

    #[inline]
    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            // SAFETY: the features of this function are those of the set.
            kernel.run(const { unsafe { Avx512::<Amx>::new() } })
        }
        // SAFETY: this table of kernels is used only if the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn dot(_: Avx512<Self>, acc: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        // SAFETY: a value of the set proves that the processor has the instruction.
        unsafe { _mm512_dpbusd_epi32(acc, codes, acts) }
    }

    #[inline(always)]
    unsafe fn tiles_begin(_: Avx512<Self>, rows: usize) {
        // Tiles 0 to 2 are sums, 3 to 5 codes, 6 activations.
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], line_bytes: [0; 16], lines: [0; 16] };
        for tile in 0..7 {
            config.line_bytes[tile] = 64;
            config.lines[tile] = if (3..6).contains(&tile) { 16 } else { rows as u8 };
        }
        // SAFETY: the configuration is in memory, and the caller ensures that it is valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
    }

    #[inline(always)]
    unsafe fn tile_sums(
        _: Avx512<Self>,
        codes: *const u8,
        acts: *const i8,
        stride: usize,
        quads: usize,
        go_on: bool,
        sums: *mut i32,
    ) {
        // SAFETY: the caller ensures that codes, activations and sums have these rows and inputs.
        unsafe {
            asm!(
                "test {go_on:e}, {go_on:e}",
                "jnz 2f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "jmp 3f",
                "2:",
                "tileloadd tmm0, [{sums} + {line}]",
                "tileloadd tmm1, [{sums} + {line} + 64]",
                "tileloadd tmm2, [{sums} + {line} + 128]",
                "3:",
                "tileloadd tmm6, [{acts} + {stride}]",
                "tileloadd tmm3, [{codes} + {line}]",
                "tdpbsud tmm0, tmm6, tmm3",
                "tileloadd tmm4, [{codes} + {line} + 64]",
                "tdpbsud tmm1, tmm6, tmm4",
                "tileloadd tmm5, [{codes} + {line} + 128]",
                "tdpbsud tmm2, tmm6, tmm5",
                "add {acts}, 64",
                "add {codes}, 3072",
                "sub {left}, 1",
                "jnz 3b",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 64], tmm1",
                "tilestored [{sums} + {line} + 128], tmm2",
                go_on = in(reg) u32::from(go_on),
                codes = inout(reg) codes => _,
                acts = inout(reg) acts => _,
                left = inout(reg) quads / 16 => _,
                stride = in(reg) stride,
                line = in(reg) 192_usize,
                sums = in(reg) sums,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack),
            );
        }
    }

    /// Computes a product whose result is not used. Measured: after about 2000 cycles without one, the next
    /// block of tiles took about 2000 cycles longer, as if the unit had to wake up.
    #[inline(always)]
    unsafe fn tiles_awake(_: Avx512<Self>) {
        // SAFETY: the caller has configured the tiles, and they hold no data between two products.
        unsafe { asm!("tdpbsud tmm0, tmm6, tmm3", out("tmm0") _, options(nostack, nomem)) };
    }

    #[inline(always)]
    fn tiles_end(_: Avx512<Self>) {
        // SAFETY: the tiles hold no data between two products.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
