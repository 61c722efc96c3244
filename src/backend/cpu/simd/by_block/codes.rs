//! Weight types as codes with a scale, and optionally a minimum, per group.

use super::super::UNIT;
use super::super::lanes::{Lanes, part};

/// A type whose weights are `scale x (code - zero) + minimum`.
pub trait Coded {
    /// Weights and bytes of a block; 32 to 256 weights.
    const BLOCK: usize;
    const BYTES: usize;
    /// Weights per scale: 16 or 32.
    const GROUP: usize;
    /// The code of zero, for codes below 128; `None` for signed bytes, whose zero is [`Lanes::ZERO`].
    const ZERO: Option<u8>;
    /// True if groups have a minimum.
    const MINIMUMS: bool = false;
    /// Offset of the scale in a block whose only parameter is one f16 scale.
    const SCALE: usize = 0;
    /// Bytes that [`head`](Self::head) copies per unit, 16 or 32.
    const HEAD: usize = 16;

    /// Unpacks the codes of 64 weights, from weight `64 STEP` of the block, `[BYTES]`, on; with blocks of 32,
    /// `next` is the block of the second 32.
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes;

    /// Copies the bytes that [`groups`](Self::groups) needs from the blocks of a [`UNIT`], or from its first
    /// blocks, to the unit's head: 16 bytes to `head[0]`, and any further ones to `head[16]`.
    #[inline(always)]
    fn head(blocks: &[u8], head: &mut [[u8; 16]]) {
        keep::<Self, 2>(blocks, Self::SCALE, head);
    }

    /// Computes the scales of a unit of 16 rows from their heads, `[HEAD / 16, 16 slots]`, and the minimums
    /// if the type has them: both are `[groups, 16]`.
    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], _minimums: &mut [f32]) {
        halves::<L, Self>(l, heads, 1.0, scales);
    }
}

pub struct Q4_0;
pub struct Q4_1;
pub struct Q5_0;
pub struct Q5_1;
pub struct Q8_0;
pub struct Q2K;
pub struct Q3K;
pub struct Q4K;
pub struct Q5K;
pub struct Q6K;

impl Coded for Q4_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(8);

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        l.nibbles(part(block, 2), part(next, 2))
    }
}

impl Coded for Q4_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 20;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 32;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        l.nibbles(part(block, 4), part(next, 4))
    }

    #[inline(always)]
    fn head(blocks: &[u8], head: &mut [[u8; 16]]) {
        keep::<Self, 4>(blocks, 0, head);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
        scales_and_minimums(l, heads, scales, minimums);
    }
}

impl Coded for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(16);

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        fifth_bits(l, part(block, 2), part(next, 2))
    }
}

impl Coded for Q5_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 24;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 32;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        fifth_bits(l, part(block, 4), part(next, 4))
    }

    #[inline(always)]
    fn head(blocks: &[u8], head: &mut [[u8; 16]]) {
        keep::<Self, 4>(blocks, 0, head);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
        scales_and_minimums(l, heads, scales, minimums);
    }
}

impl Coded for Q8_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = None;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], next: &[u8]) -> L::Bytes {
        l.signed_codes(l.load_halves(part(block, 2), part(next, 2)))
    }
}

impl Coded for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        l.fields(part(block, 16 + 32 * STEP), 0, 4, 15)
    }

    #[inline(always)]
    fn head(block: &[u8], head: &mut [[u8; 16]]) {
        head[0] = *part(block, 0);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
        six_bits(l, heads, scales, minimums);
    }
}

impl Coded for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let low = l.fields(part(block, 48 + 32 * STEP), 0, 4, 15);
        l.with_high::<4>(low, l.fields(part(block, 16), 2 * STEP as u32, 2 * STEP as u32 + 1, 1))
    }

    #[inline(always)]
    fn head(block: &[u8], head: &mut [[u8; 16]]) {
        head[0] = *part(block, 0);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
        six_bits(l, heads, scales, minimums);
    }
}

impl Coded for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    const GROUP: usize = 16;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 32;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        two_bits::<L, STEP>(l, part(block, 16))
    }

    #[inline(always)]
    fn head(block: &[u8], head: &mut [[u8; 16]]) {
        (head[0], head[16]) = (*part(block, 0), *part(block, Self::BYTES - 16));
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
        let scales = scales.as_chunks_mut::<16>().0;
        let minimums = minimums.as_chunks_mut::<16>().0;
        let (packed, [.., halves]) = (l.quads(sixteen(heads, 0)), l.quads(sixteen(heads, 16)));
        let scale = l.halves_to_floats(halves);
        let minimum = l.mul(l.halves_to_floats(l.shift_right(halves, 16)), l.splat(-1.0));
        for group in 0..16 {
            let (word, at) = (packed[group / 4], group % 4 * 8);
            l.store(&mut scales[group], l.mul(scale, bits(l, word, at, 15)));
            l.store(&mut minimums[group], l.mul(minimum, bits(l, word, at + 4, 15)));
        }
    }
}

