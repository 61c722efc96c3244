//! Weight types as codes, with a scale and perhaps an offset for each group.
#![allow(unsafe_code)]

use super::super::lanes::{Lanes, array, array_mut};

/// A type whose weights are `scale x (code - zero) + minimum`.
pub trait Coded {
    /// Weights of a block, 32 to 256, and its bytes.
    const BLOCK: usize;
    const BYTES: usize;
    /// Weights under one scale: 16 or 32.
    const GROUP: usize;
    /// The zero of codes below 128; `None` for signed bytes, whose zero is [`Lanes::ZERO`].
    const ZERO: Option<u8>;
    /// Whether groups have a minimum.
    const MINIMUMS: bool = false;
    /// Where a block with nothing but one f16 scale has it.
    const SCALE: usize = 0;
    /// Bytes that [`head`](Self::head) keeps of a block: the one scale, unless a type says otherwise.
    const HEAD: usize = 2;

    /// The codes of 64 weights. They begin at weight `64 STEP` of the block; of blocks of 32, `next` is the
    /// second one.
    ///
    /// # Safety
    /// The blocks are there.
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, next: *const u8) -> L::Bytes;

    /// Copies what [`groups`](Self::groups) reads of a block.
    ///
    /// # Safety
    /// The block is there, and room for [`HEAD`](Self::HEAD) bytes.
    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the caller has the block, and room for two bytes.
        unsafe { copy2(block.add(Self::SCALE), head) }
    }

    /// The scales of 16 blocks from their heads, `[16, HEAD]`, and their minimums where there are such: both
    /// are `[groups, 16]`.
    ///
    /// # Safety
    /// The heads are there, at a multiple of 4 bytes, and room for the floats.
    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, _minimums: *mut f32) {
        for group in 0..Self::BLOCK / Self::GROUP {
            // SAFETY: the caller has 16 scales, and room for the floats of each group.
            unsafe { l.store(array_mut(scales.add(16 * group)), l.load_f16(array(heads))) };
        }
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
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, next: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { l.nibbles(array(block.add(2)), array(next.add(2))) }
    }
}

impl Coded for Q4_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 20;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 4;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, next: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { l.nibbles(array(block.add(4)), array(next.add(4))) }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            head.cast::<u32>().write_unaligned(block.cast::<u32>().read_unaligned());
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, minimums: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            let halves = l.load_ints(array(heads.cast()));
            l.store(array_mut(scales), l.halves_to_floats(halves));
            l.store(array_mut(minimums), l.halves_to_floats(l.shift_right(halves, 16)));
        }
    }
}

impl Coded for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(16);

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, next: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { fifth_bits(l, block.add(2), next.add(2)) }
    }
}

impl Coded for Q5_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 24;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 4;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, next: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { fifth_bits(l, block.add(4), next.add(4)) }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            head.cast::<u32>().write_unaligned(block.cast::<u32>().read_unaligned());
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, minimums: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            let halves = l.load_ints(array(heads.cast()));
            l.store(array_mut(scales), l.halves_to_floats(halves));
            l.store(array_mut(minimums), l.halves_to_floats(l.shift_right(halves, 16)));
        }
    }
}

impl Coded for Q8_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = None;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, next: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { l.signed_codes(l.load_halves(array(block.add(2)), array(next.add(2)))) }
    }
}

impl Coded for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 16;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { l.fields(array(block.add(16 + 32 * STEP)), 0, 4, 15) }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            copy16(block, head);
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, minimums: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            six_bits(l, heads, scales, minimums);
        }
    }
}

