//! The codebooks of the types that store one index for several weights, and the code that those types share.
//!
//! The tables are part of the format: the 256 to 2048 lattice points that represent weights were found by a
//! search by the authors of llama.cpp. A file of `codebooks/` holds 16 bits per point, one code per weight
//! from the low bits up, and is unpacked at compile time.

/// 256 points of 8 weights.
pub static IQ2_XXS: [u64; 256] = of_eight(packed::IQ2_XXS, THREE);
/// 512 points of 8 weights.
pub static IQ2_XS: [u64; 512] = of_eight(packed::IQ2_XS, THREE);
/// 1024 points of 8 weights.
pub static IQ2_S: [u64; 1024] = of_eight(packed::IQ2_S, THREE);
/// 2048 points of 8 weights, which are -1, 0 and 1.
pub static IQ1_S: [u64; 2048] = of_eight(packed::IQ1_S, [-1, 0, 1]);
/// 256 points of 4 weights.
pub static IQ3_XXS: [u32; 256] = of_four(packed::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
/// 512 points of 4 weights.
pub static IQ3_S: [u32; 512] = of_four(packed::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// The codebooks as stored in the files: 16 bits per point, little-endian, one code per weight from the low
/// bits up.
pub mod packed {
    /// Codebook of [`super::IQ2_XXS`].
    pub const IQ2_XXS: &[u8] = include_bytes!("codebooks/iq2_xxs.bin");
    /// Codebook of [`super::IQ2_XS`].
    pub const IQ2_XS: &[u8] = include_bytes!("codebooks/iq2_xs.bin");
    /// Codebook of [`super::IQ2_S`].
    pub const IQ2_S: &[u8] = include_bytes!("codebooks/iq2_s.bin");
    /// Codebook of [`super::IQ1_S`].
    pub const IQ1_S: &[u8] = include_bytes!("codebooks/iq1_s.bin");
    /// Codebook of [`super::IQ3_XXS`].
    pub const IQ3_XXS: &[u8] = include_bytes!("codebooks/iq3_xxs.bin");
    /// Codebook of [`super::IQ3_S`].
    pub const IQ3_S: &[u8] = include_bytes!("codebooks/iq3_s.bin");
}

/// Magnitudes of the 2-bit types.
const THREE: [i8; 3] = [8, 25, 43];

/// Points of 8 weights, one byte each, the first in the low byte.
const fn of_eight<const N: usize>(packed: &[u8], values: [i8; 3]) -> [u64; N] {
    let (mut points, mut at) = ([0; N], 0);
    while at < N {
        let codes = u16::from_le_bytes([packed[2 * at], packed[2 * at + 1]]);
        let mut elem = 0;
        while elem < 8 {
            let value = values[(codes >> (2 * elem) & 3) as usize];
            points[at] |= (value.cast_unsigned() as u64) << (8 * elem);
            elem += 1;
        }
        at += 1;
    }
    points
}

/// Points of 4 weights.
const fn of_four<const N: usize>(packed: &[u8], values: [i8; 8]) -> [u32; N] {
    let (mut points, mut at) = ([0; N], 0);
    while at < N {
        let codes = u16::from_le_bytes([packed[2 * at], packed[2 * at + 1]]);
        let mut elem = 0;
        while elem < 4 {
            let value = values[(codes >> (4 * elem) & 15) as usize];
            points[at] |= (value.cast_unsigned() as u32) << (8 * elem);
            elem += 1;
        }
        at += 1;
    }
    points
}

/// Elements of a block of any of these types.
pub const BLOCK: usize = 256;
/// Elements of a group.
pub const GROUP: usize = 32;

/// A type whose weights are codebook points with one f16 scale per block.
///
/// A weight is `scale x factor x integer`, and that product is exact in f32: a scale has 11 bits, a factor 5
/// and an integer 6. So it may be multiplied in any order.
pub trait Coded {
    /// Bytes of a block of [`BLOCK`] weights.
    const BLOCK_BYTES: usize;

    /// The f16 scale of a block.
    fn scale(block: &[u8]) -> u16 {
        u16::from_le_bytes([block[0], block[1]])
    }

    /// A group of [`GROUP`] weights of a block, with `group` below 8: their integers, 8 signed bytes per
    /// word, the first in the low byte; and the factors of the first 16 and of the last 16.
    fn group(block: &[u8], group: usize) -> ([u64; 4], [f32; 2]);
}

/// Decodes a block.
pub(crate) fn decode<T: Coded>(block: &[u8], out: &mut [f32]) {
    let scale = half::f16::from_bits(T::scale(block)).to_f32();
    for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let (points, factors) = T::group(block, group);
        for (at, out) in out.iter_mut().enumerate() {
            let integer = points[at / 8].to_le_bytes()[at % 8].cast_signed();
            *out = scale * factors[at / 16] * f32::from(integer);
        }
    }
}

/// 8 magnitudes, none of them 0, negated where a bit is set.
pub(crate) fn signed(magnitudes: u64, minuses: u8) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    // The bit of each byte's own element, moved to the lowest position: 0 or 1.
    let own = (u64::from(minuses) * LOW) & 0x8040_2010_0804_0201;
    let ones = ((own + 0x7f * LOW) & (0x80 * LOW)) >> 7;
    // Two's complement per byte. There is no carry, because no byte is 0.
    (magnitudes ^ (ones * 0xff)) + ones
}

/// Eight signs from seven: the last one makes the number of minuses even.
pub(crate) fn even(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Eight integers of -1, 0 and 1, moved up by an eighth, or down if `less`, and multiplied by eight.
pub(crate) fn eighths(integers: u64, less: bool) -> u64 {
    let by = if less { -1_i8 } else { 1 };
    u64::from_le_bytes(integers.to_le_bytes().map(|byte| (8 * byte.cast_signed() + by).cast_unsigned()))
}

/// Two points of four weights.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// A little-endian u16 at `at`.
pub(crate) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// A little-endian u32 at `at`.
pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// One half of byte `at`: the high one if `half` is 1.
pub(crate) fn nibble(block: &[u8], at: usize, half: usize) -> f32 {
    f32::from(block[at] >> (4 * half) & 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_those_of_the_bits() {
        for minuses in 0..=255 {
            let bytes = signed(0x0108_192b_3e0f_0107, minuses).to_le_bytes();
            for (at, (got, plus)) in
                bytes.iter().zip([0x07, 0x01, 0x0f, 0x3e, 0x2b, 0x19, 0x08, 1]).enumerate()
            {
                let want: i8 = if minuses >> at & 1 == 1 { -plus } else { plus };
                assert_eq!(got.cast_signed(), want);
            }
        }
        for seven in 0..128 {
            let eight = even(seven | 128);
            assert!(u32::from(eight & 127) == seven && eight.count_ones().is_multiple_of(2));
        }
    }
}
