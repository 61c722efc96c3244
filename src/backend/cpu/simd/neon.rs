//! NEON with the byte dot product: four registers per vector. It has been tested in an emulator (QEMU 7.2),
//! not yet on a processor.
#![allow(unsafe_code)]
// SAFETY, unless a block states otherwise: a value of the set proves that the processor has its instructions,
// and a reference to an array covers the elements that are read or written.

use std::arch::aarch64::*;
use std::arch::asm;

use super::lanes::{Kernel, Lanes, slot};

/// NEON and `sdot`.
#[derive(Clone, Copy)]
pub struct Neon(());

/// Applies an operation to all four quarters.
macro_rules! quarters {
    ($op:path, $($arg:expr),+) => {
        [$op($($arg[0]),+), $op($($arg[1]),+), $op($($arg[2]),+), $op($($arg[3]),+)]
    };
}

impl Lanes for Neon {
    type Bytes = [uint8x16_t; 4];
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    type Sums = [int32x4_t; 4];
    // The first bytes of all floats, then the second bytes, and so on.
    type Table = [uint8x16_t; 4];
    type Few = Self;

    // 16 of 32 registers hold sums; four products of 16 bytes each then hide the latency of `sdot`.
    const STRIP_VECTORS: usize = 1;
    const ROWS: usize = 4;
    const FLOAT_BLOCK: (usize, usize) = (2, 2);
    const GEMM_VECTORS: usize = 1;