impl Coded for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const GROUP: usize = 32;
    const ZERO: Option<u8> = Some(0);
    const MINIMUMS: bool = true;
    const HEAD: usize = 16;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            let low = l.fields(array(block.add(48 + 32 * STEP)), 0, 4, 15);
            l.with_high::<4>(low, l.fields(array(block.add(16)), 2 * STEP as u32, 2 * STEP as u32 + 1, 1))
        }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            copy16(block, head);
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, minimums: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            six_bits(l, heads, scales, minimums);
        }
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
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe { two_bits::<L, STEP>(l, block.add(16)) }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            copy16(block, head);
            head.add(16).cast::<u32>().write_unaligned(block.add(80).cast::<u32>().read_unaligned());
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, minimums: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            let (packed, halves) = (rows::<L, 32>(l, heads), rows::<L, 32>(l, heads.add(16))[0]);
            let scale = l.halves_to_floats(halves);
            let minimum = l.mul(l.halves_to_floats(l.shift_right(halves, 16)), l.splat(-1.0));
            for group in 0..16 {
                let (word, at) = (packed[group / 4], group % 4 * 8);
                l.store(array_mut(scales.add(16 * group)), l.mul(scale, bits(l, word, at, 15)));
                l.store(array_mut(minimums.add(16 * group)), l.mul(minimum, bits(l, word, at + 4, 15)));
            }
        }
    }
}

impl Coded for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    const GROUP: usize = 16;
    const ZERO: Option<u8> = Some(4);
    const HEAD: usize = 16;

    #[inline(always)]
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            let high = l.fields(array(block), 2 * STEP as u32, 2 * STEP as u32 + 1, 1);
            l.with_high::<2>(two_bits::<L, STEP>(l, block.add(32)), high)
        }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            copy16(block.add(94), head);
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, _: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            // Two other bytes, 12 of factors, and the f16.
            let words = rows::<L, 16>(l, heads);
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
                    l.store(array_mut(scales.add(16 * (4 * i + byte))), l.mul(scale, factor));
                }
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
    unsafe fn codes<L: Lanes, const STEP: usize>(l: L, block: *const u8, _: *const u8) -> L::Bytes {
        // SAFETY: the blocks are there.
        unsafe {
            let four_times =
                l.unpack_q6(array(block.add(STEP / 2 * 64)), array(block.add(128 + STEP / 2 * 32)));
            l.signed_codes(four_times[STEP % 2])
        }
    }

    #[inline(always)]
    unsafe fn head(block: *const u8, head: *mut u8) {
        // SAFETY: the block is there, and room for its head.
        unsafe {
            copy16(block.add(192), head);
            copy2(block.add(208), head.add(16));
        }
    }

    #[inline(always)]
    unsafe fn groups<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, _: *mut f32) {
        // SAFETY: the heads are there, and room for the floats.
        unsafe {
            let packed = rows::<L, 32>(l, heads);
            // Codes count four times.
            let halves = rows::<L, 32>(l, heads.add(16))[0];
            let scale = l.mul(l.halves_to_floats(halves), l.splat(0.25));
            for i in 0..4 {
                // The sign of a byte is turned, which adds 128: of every second one at a time, as each needs
                // room for what it carries.
                let (every_second, sign) = (l.splat_int(0x00ff_00ff), l.splat_int(0x0080_0080));
                let even = l.add_ints(l.and(packed[i], every_second), sign);
                let odd = l.add_ints(l.and(l.shift_right(packed[i], 8), every_second), sign);
                let factors = [
                    bits(l, even, 0, 255),
                    bits(l, odd, 0, 255),
                    bits(l, even, 16, 255),
                    bits(l, odd, 16, 255),
                ];
                for byte in 0..4 {
                    let factor = l.add(factors[byte], l.splat(-128.0));
                    l.store(array_mut(scales.add(16 * (4 * i + byte))), l.mul(scale, factor));
                }
            }
        }
    }
}

/// 32 fifth bits and 16 bytes of nibbles of two blocks.
///
/// # Safety
/// 20 bytes are there of each.
#[inline(always)]
unsafe fn fifth_bits<L: Lanes>(l: L, block: *const u8, next: *const u8) -> L::Bytes {
    // SAFETY: the caller has the bytes.
    unsafe {
        let first = u64::from(block.cast::<u32>().read_unaligned());
        let second = u64::from(next.cast::<u32>().read_unaligned());
        l.with_fifth(l.nibbles(array(block.add(4)), array(next.add(4))), first | second << 32)
    }
}

