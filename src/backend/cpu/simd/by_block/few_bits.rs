//! Codes of one and two bits, and of ternary weights.
#![allow(unsafe_code)]

use super::super::lanes::{Lanes, array, array_mut};
use super::codes::{Coded, two_bits};

pub struct Q1_0;
/// Q2_0 with groups of `N`: four neighbours a byte, low bits first.
pub struct TwoBits<const N: usize>;
pub struct Tq2_0;
pub struct Tq1_0;
pub struct Ptq1_0;

impl Coded for Q1_0 {
    const BLOCK: usize = 128;
    const BYTES: usize = 18;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(8);

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            let bits = block.add(2 + 8 * STEP).cast::<u64>().read_unaligned();
            l.with_fifth(l.splat4(&[0; 4]), bits)
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, _: *mut f32) {
        for group in 0..Self::BLOCK / Self::GROUP {
            // A bit counts 16, from -8 to 8.
            // SAFETY: the caller has 16 scales, and room for the floats of each group.
            unsafe {
                l.store(array_mut(scales.add(16 * group)), l.mul(l.load_f16(array(heads)), l.splat(0.125)))
            };
        }
    }
}

impl<const N: usize> Coded for TwoBits<N> {
    const BLOCK: usize = N;
    const BYTES: usize = 2 + N / 4;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(1);

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            // Each byte goes to four, two bits further down each time.
            let packed = l.load_u8(array(block.add(2 + 16 * STEP)));
            let twice = l.or(packed, l.shift_left(packed, 6));
            let codes = l.or(twice, l.shift_left(twice, 12));
            l.as_bytes(l.and(codes, l.splat_int(0x0303_0303)))
        }
    }
}

impl Coded for Tq2_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 66;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(1);
    const SCALE: usize = 64;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { two_bits::<L, STEP>(l, block) }
    }
}

/// The powers of three that bring the digits of each 64 weights of TQ1_0 to the front: 32 bytes have 5
/// digits, 16 bytes have 5, and 4 bytes have 4.
static POWERS: [[u8; 64]; 4] = {
    let (three_to, mut powers, mut i) = ([1, 3, 9, 27, 81], [[0; 64]; 4], 0);
    while i < 256 {
        powers[i / 64][i % 64] = match i {
            0..160 => three_to[i / 32],
            160..240 => three_to[(i - 160) / 16],
            _ => three_to[(i - 240) / 4],
        };
        i += 1;
    }
    powers
};

impl Coded for Tq1_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 54;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(1);
    const SCALE: usize = 52;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            let [a, b, c] = [array(block), array(block.add(16)), array(block.add(32))];
            let fours = [block.add(48).cast::<[u8; 4]>().read(); 4];
            let quarters = match STEP {
                0 | 1 => [a, b, a, b],
                2 => [a, b, c, c],
                _ => [c, c, c, array(fours.as_ptr().cast())],
            };
            l.trits(l.load_quarters(quarters), &POWERS[STEP])
        }
    }
}

/// Likewise of PTQ1_0: 16 bytes have 5 digits, 8 bytes have 5, and 2 bytes have 4.
static HALF_POWERS: [[u8; 64]; 2] = {
    let (three_to, mut powers, mut i) = ([1, 3, 9, 27, 81], [[0; 64]; 2], 0);
    while i < 128 {
        powers[i / 64][i % 64] = match i {
            0..80 => three_to[i / 16],
            80..120 => three_to[(i - 80) / 8],
            _ => three_to[(i - 120) / 2],
        };
        i += 1;
    }
    powers
};

impl Coded for Ptq1_0 {
    const BLOCK: usize = 128;
    const BYTES: usize = 28;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(1);
    const SCALE: usize = 26;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            let eight = block.add(16).cast::<u64>().read_unaligned();
            let pairs = u64::from(block.add(24).cast::<u16>().read_unaligned()) * 0x0001_0001_0001_0001;
            let (twice, last) = ([eight, eight], [eight, pairs]);
            let quarters = match STEP {
                0 => [array(block); 4],
                _ => [
                    array(block),
                    array(twice.as_ptr().cast()),
                    array(twice.as_ptr().cast()),
                    array(last.as_ptr().cast()),
                ],
            };
            l.trits(l.load_quarters(quarters), &HALF_POWERS[STEP])
        }
    }
}