impl Coded for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    const GROUP: usize = 16;
    const ZERO: Option<u8> = Some(4);

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let high = l.fields(part(block, 0), 2 * STEP as u32, 2 * STEP as u32 + 1, 1);
        l.with_high::<2>(two_bits::<L, STEP>(l, part(block, 32)), high)
    }

    #[inline(always)]
    fn head(block: &[u8], head: &mut [[u8; 16]]) {
        head[0] = *part(block, 94);
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], _: &mut [f32]) {
        let scales = scales.as_chunks_mut::<16>().0.as_chunks_mut::<4>().0;
        // Two unused bytes, 12 bytes of factors, and the f16.
        let words = l.quads(sixteen(heads, 0));
        let mut packed = words;
        for i in 0..3 {
            let low = l.and(l.shift_right(words[i], 16), l.splat_int(0xffff));
            packed[i] = l.or(low, l.shift_left(words[i + 1], 16));
        }
        let scale = l.halves_to_floats(l.shift_right(words[3], 16));
        let (four, two) = (l.splat_int(0x0f0f_0f0f), l.splat_int(0x0303_0303));
        for i in 0..4 {
            let low = l.and(l.shift_right(packed[i % 2], i / 2 * 4), four);
            let high = l.shift_left(l.and(l.shift_right(packed[2], 2 * i), two), 4);
            let word = l.or(low, high);
            let factors = bytes(l, word);
            for byte in 0..4 {
                let factor = l.add(factors[byte], l.splat(-32.0));
                l.store(&mut scales[i][byte], l.mul(scale, factor));
            }
        }
    }
}

impl Coded for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    const GROUP: usize = 16;
    const ZERO: Option<u8> = None;
    const HEAD: usize = 32;

    #[inline(always)]
    fn codes<L: Lanes, const STEP: usize>(l: L, block: &[u8], _: &[u8]) -> L::Bytes {
        let four_times = l.unpack_q6(part(block, STEP / 2 * 64), part(block, 128 + STEP / 2 * 32));
        l.signed_codes(four_times[STEP % 2])
    }

    #[inline(always)]
    fn head(block: &[u8], head: &mut [[u8; 16]]) {
        (head[0], head[16]) = (*part(block, 192), *part(block, Self::BYTES - 16));
    }

    #[inline(always)]
    fn groups<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], _: &mut [f32]) {
        let scales = scales.as_chunks_mut::<16>().0.as_chunks_mut::<4>().0;
        let packed = l.quads(sixteen(heads, 0));
        // Codes are four times too large.
        let [.., last] = l.quads(sixteen(heads, 16));
        let scale = l.mul(l.halves_to_floats(l.shift_right(last, 16)), l.splat(0.25));
        for i in 0..4 {
            // Flipping the sign bit of a byte adds 128. It is done for every second byte at a time, so that
            // there is space for the carry.
            let (every_second, sign) = (l.splat_int(0x00ff_00ff), l.splat_int(0x0080_0080));
            let even = l.add_ints(l.and(packed[i], every_second), sign);
            let odd = l.add_ints(l.and(l.shift_right(packed[i], 8), every_second), sign);
            let factors =
                [bits(l, even, 0, 255), bits(l, odd, 0, 255), bits(l, even, 16, 255), bits(l, odd, 16, 255)];
            for byte in 0..4 {
                let factor = l.add(factors[byte], l.splat(-128.0));
                l.store(&mut scales[i][byte], l.mul(scale, factor));
            }
        }
    }
}

/// Unpacks the codes of two blocks, each 32 fifth bits and 16 bytes of nibbles.
#[inline(always)]
fn fifth_bits<L: Lanes>(l: L, block: &[u8; 20], next: &[u8; 20]) -> L::Bytes {
    let first = u64::from(u32::from_le_bytes(*part(block, 0)));
    let second = u64::from(u32::from_le_bytes(*part(next, 0)));
    l.with_fifth(l.nibbles(part(block, 4), part(next, 4)), first | second << 32)
}

/// Unpacks 64 codes of 2 bits: each half of a block has 32 bytes, with one code of each of four groups of 32
/// per byte, low bits first.
#[inline(always)]
pub(super) fn two_bits<L: Lanes, const STEP: usize>(l: L, packed: &[u8; 64]) -> L::Bytes {
    let place = STEP as u32 % 2 * 4;
    l.fields(part(packed, STEP / 2 * 32), place, place + 2, 3)
}