    fn vectorize<K: Kernel>(kernel: K) -> K::Out {
        #[target_feature(enable = "neon,dotprod")]
        fn run<K: Kernel>(kernel: K) -> K::Out {
            kernel.run(Neon(()))
        }
        // SAFETY: this table of kernels is used only if the processor has the features.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn load_bytes(self, p: &[u8; 64]) -> Self::Bytes {
        unsafe {
            [
                vld1q_u8(p.as_ptr()),
                vld1q_u8(p.as_ptr().add(16)),
                vld1q_u8(p.as_ptr().add(32)),
                vld1q_u8(p.as_ptr().add(48)),
            ]
        }
    }
    #[inline(always)]
    fn load_half(self, p: &[u8; 32]) -> Self::Bytes {
        unsafe { [vld1q_u8(p.as_ptr()), vld1q_u8(p.as_ptr().add(16)), vdupq_n_u8(0), vdupq_n_u8(0)] }
    }
    #[inline(always)]
    fn store_bytes(self, p: &mut [u8; 64], bytes: Self::Bytes) {
        unsafe {
            for i in 0..4 {
                vst1q_u8(p.as_mut_ptr().add(16 * i), bytes[i]);
            }
        }
    }
    #[inline(always)]
    fn splat4(self, p: &[i8; 4]) -> Self::Bytes {
        unsafe { [vreinterpretq_u8_u32(vdupq_n_u32(p.as_ptr().cast::<u32>().read_unaligned())); 4] }
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::Bytes; 16]) -> [Self::Bytes; 16] {
        unsafe {
            let mut columns = rows;
            for quarter in 0..4 {
                for four in 0..4 {
                    let mut v = [vdupq_n_u32(0); 4];
                    for i in 0..4 {
                        v[i] = vreinterpretq_u32_u8(rows[4 * four + i][quarter]);
                    }
                    let transposed = transpose4(v);
                    for i in 0..4 {
                        columns[4 * quarter + i][four] = vreinterpretq_u8_u32(transposed[i]);
                    }
                }
            }
            columns
        }
    }
    #[inline(always)]
    fn quads(self, rows: &[[u8; 16]; 16]) -> [Self::Ints; 4] {
        unsafe {
            let mut words = [[vdupq_n_s32(0); 4]; 4];
            for four in 0..4 {
                let mut v = [vdupq_n_u32(0); 4];
                for i in 0..4 {
                    v[i] = vreinterpretq_u32_u8(vld1q_u8(rows[slot(4 * four + i)].as_ptr()));
                }
                let transposed = transpose4(v);
                for i in 0..4 {
                    words[i][four] = vreinterpretq_s32_u32(transposed[i]);
                }
            }
            words
        }
    }
    #[inline(always)]
    fn fields(self, p: &[u8; 32], low: u32, high: u32, mask: u8) -> Self::Bytes {
        unsafe {
            // A left shift by a negative number is a right shift.
            let (low, high) = (vdupq_n_s8(-(low as i8)), vdupq_n_s8(-(high as i8)));
            let (first, second) = (vld1q_u8(p.as_ptr()), vld1q_u8(p.as_ptr().add(16)));
            let (bytes, shifts) = ([first, second, first, second], [low, low, high, high]);
            let shifted = quarters!(vshlq_u8, bytes, shifts);
            quarters!(vandq_u8, shifted, [vdupq_n_u8(mask); 4])
        }
    }
    #[inline(always)]
    fn load_halves(self, p: &[u8; 32], q: &[u8; 32]) -> Self::Bytes {
        unsafe {
            [
                vld1q_u8(p.as_ptr()),
                vld1q_u8(p.as_ptr().add(16)),
                vld1q_u8(q.as_ptr()),
                vld1q_u8(q.as_ptr().add(16)),
            ]
        }
    }
    #[inline(always)]
    fn nibbles(self, p: &[u8; 16], q: &[u8; 16]) -> Self::Bytes {
        unsafe {
            let (p, q, mask) = (vld1q_u8(p.as_ptr()), vld1q_u8(q.as_ptr()), vdupq_n_u8(15));
            [vandq_u8(p, mask), vshrq_n_u8::<4>(p), vandq_u8(q, mask), vshrq_n_u8::<4>(q)]
        }
    }
    #[inline(always)]
    fn load_quarters(self, p: [&[u8; 16]; 4]) -> Self::Bytes {
        unsafe {
            [
                vld1q_u8(p[0].as_ptr()),
                vld1q_u8(p[1].as_ptr()),
                vld1q_u8(p[2].as_ptr()),
                vld1q_u8(p[3].as_ptr()),
            ]
        }
    }
    #[inline(always)]
    fn trits(self, bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes {
        unsafe {
            let rest = quarters!(vmulq_u8, bytes, self.load_bytes(powers));
            let a_third = quarters!(vcgeq_u8, rest, [vdupq_n_u8(86); 4]);
            let two_thirds = quarters!(vcgeq_u8, rest, [vdupq_n_u8(171); 4]);
            let minus = quarters!(vaddq_u8, a_third, two_thirds);
            quarters!(vsubq_u8, [vdupq_n_u8(0); 4], minus)
        }
    }
    #[inline(always)]
    fn look_up(self, indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        unsafe { quarters!(vqtbl1q_u8, [vld1q_u8(table.as_ptr().cast()); 4], indices) }
    }
    #[inline(always)]
    fn as_bytes(self, ints: Self::Ints) -> Self::Bytes {
        unsafe { quarters!(vreinterpretq_u8_s32, ints) }
    }
    #[inline(always)]
    fn as_ints(self, bytes: Self::Bytes) -> Self::Ints {
        unsafe { quarters!(vreinterpretq_s32_u8, bytes) }
    }
    #[inline(always)]
    fn with_high<const SHIFT: u32>(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        unsafe {
            let shifted = quarters!(vshlq_u8, b, [vdupq_n_s8(SHIFT as i8); 4]);
            quarters!(vorrq_u8, a, shifted)
        }
    }
    #[inline(always)]
    fn with_fifth(self, codes: Self::Bytes, bits: u64) -> Self::Bytes {
        unsafe {
            // Byte `i` gets the byte that contains its bit, and keeps that bit.
            let (bytes, each) = (vreinterpretq_u8_u64(vdupq_n_u64(bits)), vdupq_n_u64(0x8040_2010_0804_0201));
            let (each, fifth) = (vreinterpretq_u8_u64(each), vdupq_n_u8(16));
            let order = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
            let mut with = codes;
            for i in 0..4 {
                let of_bit = vqtbl1q_u8(bytes, vaddq_u8(order, vdupq_n_u8(2 * i as u8)));
                with[i] = vorrq_u8(codes[i], vandq_u8(vtstq_u8(of_bit, each), fifth));
            }
            with
        }
    }
    #[inline(always)]
    fn codes<const SHIFT: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        unsafe {
            // A left shift by a negative number is a right shift.
            let (shift, three) = ([vdupq_n_s8(-(SHIFT as i8)); 4], [vdupq_n_u8(3); 4]);
            let shifted = quarters!(vshlq_u8, bytes, shift);
            quarters!(vandq_u8, shifted, three)
        }
    }

    #[inline(always)]
    fn dot(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        unsafe { quarters!(sdot, acc, codes, acts) }
    }
    const ZERO: u8 = 0;
    #[inline(always)]
    fn signed_codes(self, bytes: Self::Bytes) -> Self::Bytes {
        bytes
    }
    #[inline(always)]
    fn dot_signed(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints {
        unsafe { quarters!(sdot, acc, codes, acts) }
    }
    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        unsafe { [vdupq_n_s32(0); 4] }
    }
    #[inline(always)]
    fn dot_packed(self, sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums {
        let sums = self.dot(sums, self.codes::<0>(packed), acts[0]);
        let sums = self.dot(sums, self.codes::<2>(packed), acts[1]);
        let sums = self.dot(sums, self.codes::<4>(packed), acts[2]);
        self.dot(sums, self.codes::<6>(packed), acts[3])
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        self.sum_ints(sums)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::Ints {
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    fn load_ints(self, p: &[i32; 16]) -> Self::Ints {
        unsafe {
            [
                vld1q_s32(p.as_ptr()),
                vld1q_s32(p.as_ptr().add(4)),
                vld1q_s32(p.as_ptr().add(8)),
                vld1q_s32(p.as_ptr().add(12)),
            ]
        }
    }
    #[inline(always)]
    fn store_ints(self, p: &mut [i32; 16], ints: Self::Ints) {
        unsafe {
            for i in 0..4 {
                vst1q_s32(p.as_mut_ptr().add(4 * i), ints[i]);
            }
        }
    }
    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { quarters!(vaddq_s32, a, b) }
    }
    #[inline(always)]
    fn load_u8(self, p: &[u8; 16]) -> Self::Ints {
        unsafe {
            let bytes = vld1q_u8(p.as_ptr());
            let words = [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)];
            let ints = [
                vmovl_u16(vget_low_u16(words[0])),
                vmovl_high_u16(words[0]),
                vmovl_u16(vget_low_u16(words[1])),
                vmovl_high_u16(words[1]),
            ];
            quarters!(vreinterpretq_s32_u32, ints)
        }
    }
    #[inline(always)]
    fn shift_right(self, ints: Self::Ints, n: usize) -> Self::Ints {
        unsafe {
            let left = [vdupq_n_s32(-(n as i32)); 4];
            quarters!(vshlq_s32, ints, left)
        }
    }
    #[inline(always)]
    fn shift_left(self, ints: Self::Ints, n: usize) -> Self::Ints {
        unsafe {
            let left = [vdupq_n_s32(n as i32); 4];
            quarters!(vshlq_s32, ints, left)
        }
    }
    #[inline(always)]
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { quarters!(vandq_s32, a, b) }
    }
    #[inline(always)]
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { quarters!(vorrq_s32, a, b) }
    }
    #[inline(always)]
    fn sum_ints(self, ints: Self::Ints) -> i32 {
        unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(ints[0], ints[1]), vaddq_s32(ints[2], ints[3]))) }
    }
    #[inline(always)]
    fn sums_of_4(self, vectors: &[Self::Ints; 4]) -> Self::Ints {
        unsafe {
            let [a, b, c, d] = *vectors;
            let (low, high) = (quarters!(vpaddq_s32, a, b), quarters!(vpaddq_s32, c, d));
            quarters!(vpaddq_s32, low, high)
        }
    }
    #[inline(always)]
    fn halves_to_floats(self, ints: Self::Ints) -> Self::Floats {
        unsafe {
            let words = quarters!(vmovn_s32, ints);
            let halves = quarters!(vreinterpret_u8_s16, words);
            quarters!(widen_f16, halves)
        }
    }
    #[inline(always)]
    fn to_floats(self, ints: Self::Ints) -> Self::Floats {
        unsafe { quarters!(vcvtq_f32_s32, ints) }
    }
    #[inline(always)]
    fn max_magnitude(self, a: Self::Ints, x: Self::Floats) -> Self::Ints {
        unsafe {
            let magnitude = quarters!(vabsq_f32, x);
            let bits = quarters!(vreinterpretq_s32_f32, magnitude);
            quarters!(vmaxq_s32, a, bits)
        }
    }
    #[inline(always)]
    fn largest(self, ints: Self::Ints) -> i32 {
        unsafe { vmaxvq_s32(vmaxq_s32(vmaxq_s32(ints[0], ints[1]), vmaxq_s32(ints[2], ints[3]))) }
    }
    #[inline(always)]
    fn round(self, x: Self::Floats) -> Self::Ints {
        unsafe { quarters!(vcvtnq_s32_f32, x) }
    }
    #[inline(always)]
    fn store_i8(self, p: &mut [i8; 16], ints: Self::Ints) {
        unsafe {
            let words = quarters!(vmovn_s32, ints);
            let low = vmovn_s16(vcombine_s16(words[0], words[1]));
            let high = vmovn_s16(vcombine_s16(words[2], words[3]));
            vst1q_s8(p.as_mut_ptr(), vcombine_s8(low, high));
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    fn load(self, p: &[f32; 16]) -> Self::Floats {
        unsafe {
            [
                vld1q_f32(p.as_ptr()),
                vld1q_f32(p.as_ptr().add(4)),
                vld1q_f32(p.as_ptr().add(8)),
                vld1q_f32(p.as_ptr().add(12)),
            ]
        }
    }
    #[inline(always)]
    fn store(self, p: &mut [f32; 16], x: Self::Floats) {
        unsafe {
            for i in 0..4 {
                vst1q_f32(p.as_mut_ptr().add(4 * i), x[i]);
            }
        }
    }
    #[inline(always)]
    fn load_f32(self, p: &[u8; 64]) -> Self::Floats {
        unsafe { quarters!(vreinterpretq_f32_u8, self.load_bytes(p)) }
    }
    #[inline(always)]
    fn load_f16(self, p: &[u8; 32]) -> Self::Floats {
        unsafe {
            let halves = [
                vld1_u8(p.as_ptr()),
                vld1_u8(p.as_ptr().add(8)),
                vld1_u8(p.as_ptr().add(16)),
                vld1_u8(p.as_ptr().add(24)),
            ];
            quarters!(widen_f16, halves)
        }
    }
    #[inline(always)]
    fn load_bf16(self, p: &[u8; 32]) -> Self::Floats {
        unsafe {
            let bytes = [
                vld1_u8(p.as_ptr()),
                vld1_u8(p.as_ptr().add(8)),
                vld1_u8(p.as_ptr().add(16)),
                vld1_u8(p.as_ptr().add(24)),
            ];
            let halves = quarters!(vreinterpret_u16_u8, bytes);
            let wide = quarters!(vshll_n_u16::<16>, halves);
            quarters!(vreinterpretq_f32_u32, wide)
        }
    }
    #[inline(always)]
    fn load_i8(self, p: &[i8; 16]) -> Self::Floats {
        unsafe {
            let bytes = vld1q_s8(p.as_ptr());
            let words = [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)];
            let ints = [
                vmovl_s16(vget_low_s16(words[0])),
                vmovl_high_s16(words[0]),
                vmovl_s16(vget_low_s16(words[1])),
                vmovl_high_s16(words[1]),
            ];
            quarters!(vcvtq_f32_s32, ints)
        }
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { quarters!(vaddq_f32, a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { quarters!(vminq_f32, a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        unsafe { quarters!(vmulq_f32, a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { quarters!(vfmaq_f32, c, a, b) }
    }
    #[inline(always)]
    fn fnma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        unsafe { quarters!(vfmsq_f32, c, a, b) }
    }
    #[inline(always)]
    fn sum(self, x: Self::Floats) -> f32 {
        unsafe {
            let four = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn table(self, p: &[f32; 16]) -> Self::Table {
        unsafe {
            let floats = vld4q_u8(p.as_ptr().cast());
            [floats.0, floats.1, floats.2, floats.3]
        }
    }
    #[inline(always)]
    fn signed(self, p: &[u8; 16], signs: &[u8; 2], part: usize, table: Self::Table) -> Self::Floats {
        unsafe {
            const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
            let index = vandq_u8(vshlq_u8(vld1q_u8(p.as_ptr()), vdupq_n_s8(-2 * part as i8)), vdupq_n_u8(3));
            let signs = vcombine_u8(vdup_n_u8(signs[0]), vdup_n_u8(signs[1]));
            let signs = vandq_u8(vtstq_u8(signs, vld1q_u8(BITS.as_ptr())), vdupq_n_u8(0x80));
            look_up(table, index, signs)
        }
    }
    #[inline(always)]
    fn table4(self, p: &[u8; 16], part: usize, table: Self::Table) -> Self::Floats {
        unsafe {
            let index = vandq_u8(vshlq_u8(vld1q_u8(p.as_ptr()), vdupq_n_s8(-4 * part as i8)), vdupq_n_u8(15));
            look_up(table, index, vdupq_n_u8(0))
        }
    }
    #[inline(always)]
    fn table2(self, p: &[u8; 4], table: Self::Table) -> Self::Floats {
        unsafe {
            // Repeats each byte four times, shifted by 0, 2, 4 and 6.
            const BYTES: [u8; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
            const RIGHT: [i8; 16] = [0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6];
            let codes = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(*p)));
            let codes = vqtbl1q_u8(codes, vld1q_u8(BYTES.as_ptr()));
            let index = vandq_u8(vshlq_u8(codes, vld1q_s8(RIGHT.as_ptr())), vdupq_n_u8(3));
            look_up(table, index, vdupq_n_u8(0))
        }
    }
    #[inline(always)]
    fn add_where(self, bits: &[u8; 2], x: Self::Floats, y: Self::Floats) -> Self::Floats {
        unsafe {
            const BITS: [u32; 4] = [1, 2, 4, 8];
            let bits = u16::from_le_bytes(*bits);
            let mut sums = x;
            for i in 0..4 {
                let set = vtstq_u32(vdupq_n_u32(u32::from(bits) >> (4 * i)), vld1q_u32(BITS.as_ptr()));
                sums[i] = vbslq_f32(set, vaddq_f32(x[i], y[i]), x[i]);
            }
            sums
        }
    }

    #[inline(always)]
    fn f16_to_f32(self, bits: u16) -> f32 {
        unsafe { vgetq_lane_f32::<0>(widen_f16(vreinterpret_u8_u16(vdup_n_u16(bits)))) }
    }
    #[inline(always)]
    fn unpack_q6(self, low: &[u8; 64], high: &[u8; 32]) -> [Self::Bytes; 2] {
        unsafe {
            let (low, high) =
                (self.load_bytes(low), [vld1q_u8(high.as_ptr()), vld1q_u8(high.as_ptr().add(16))]);
            // Bits 2 to 5 are the low bits of a weight. Flipping the upper high bit subtracts 32.
            let (four_bits, two_bits, sign_bit) = (vdupq_n_u8(0x3c), vdupq_n_u8(0xc0), vdupq_n_u8(0x80));
            let mut unpacked = [low; 2];
            for i in 0..8 {
                let (low, high) = (low[i % 4], high[i % 2]);
                let low = if i < 4 { vshlq_n_u8::<2>(low) } else { vshrq_n_u8::<2>(low) };
                let high = vandq_u8(vshlq_u8(high, vdupq_n_s8(6 - 2 * (i as i8 / 2))), two_bits);
                unpacked[i / 4][i % 4] = veorq_u8(vorrq_u8(vandq_u8(low, four_bits), high), sign_bit);
            }
            unpacked
        }
    }
    #[inline(always)]
    fn top_bytes<const J: usize>(self, bytes: Self::Bytes) -> Self::Ints {
        unsafe {
            // An index out of range gives a zero.
            let j = 4 * J as u8;
            let order = [255, 255, 255, j, 255, 255, 255, j + 1, 255, 255, 255, j + 2, 255, 255, 255, j + 3];
            let order = [vld1q_u8(order.as_ptr()); 4];
            let integers = quarters!(vqtbl1q_u8, bytes, order);
            quarters!(vreinterpretq_s32_u8, integers)
        }
    }
    #[inline(always)]
    fn splat_each4(self, p: &[f32; 4]) -> Self::Floats {
        unsafe { [vdupq_n_f32(p[0]), vdupq_n_f32(p[1]), vdupq_n_f32(p[2]), vdupq_n_f32(p[3])] }
    }

    #[inline(always)]
    fn prefetch_far(self, p: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
}

/// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`. Codes are below 128: valid signed bytes.
///
/// # Safety
/// The processor has `sdot`.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, codes: uint8x16_t, acts: uint8x16_t) -> int32x4_t {
    unsafe {
        let mut acc = acc;
        // The intrinsic is not stable yet.
        asm!(
            "sdot {acc:v}.4s, {codes:v}.16b, {acts:v}.16b",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            acts = in(vreg) acts,
            options(pure, nomem, nostack, preserves_flags)
        );
        acc
    }
}

/// Transposes four rows.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn transpose4(v: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    unsafe {
        // Columns `c` and `2 + c` of two rows for each `c`.
        let first = [vtrn1q_u32(v[0], v[1]), vtrn2q_u32(v[0], v[1])];
        let second = [vtrn1q_u32(v[2], v[3]), vtrn2q_u32(v[2], v[3])];
        let mut columns = v;
        for c in 0..2 {
            let (a, b) = (vreinterpretq_u64_u32(first[c]), vreinterpretq_u64_u32(second[c]));
            columns[c] = vreinterpretq_u32_u64(vtrn1q_u64(a, b));
            columns[2 + c] = vreinterpretq_u32_u64(vtrn2q_u64(a, b));
        }
        columns
    }
}

/// Looks up the floats at 16 indices, and flips the bits of `flips` in their last bytes.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn look_up(table: [uint8x16_t; 4], index: uint8x16_t, flips: uint8x16_t) -> [float32x4_t; 4] {
    unsafe {
        let bytes = quarters!(vqtbl1q_u8, table, [index; 4]);
        let last = veorq_u8(bytes[3], flips);
        let low = [vzip1q_u8(bytes[0], bytes[1]), vzip2q_u8(bytes[0], bytes[1])];
        let high = [vzip1q_u8(bytes[2], last), vzip2q_u8(bytes[2], last)];
        let words = |i: usize| (vreinterpretq_u16_u8(low[i]), vreinterpretq_u16_u8(high[i]));
        let (first, second) = (words(0), words(1));
        [
            vreinterpretq_f32_u16(vzip1q_u16(first.0, first.1)),
            vreinterpretq_f32_u16(vzip2q_u16(first.0, first.1)),
            vreinterpretq_f32_u16(vzip1q_u16(second.0, second.1)),
            vreinterpretq_f32_u16(vzip2q_u16(second.0, second.1)),
        ]
    }
}

/// Converts four f16 to floats.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn widen_f16(halves: uint8x8_t) -> float32x4_t {
    unsafe { vcvt_f32_f16(vreinterpret_f16_u8(halves)) }
}
