//! Blocks of weights in the format that the kernels of `cuda/types` read: separated into planes, each over
//! all rows. [`planes`] has those that other devices use too.

use std::borrow::Cow;

use ggml_types::codebooks::{self, Coded};
use ggml_types::{QuantType, types};

use crate::layout::planes;

/// Splits each block into planes of `sizes` bytes per block, which `write` fills.
fn each<const N: usize>(
    bytes: &[u8],
    block_bytes: usize,
    sizes: [usize; N],
    write: impl Fn(&[u8], [&mut [u8]; N]),
) -> Vec<u8> {
    let blocks = bytes.len() / block_bytes;
    let mut out = vec![0; blocks * sizes.iter().sum::<usize>()];
    let mut rest = &mut out[..];
    let mut of_planes = sizes.map(|size| {
        let (plane, tail) = std::mem::take(&mut rest).split_at_mut(blocks * size);
        rest = tail;
        plane.chunks_exact_mut(size)
    });
    for block in bytes.chunks_exact(block_bytes) {
        write(block, of_planes.each_mut().map(|plane| plane.next().expect("as many as blocks")));
    }
    out
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Moves bit 4 i + e of a word to bit i of its byte e.
fn by_quads(bits: u32) -> [u8; 4] {
    // Spreads a quad's four bits to the lowest bit of one byte each.
    let spread = |quad: u32| (quad * 0x0020_4081) & 0x0101_0101;
    (0..8).fold(0, |word, i| word | spread(bits >> (4 * i) & 15) << i).to_le_bytes()
}

/// Fifth bits of a chunk of a Q5_K block: bit `i` of byte `e` is that of element `e` of quad `i`.
pub fn q5_k_high(block: &[u8], chunk: usize) -> u32 {
    let (pair, t) = (chunk / 2, chunk % 2);
    let of_quad = |quad: usize| {
        let (group, i) = (quad / 4, quad % 4);
        (word(block, 16 + 16 * t + 4 * i) >> (2 * pair + group) & 0x0101_0101) << quad
    };
    (0..8).map(of_quad).sum()
}

/// Q5_0: low bits, fifth bits, scales.
pub fn q5_0(bytes: &[u8]) -> Vec<u8> {
    each(bytes, 22, [16, 4, 2], |block, [low, high, scale]| {
        low.copy_from_slice(&block[6..]);
        high.copy_from_slice(&by_quads(word(block, 2)));
        scale.copy_from_slice(&block[..2]);
    })
}

/// Q5_1: low bits, fifth bits, scales with their offsets.
pub fn q5_1(bytes: &[u8]) -> Vec<u8> {
    each(bytes, 24, [16, 4, 4], |block, [low, high, line]| {
        low.copy_from_slice(&block[8..]);
        high.copy_from_slice(&by_quads(word(block, 4)));
        line.copy_from_slice(&block[..4]);
    })
}

/// Index of the group scale of group `i` of a chunk, among the 16 of a block.
fn group_of(chunk: usize, i: usize) -> usize {
    chunk / 2 * 8 + 2 * i + chunk % 2
}

/// Q2_K: codes as in the file; scales and minimums of groups by chunks, followed by the block's.
pub fn q2_k(bytes: &[u8]) -> Vec<u8> {
    each(bytes, 84, [64, 20], |block, [codes, scales]| {
        codes.copy_from_slice(&block[16..80]);
        for (at, group) in scales[..16].iter_mut().enumerate() {
            *group = block[group_of(at / 4, at % 4)];
        }
        scales[16..].copy_from_slice(&block[80..]);
    })
}

/// Q3_K: low bits as in the file; third bits by chunks; group scales as int8; the block's scale; two bytes.
pub fn q3_k(bytes: &[u8]) -> Vec<u8> {
    each(bytes, 110, [64, 32, 20], |block, [low, high, scales]| {
        low.copy_from_slice(&block[32..96]);
        for (at, high) in high.chunks_exact_mut(4).enumerate() {
            let (half, t) = (at / 4, at / 2 % 2);
            let of_quad = |quad: usize| {
                let group = at % 2 * 2 + quad / 4;
                (word(block, 16 * t + 4 * (quad % 4)) >> (4 * half + group) & 0x0101_0101) << quad
            };
            let bits: u32 = (0..8).map(of_quad).sum();
            high.copy_from_slice(&bits.to_le_bytes());
        }
        for (at, group) in scales[..16].iter_mut().enumerate() {
            let k = group_of(at / 4, at % 4);
            let (low, high) = (block[96 + k % 8] >> (k / 8 * 4) & 15, block[104 + k % 4] >> (k / 4 * 2) & 3);
            *group = (low | high << 4).wrapping_sub(32);
        }
        scales[16..18].copy_from_slice(&block[108..]);
    })
}

/// Reorders 2-bit codes at the start of planes: of each 64, byte b gets b, b + 16, b + 32, b + 48.
fn by_quarters(mut planes: Vec<u8>, code_bytes: usize) -> Vec<u8> {
    for chunk in planes[..code_bytes].as_chunks_mut::<16>().0 {
        let from = *chunk;
        for (b, to) in chunk.iter_mut().enumerate() {
            let code = |g: usize| from[4 * g + b / 4] >> (b % 4 * 2) & 3;
            *to = code(0) | code(1) << 2 | code(2) << 4 | code(3) << 6;
        }
    }
    planes
}

/// Q2_0: codes, scales.
pub fn q2_0(bytes: &[u8]) -> Vec<u8> {
    by_quarters(planes::split(bytes, &[2..18, 0..2]), bytes.len() / 18 * 16)
}

/// PQ2_0: the same with half as many scales.
pub fn pq2_0(bytes: &[u8]) -> Vec<u8> {
    by_quarters(planes::split(bytes, &[2..34, 0..2]), bytes.len() / 34 * 32)
}

/// PTQ1_0, unpacked into the planes of PQ2_0.
pub fn ptq1_0(bytes: &[u8]) -> Vec<u8> {
    by_quarters(planes::ptq1_0(bytes), bytes.len() / 28 * 32)
}

/// Scale format of a type with 16 integers, in the low bits of its kind: two int8 under a half per block.
pub const INTS: u32 = 0;
/// A half.
pub const HALF: u32 = 1;
/// A bfloat16.
pub const BFLOAT: u32 = 2;
/// Two 8-bit floats.
pub const FLOATS: u32 = 3;

/// Bytes before the planes of a type of 16 integers.
pub const TABLE_BYTES: usize = 128;

/// Puts the integers and a factor of their scales before the planes.
fn with_table(table: [i8; 16], factor: f32, planes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(TABLE_BYTES + planes.len());
    out.extend(table.map(i8::cast_unsigned));
    out.extend(factor.to_le_bytes());
    out.resize(TABLE_BYTES, 0);
    out.extend_from_slice(planes);
    out
}

/// Values of a type's indices, taken from decoding a block whose first 16 elements are the low halves of the
/// bytes after `head`, which is a scale of 1.
fn table_of(ty: &dyn QuantType, head: &[u8]) -> [i8; 16] {
    let mut block = vec![0; ty.row_bytes(ty.block_elems()).expect("one block")];
    block[..head.len()].copy_from_slice(head);
    (0..16).for_each(|i| block[head.len() + usize::from(i)] = i);
    let mut values = vec![0.0; ty.block_elems()];
    ty.decode_row(&block, 1, 0, &mut values).expect("one block");
    std::array::from_fn(|i| values[i] as i8)
}

/// Brings into order the indices of `2 n` elements, of which the low halves of the bytes are the first `n`.
fn in_order(from: &[u8], to: &mut [u8]) {
    let n = from.len();
    for (b, to) in to.iter_mut().enumerate() {
        let index = |elem: usize| from[elem % n] >> (elem / n * 4) & 15;
        *to = index(2 * b) | index(2 * b + 1) << 4;
    }
}

/// IQ4_NL: indices, scales.
pub fn iq4_nl(bytes: &[u8]) -> Vec<u8> {
    let planes = each(bytes, 18, [16, 2], |block, [indices, scale]| {
        in_order(&block[2..], indices);
        scale.copy_from_slice(&block[..2]);
    });
    with_table(table_of(&types::Iq4Nl, &[0x00, 0x3c]), 1.0, &planes)
}

/// MXFP4: indices, and half of each power of two as a bfloat16.
pub fn mxfp4(bytes: &[u8]) -> Vec<u8> {
    let planes = each(bytes, 17, [16, 2], |block, [indices, scale]| {
        in_order(&block[1..], indices);
        let half_power = match block[0] {
            // Subnormal.
            exponent @ 0..2 => 0x20 << exponent,
            exponent => u16::from(exponent - 1) << 7,
        };
        scale.copy_from_slice(&half_power.to_le_bytes());
    });
    with_table(table_of(&types::Mxfp4, &[128]), 1.0, &planes)
}

/// NVFP4: indices, and 8-bit scales. Read as halves, their exponents are too small by 8; the factor corrects
/// 7 of them, and one remains because the table holds twice the values.
pub fn nvfp4(bytes: &[u8]) -> Vec<u8> {
    let planes = each(bytes, 36, [32, 4], |block, [indices, scales]| {
        for (from, to) in block[4..].chunks_exact(8).zip(indices.chunks_exact_mut(8)) {
            in_order(from, to);
        }
        for (scale, to) in block.iter().zip(scales) {
            // NaN is read as 0.
            *to = if *scale == 0x7f { 0 } else { *scale };
        }
    });
    with_table(table_of(&types::Mxfp4, &[128]), 128.0, &planes)
}

/// IQ4_XS: indices, each group's scale twice, block scales.
pub fn iq4_xs(bytes: &[u8]) -> Vec<u8> {
    let planes = each(bytes, 136, [128, 16, 2], |block, [indices, groups, scale]| {
        for (from, to) in block[8..].chunks_exact(16).zip(indices.chunks_exact_mut(16)) {
            in_order(from, to);
        }
        for (at, to) in groups.iter_mut().enumerate() {
            let group = at / 2;
            let (low, high) =
                (block[4 + group / 2] >> (group % 2 * 4), block[2 + group / 4] >> (group % 4 * 2));
            *to = (low & 15 | (high & 3) << 4).wrapping_sub(32);
        }
        scale.copy_from_slice(&block[..2]);
    });
    with_table(table_of(&types::Iq4Nl, &[0x00, 0x3c]), 1.0, &planes)
}

/// A codebook type whose points have these coordinates, and whose group factors are multiples of 1 / `parts`:
/// indices of the coordinates, numerators of the factors, block scales.
fn coded<T: Coded>(bytes: &[u8], coordinates: &[i8], parts: u8) -> Vec<u8> {
    let mut table = [0; 16];
    table[..coordinates.len()].copy_from_slice(coordinates);
    let mut index_of = [0; 256];
    for (i, value) in coordinates.iter().enumerate() {
        index_of[usize::from(value.cast_unsigned())] = i as u8;
    }
    let planes = each(bytes, T::BLOCK_BYTES, [128, 16, 2], |block, [indices, groups, scale]| {
        for group in 0..codebooks::BLOCK / codebooks::GROUP {
            let (points, factors) = T::group(block, group);
            let points = points.iter().flat_map(|point| point.to_le_bytes());
            let mut found = points.map(|value| index_of[usize::from(value)]);
            for to in &mut indices[16 * group..][..16] {
                let mut next = || found.next().expect("32 per group");
                *to = next() | next() << 4;
            }
            for (to, factor) in groups[2 * group..].iter_mut().zip(factors) {
                *to = (factor * f32::from(parts)) as u8;
            }
        }
        scale.copy_from_slice(&T::scale(block).to_le_bytes());
    });
    with_table(table, 1.0 / f32::from(parts), &planes)
}

/// Coordinates of both signs.
fn both_signs<const N: usize>(magnitudes: [i8; N]) -> Vec<i8> {
    magnitudes.into_iter().flat_map(|value| [value, -value]).collect()
}

/// IQ2_XXS, IQ2_XS or IQ2_S.
pub fn iq2<T: Coded>(bytes: &[u8]) -> Vec<u8> {
    coded::<T>(bytes, &both_signs([8, 25, 43]), 8)
}

/// IQ3_XXS.
pub fn iq3_xxs(bytes: &[u8]) -> Vec<u8> {
    coded::<types::Iq3Xxs>(bytes, &both_signs([4, 12, 20, 28, 36, 44, 52, 62]), 4)
}

/// IQ3_S.
pub fn iq3_s(bytes: &[u8]) -> Vec<u8> {
    coded::<types::Iq3S>(bytes, &both_signs([1, 3, 5, 7, 9, 11, 13, 15]), 1)
}

/// IQ1_S or IQ1_M: eight times -1, 0 or 1, plus or minus an eighth.
pub fn iq1<T: Coded>(bytes: &[u8]) -> Vec<u8> {
    coded::<T>(bytes, &both_signs([1, 7, 9]), 8)
}

/// Planes that are only split.
pub fn split(bytes: &[u8], of_block: &[std::ops::Range<usize>]) -> Cow<'static, [u8]> {
    Cow::Owned(planes::split(bytes, of_block))
}

