//! Weight types as unsigned codes of up to 7 bits, with a scale and an offset for each group: plain code that
//! the compiler vectorises.

use half::f16;

/// A type whose weights are `scale x code + offset`.
pub trait Coded {
    /// Weights of a block, and its bytes.
    const BLOCK: usize;
    const BYTES: usize;
    /// Weights under one scale and offset: 16 or 32.
    const GROUP: usize;

    /// Writes the codes of a block, below 128, and its groups' scales and offsets.
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]);
}

pub struct Q4_0;
pub struct Q4_1;
pub struct Q5_0;
pub struct Q5_1;
pub struct Q2K;
pub struct Q3K;
pub struct Q4K;
pub struct Q5K;
pub struct Q6K;

impl Coded for Q4_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        let scale = half(block, 0);
        groups[0] = [scale, -8.0 * scale];
        nibbles(&block[2..18], codes);
    }
}

impl Coded for Q4_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 20;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        groups[0] = [half(block, 0), half(block, 2)];
        nibbles(&block[4..20], codes);
    }
}

impl Coded for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        let scale = half(block, 0);
        groups[0] = [scale, -16.0 * scale];
        nibbles(&block[6..22], codes);
        fifth_bits(&block[2..6], codes);
    }
}

impl Coded for Q5_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 24;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        groups[0] = [half(block, 0), half(block, 2)];
        nibbles(&block[8..24], codes);
        fifth_bits(&block[4..8], codes);
    }
}

impl Coded for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        k_groups(block, groups);
        for (codes, packed) in codes.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)) {
            nibbles(packed, codes);
        }
    }
}

impl Coded for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        k_groups(block, groups);
        for (codes, packed) in codes.chunks_exact_mut(64).zip(block[48..].chunks_exact(32)) {
            nibbles(packed, codes);
        }
        for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, high) in codes.iter_mut().zip(&block[16..48]) {
                *code |= (high >> group & 1) << 4;
            }
        }
    }
}

impl Coded for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        let (scale, min) = (half(block, 80), half(block, 82));
        for (group, packed) in groups.iter_mut().zip(block) {
            *group = [scale * f32::from(packed & 15), -min * f32::from(packed >> 4)];
        }
        two_bits(&block[16..80], codes);
    }
}

impl Coded for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        let of_scales = half(block, 108);
        for (i, group) in groups.iter_mut().enumerate() {
            let low = block[96 + i % 8] >> (i / 8 * 4) & 15;
            let high = block[104 + i % 4] >> (i / 4 * 2) & 3;
            let scale = of_scales * (f32::from(low | high << 4) - 32.0);
            *group = [scale, -4.0 * scale];
        }
        two_bits(&block[32..96], codes);
        for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, high) in codes.iter_mut().zip(&block[..32]) {
                *code |= (high >> group & 1) << 2;
            }
        }
    }
}

impl Coded for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], groups: &mut [[f32; 2]; 16]) {
        let of_scales = half(block, 208);
        for (group, scale) in groups.iter_mut().zip(&block[192..208]) {
            let scale = of_scales * f32::from(scale.cast_signed());
            *group = [scale, -32.0 * scale];
        }
        // Of each half, 64 bytes have the low bits of 64 weights and of the 64 after them; 32 bytes have the
        // high bits of four times 32.
        for (i, codes) in codes.chunks_exact_mut(128).enumerate() {
            nibbles(&block[64 * i..][..64], codes);
            for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, high) in codes.iter_mut().zip(&block[128 + 32 * i..][..32]) {
                    *code |= (high >> (2 * group) & 3) << 4;
                }
            }
        }
    }
}

#[inline(always)]
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The low halves of all bytes, then the high ones.
#[inline(always)]
fn nibbles(packed: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(packed.len());
    for ((low, high), packed) in low.iter_mut().zip(high).zip(packed) {
        (*low, *high) = (packed & 15, packed >> 4);
    }
}

/// Four codes a byte, low bits first, each the next of four groups of 32, in each half.
#[inline(always)]
fn two_bits(packed: &[u8], codes: &mut [u8]) {
    for (codes, packed) in codes.chunks_exact_mut(128).zip(packed.chunks_exact(32)) {
        for (place, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, packed) in codes.iter_mut().zip(packed) {
                *code = packed >> (2 * place) & 3;
            }
        }
    }
}

/// 32 fifth bits, low bits first.
#[inline(always)]
fn fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (codes, bits) in codes.chunks_exact_mut(8).zip(bits) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (bits >> i & 1) << 4;
        }
    }
}

/// Scales and minimums of Q4_K and Q5_K.
#[inline(always)]
fn k_groups(block: &[u8], groups: &mut [[f32; 2]; 16]) {
    let (scale, min, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    for i in 0..4 {
        groups[i] = [scale * f32::from(packed[i] & 63), -min * f32::from(packed[4 + i] & 63)];
        let of_scale = packed[8 + i] & 15 | packed[i] >> 6 << 4;
        let of_min = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
        groups[4 + i] = [scale * f32::from(of_scale), -min * f32::from(of_min)];
    }
}