/// The scales and minimums of Q4_K and Q5_K: products of 6-bit integers and two f16.
#[inline(always)]
fn six_bits<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
    let scales = scales.as_chunks_mut::<16>().0.as_chunks_mut::<4>().0;
    let minimums = minimums.as_chunks_mut::<16>().0.as_chunks_mut::<4>().0;
    let [halves, first, second, rest] = l.quads(sixteen(heads, 0));
    let scale = l.halves_to_floats(halves);
    let minimum = l.mul(l.halves_to_floats(l.shift_right(halves, 16)), l.splat(-1.0));
    let (six, four, two) = (l.splat_int(0x3f3f_3f3f), l.splat_int(0x0f0f_0f0f), l.splat_int(0x3030_3030));
    let late_scales = l.or(l.and(rest, four), l.and(l.shift_right(first, 2), two));
    let late_minimums = l.or(l.and(l.shift_right(rest, 4), four), l.and(l.shift_right(second, 2), two));
    let (of_scales, of_minimums) = ([l.and(first, six), late_scales], [l.and(second, six), late_minimums]);
    for i in 0..2 {
        let (of_scales, of_minimums) = (bytes(l, of_scales[i]), bytes(l, of_minimums[i]));
        for byte in 0..4 {
            l.store(&mut scales[i][byte], l.mul(scale, of_scales[byte]));
            l.store(&mut minimums[i][byte], l.mul(minimum, of_minimums[byte]));
        }
    }
}

/// Copies `SIZE` bytes of each block, from `at` on, one after another.
#[inline(always)]
pub(super) fn keep<F: Coded + ?Sized, const SIZE: usize>(blocks: &[u8], at: usize, head: &mut [[u8; 16]]) {
    for i in 0..blocks.len() / F::BYTES {
        let to = &mut head[i * SIZE / 16 * 16][i * SIZE % 16..][..SIZE];
        to.copy_from_slice(part::<SIZE>(blocks, i * F::BYTES + at));
    }
}

/// The heads of 16 rows from `at` on.
#[inline(always)]
pub(super) fn sixteen(heads: &[[u8; 16]], at: usize) -> &[[u8; 16]; 16] {
    heads[at..].first_chunk().expect("heads of 16 rows")
}

/// The scales of groups: `factor` times the f16 of each block.
#[inline(always)]
pub(super) fn halves<L: Lanes, F: Coded + ?Sized>(l: L, heads: &[[u8; 16]], factor: f32, scales: &mut [f32]) {
    let scales = scales.as_chunks_mut::<16>().0;
    let (words, in_block) = (l.quads(sixteen(heads, 0)), F::BLOCK / F::GROUP);
    for block in 0..UNIT / F::BLOCK {
        let word = words[block / 2];
        let mut scale = l.halves_to_floats(if block % 2 == 0 { word } else { l.shift_right(word, 16) });
        if factor != 1.0 {
            scale = l.mul(scale, l.splat(factor));
        }
        for group in 0..in_block {
            l.store(&mut scales[block * in_block + group], scale);
        }
    }
}

/// The scales and minimums of blocks of 32, which are two f16.
#[inline(always)]
fn scales_and_minimums<L: Lanes>(l: L, heads: &[[u8; 16]], scales: &mut [f32], minimums: &mut [f32]) {
    let scales = scales.as_chunks_mut::<16>().0;
    let minimums = minimums.as_chunks_mut::<16>().0;
    for half in 0..2 {
        let pairs = l.quads(sixteen(heads, 16 * half));
        for i in 0..4 {
            l.store(&mut scales[4 * half + i], l.halves_to_floats(pairs[i]));
            l.store(&mut minimums[4 * half + i], l.halves_to_floats(l.shift_right(pairs[i], 16)));
        }
    }
}

/// The four bytes of each word, as floats.
#[inline(always)]
fn bytes<L: Lanes>(l: L, word: L::Ints) -> [L::Floats; 4] {
    [bits(l, word, 0, 255), bits(l, word, 8, 255), bits(l, word, 16, 255), bits(l, word, 24, 255)]
}

/// `word >> shift & mask` as floats; the mask excludes the bits that are shifted in from above.
#[inline(always)]
pub(super) fn bits<L: Lanes>(l: L, word: L::Ints, shift: usize, mask: i32) -> L::Floats {
    l.to_floats(l.and(l.shift_right(word, shift), l.splat_int(mask)))
}