#[cfg(test)]
mod tests {
    use ggml_types::codebooks::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

    use super::*;

    /// A coordinate missing from a table would silently decode as another.
    #[test]
    fn tables_have_every_coordinate_of_a_codebook() {
        let bytes = |points: &[u64]| points.iter().flat_map(|point| point.to_le_bytes()).collect::<Vec<_>>();
        let of_four =
            |points: &[u32]| points.iter().flat_map(|point| point.to_le_bytes()).collect::<Vec<_>>();
        let eighths = bytes(&IQ1_S).into_iter().map(u8::cast_signed).flat_map(|v| [8 * v - 1, 8 * v + 1]);
        for (have, want) in [
            (both_signs([8, 25, 43]), [bytes(&IQ2_XXS), bytes(&IQ2_XS), bytes(&IQ2_S)].concat()),
            (both_signs([4, 12, 20, 28, 36, 44, 52, 62]), of_four(&IQ3_XXS)),
            (both_signs([1, 3, 5, 7, 9, 11, 13, 15]), of_four(&IQ3_S)),
            (both_signs([1, 7, 9]), eighths.map(i8::cast_unsigned).collect()),
        ] {
            assert!(have.len() <= 16);
            assert!(want.iter().all(|value| have.contains(&value.cast_signed())));
        }
    }

    #[test]
    fn bits_come_to_the_byte_of_their_element() {
        assert_eq!(by_quads(1 << 13), [0, 1 << 3, 0, 0]);
        assert_eq!(by_quads(1 << 31 | 1), [1, 0, 0, 1 << 7]);
    }
}
