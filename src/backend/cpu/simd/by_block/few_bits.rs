//! Types with codes of one and two bits, and ternary types.

use super::super::lanes::{Lanes, part};
use super::codes::{Coded, halves, two_bits};

pub struct Q1_0;
/// Q2_0 with blocks of `N`: four adjacent codes per byte, low bits first.
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
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let bits = u64::from_le_bytes(*part(block, 2 + 8 * STEP));
        l.with_fifth(l.splat4(&[0; 4]), bits)
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], _: &mut [f32]) {
        // Codes are 0 and 16 with a zero of 8: values of -8 and 8.
        halves::<L, Self>(l, heads, 0.125, scales);
    }
}

impl<const N: usize> Coded for TwoBits<N> {
    const BLOCK: usize = N;
    const BYTES: usize = 2 + N / 4;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(1);

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        // Each byte is copied to four, shifted by two more bits each time.
        let packed = l.load_u8(part(block, 2 + 16 * STEP));
        let twice = l.or(packed, l.shift_left(packed, 6));
        let codes = l.or(twice, l.shift_left(twice, 12));
        l.as_bytes(l.and(codes, l.splat_int(0x0303_0303)))
    }
}

impl Coded for Tq2_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 66;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(1);
    const SCALE: usize = 64;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        two_bits::<L, STEP>(l, part(block, 0))
    }
}

/// The powers of three that shift the base 3 digits of each 64 weights of TQ1_0 to the front: 32 bytes have 5
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
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let [a, b, c] = [part(block, 0), part(block, 16), part(block, 32)];
        let fours = [*part::<4>(block, 48); 4];
        let quarters = match STEP {
            0 | 1 => [a, b, a, b],
            2 => [a, b, c, c],
            _ => [c, c, c, bytemuck::cast_ref(&fours)],
        };
        l.trits(l.load_quarters(quarters), &POWERS[STEP])
    }
}

/// Likewise for PTQ1_0: 16 bytes have 5 digits, 8 bytes have 5, and 2 bytes have 4.
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
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let eight = u64::from_le_bytes(*part(block, 16));
        let pairs = u64::from(u16::from_le_bytes(*part(block, 24))) * 0x0001_0001_0001_0001;
        let (twice, last) = ([eight, eight], [eight, pairs]);
        let quarters = match STEP {
            0 => [part(block, 0); 4],
            _ => [
                part(block, 0),
                bytemuck::cast_ref(&twice),
                bytemuck::cast_ref(&twice),
                bytemuck::cast_ref(&last),
            ],
        };
        l.trits(l.load_quarters(quarters), &HALF_POWERS[STEP])
    }
}
