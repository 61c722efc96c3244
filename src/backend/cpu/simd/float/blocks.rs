//! Blocks of 32 weights of 4 or 5 bits under a scale.
//!
//! 16 values of a block, one for each low half of a code, are made at once; the codes are looked up in them.
//! All arithmetic but one addition of a minimum is exact: an f16 times an integer of a few bits.
#![allow(unsafe_code)]

use super::Form;
use crate::backend::cpu::simd::lanes::Lanes;

/// The values of 4 bits, and those less 8 and less 16.
pub(super) static FROM_0: [f32; 16] = from(0.0);
static FROM_MINUS_8: [f32; 16] = from(-8.0);
static FROM_MINUS_16: [f32; 16] = from(-16.0);

const fn from(first: f32) -> [f32; 16] {
    let (mut values, mut i) = ([first; 16], 1);
    while i < 16 {
        values[i] = values[i - 1] + 1.0;
        i += 1;
    }
    values
}

/// f16 scale, then 16 bytes of 4 bits: value = scale x (code - 8).
pub struct Q4_0;
/// f16 scale, the fifth bits of 32 codes, then 16 bytes of 4 bits: value = scale x (code - 16).
pub struct Q5_0;

impl Form for Q4_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let table = look_up_in::<L>(L::mul(splat_f16::<L>(block), L::load(FROM_MINUS_8.as_ptr())));
            each(0, L::table4(block.add(2), 0, table));
            each(16, L::table4(block.add(2), 1, table));
        }
    }
}

impl Form for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(block: *const u8, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let scale = splat_f16::<L>(block);
            let table = look_up_in::<L>(L::mul(scale, L::load(FROM_MINUS_16.as_ptr())));
            let fifth = L::mul(scale, L::splat(16.0));
            each(0, L::add_where(block.add(2), L::table4(block.add(6), 0, table), fifth));
            each(16, L::add_where(block.add(4), L::table4(block.add(6), 1, table), fifth));
        }
    }
}

/// The f16 at an address, 16 times.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn splat_f16<L: Lanes>(p: *const u8) -> L::Floats {
    // SAFETY: as for this function.
    unsafe { L::splat(L::f16_to_f32(p.cast::<u16>().read_unaligned())) }
}

/// A table of those values.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn look_up_in<L: Lanes>(values: L::Floats) -> L::Table {
    let mut table = [0.0; 16];
    // SAFETY: as for this function; there are 16 values.
    unsafe {
        L::store(table.as_mut_ptr(), values);
        L::table(table.as_ptr())
    }
}