/// Four codes a byte, low bits first, each the next of four groups of 32, in each half of a block.
///
/// # Safety
/// 64 bytes are there.
#[inline(always)]
pub(super) unsafe fn two_bits<L: Lanes, const STEP: usize>(l: L, packed: *const u8) -> L::Bytes {
    let place = STEP as u32 % 2 * 4;
    // SAFETY: the caller has the bytes.
    unsafe { l.fields(array(packed.add(STEP / 2 * 32)), place, place + 2, 3) }
}

/// The scales and minimums of Q4_K and Q5_K: multiples by 6 bits of two f16.
///
/// # Safety
/// As [`Coded::groups`].
#[inline(always)]
unsafe fn six_bits<L: Lanes>(l: L, heads: *const u8, scales: *mut f32, minimums: *mut f32) {
    // SAFETY: the heads are there, and room for the floats.
    unsafe {
        let [halves, first, second, rest] = rows::<L, 16>(l, heads);
        let scale = l.halves_to_floats(halves);
        let minimum = l.mul(l.halves_to_floats(l.shift_right(halves, 16)), l.splat(-1.0));
        let (six, four, two) = (l.splat_int(0x3f3f_3f3f), l.splat_int(0x0f0f_0f0f), l.splat_int(0x3030_3030));
        let late_scales = l.or(l.and(rest, four), l.and(l.shift_right(first, 2), two));
        let late_minimums = l.or(l.and(l.shift_right(rest, 4), four), l.and(l.shift_right(second, 2), two));
        let (of_scales, of_minimums) =
            ([l.and(first, six), late_scales], [l.and(second, six), late_minimums]);
        for i in 0..2 {
            let (of_scales, of_minimums) = (bytes(l, of_scales[i]), bytes(l, of_minimums[i]));
            for byte in 0..4 {
                let at = 16 * (4 * i + byte);
                l.store(array_mut(scales.add(at)), l.mul(scale, of_scales[byte]));
                l.store(array_mut(minimums.add(at)), l.mul(minimum, of_minimums[byte]));
            }
        }
    }
}

/// # Safety
/// The bytes are there, and room for them.
#[inline(always)]
unsafe fn copy2(from: *const u8, to: *mut u8) {
    // SAFETY: the caller has the bytes.
    unsafe { to.cast::<[u8; 2]>().write(from.cast::<[u8; 2]>().read()) }
}

/// # Safety
/// The bytes are there, and room for them.
#[inline(always)]
unsafe fn copy16(from: *const u8, to: *mut u8) {
    // SAFETY: the caller has the bytes.
    unsafe { to.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read()) }
}

/// Four words of each of 16 rows that are `STRIDE` bytes apart.
///
/// # Safety
/// 16 bytes are there of each row.
#[inline(always)]
pub(super) unsafe fn rows<L: Lanes, const STRIDE: usize>(l: L, first: *const u8) -> [L::Ints; 4] {
    // SAFETY: the caller has 16 bytes of each row.
    unsafe {
        let mut rows = [array(first); 16];
        for i in 0..16 {
            rows[i] = array(first.add(i * STRIDE));
        }
        l.quads(&rows)
    }
}

/// The four bytes of each word.
#[inline(always)]
fn bytes<L: Lanes>(l: L, word: L::Ints) -> [L::Floats; 4] {
    [bits(l, word, 0, 255), bits(l, word, 8, 255), bits(l, word, 16, 255), bits(l, word, 24, 255)]
}

/// `word >> shift & mask`; the mask has none of the bits that come in from above.
#[inline(always)]
pub(super) fn bits<L: Lanes>(l: L, word: L::Ints, shift: usize, mask: i32) -> L::Floats {
    l.to_floats(l.and(l.shift_right(word, shift), l.splat_int(mask)))
}
