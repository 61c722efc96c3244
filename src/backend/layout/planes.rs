//! Blocks separated into planes, for devices whose loads need 16 bytes at multiples of 16: all integers of a
//! run of blocks, then their other parts, plane after plane. The output is as long as the input, except for
//! TQ1_0 and PTQ1_0, and where [`split`] pads a plane.

use std::ops::Range;

use ggml_types::{HostTensor, QuantType, types};

/// Splits blocks of any type into one plane for each of `of_block`, the byte ranges of a block, which
/// together cover it. A plane begins at a multiple of 16 bytes.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn split(bytes: &[u8], of_block: &[Range<usize>]) -> Vec<u8> {
    let block_bytes = of_block.iter().map(Range::len).sum();
    whole_blocks(bytes, block_bytes);
    let mut out = Vec::with_capacity(bytes.len() + 16 * of_block.len());
    for of_block in of_block {
        out.resize(out.len().next_multiple_of(16), 0);
        for block in bytes.chunks_exact(block_bytes) {
            out.extend(&block[of_block.clone()]);
        }
    }
    out
}

/// IQ2_BN, some rows: their codes, 16 bytes per block; then an f32 scale per row.
///
/// # Panics
/// If the tensor is of another type, or has no such rows: a bug of the caller.
pub fn iq2_bn(w: &HostTensor, rows: Range<usize>) -> Vec<u8> {
    rows_of(w, rows, |bytes, _, row| row.copy_from_slice(bytes))
}

/// IQ2_BN_R4, some rows, as the planes of [`iq2_bn`].
///
/// # Panics
/// As for [`iq2_bn`].
pub fn iq2_bn_r4(w: &HostTensor, rows: Range<usize>) -> Vec<u8> {
    rows_of(w, rows, types::Iq2BnR4::row_of)
}

/// IQ1_BN, some rows, as the planes of [`iq2_bn`].
///
/// # Panics
/// As for [`iq2_bn`].
pub fn iq1_bn(w: &HostTensor, rows: Range<usize>) -> Vec<u8> {
    rows_of(w, rows, |bytes, _, row| types::Iq1Bn::to_iq2_bn(bytes, row))
}

/// Bytes of the scale before a row of IQ2_BN.
const SCALE_BYTES: usize = 4;

/// Planes of some rows; `write` converts one of the rows that are stored together, given by its index, to
/// IQ2_BN.
fn rows_of(w: &HostTensor, rows: Range<usize>, write: impl Fn(&[u8], usize, &mut [u8])) -> Vec<u8> {
    let bytes_of = |ty: &dyn QuantType| ty.row_bytes(w.cols).expect("a shape that the type can hold");
    let (together, row_bytes) = (w.ty.rows_together(), bytes_of(w.ty));
    let mut row = vec![0; bytes_of(&types::Iq2Bn)];
    let (mut codes, mut scales) = (Vec::with_capacity(rows.len() * row.len()), Vec::new());
    for at in rows {
        let first = at / together * together;
        write(&w.bytes[first * row_bytes..][..together * row_bytes], at - first, &mut row);
        scales.extend_from_slice(&row[..SCALE_BYTES]);
        codes.extend_from_slice(&row[SCALE_BYTES..]);
    }
    codes.extend(scales);
    codes
}

/// Q8_0: integers, 32 bytes per block; then scales.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn q8_0(bytes: &[u8]) -> Vec<u8> {
    let (mut out, blocks) = (vec![0; bytes.len()], whole_blocks(bytes, 34));
    let (ints, scales) = out.split_at_mut(blocks * 32);
    for (i, block) in bytes.chunks_exact(34).enumerate() {
        scales[2 * i..][..2].copy_from_slice(&block[..2]);
        ints[32 * i..][..32].copy_from_slice(&block[2..]);
    }
    out
}

/// Q6_K: a chunk is 64 elements of one half block, those whose index modulo 32 is below 16, or the others.
/// Low bits, 32 bytes per chunk; high bits, 16 bytes; group scales, 4 bytes; then block scales, one per 4
/// chunks.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn q6_k(bytes: &[u8]) -> Vec<u8> {
    /// Chunks of a block.
    const CHUNKS: usize = 4;
    let (mut out, blocks) = (vec![0; bytes.len()], whole_blocks(bytes, 210));
    let (low, rest) = out.split_at_mut(blocks * 128);
    let (high, rest) = rest.split_at_mut(blocks * 64);
    let (groups, scales) = rest.split_at_mut(blocks * 16);
    for (i, block) in bytes.chunks_exact(210).enumerate() {
        for at in 0..CHUNKS {
            let (half, t, chunk) = (at / 2, at % 2, i * CHUNKS + at);
            for part in 0..2 {
                let from = &block[64 * half + 32 * part + 16 * t..][..16];
                low[32 * chunk + 16 * part..][..16].copy_from_slice(from);
            }
            high[16 * chunk..][..16].copy_from_slice(&block[128 + 32 * half + 16 * t..][..16]);
            for group in 0..4 {
                groups[4 * chunk + group] = block[192 + 8 * half + 2 * group + t];
            }
        }
        scales[2 * i..][..2].copy_from_slice(&block[208..210]);
    }
    out
}

/// Q4_0: integers, 16 bytes per block; then scales.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn q4_0(bytes: &[u8]) -> Vec<u8> {
    let (mut out, blocks) = (vec![0; bytes.len()], whole_blocks(bytes, 18));
    let (ints, scales) = out.split_at_mut(blocks * 16);
    for (i, block) in bytes.chunks_exact(18).enumerate() {
        scales[2 * i..][..2].copy_from_slice(&block[..2]);
        ints[16 * i..][..16].copy_from_slice(&block[2..]);
    }
    out
}

/// TQ2_0: codes, 64 bytes per block; then scales.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn tq2_0(bytes: &[u8]) -> Vec<u8> {
    let (mut out, blocks) = (vec![0; bytes.len()], whole_blocks(bytes, TQ2_0_BYTES));
    let (codes, scales) = out.split_at_mut(blocks * 64);
    for (i, block) in bytes.chunks_exact(TQ2_0_BYTES).enumerate() {
        codes[64 * i..][..64].copy_from_slice(&block[..64]);
        scales[2 * i..][..2].copy_from_slice(&block[64..]);
    }
    out
}

/// TQ1_0, unpacked to the planes of [`tq2_0`]: 66 bytes from 54.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn tq1_0(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = vec![0; whole_blocks(bytes, 54) * TQ2_0_BYTES];
    for (from, to) in bytes.chunks_exact(54).zip(unpacked.chunks_exact_mut(TQ2_0_BYTES)) {
        types::Tq1_0::to_tq2_0(from, to);
    }
    tq2_0(&unpacked)
}

/// PTQ1_0, unpacked to the codes of PQ2_0, 32 bytes per block, and then its scales: 34 bytes from 28.
///
/// # Panics
/// If `bytes` are not whole blocks: a bug of the caller.
pub fn ptq1_0(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = vec![0; whole_blocks(bytes, 28) * 34];
    for (from, to) in bytes.chunks_exact(28).zip(unpacked.chunks_exact_mut(34)) {
        types::Ptq1_0::to_pq2_0(from, to);
    }
    split(&unpacked, &[2..34, 0..2])
}

/// Bytes of a block of TQ2_0.
const TQ2_0_BYTES: usize = 66;

fn whole_blocks(bytes: &[u8], block_bytes: usize) -> usize {
    assert!(bytes.len().is_multiple_of(block_bytes), "blocks of {block_bytes} bytes, {} bytes", bytes.len());
    bytes.len() / block_bytes
}

#[cfg(test)]
mod tests {
    use ggml_types::by_name;

    use super::*;

    #[test]
    fn every_byte_of_two_blocks_is_in_its_plane() {
        let bytes = |n: usize| (0..n).map(|i| (i % 251) as u8).collect::<Vec<_>>();
        let (from, out) = (bytes(2 * 34), q8_0(&bytes(2 * 34)));
        assert_eq!((&out[..32], &out[32..64]), (&from[2..34], &from[36..68]));
        assert_eq!((&out[64..66], &out[66..68]), (&from[..2], &from[34..36]));

        let (from, out) = (bytes(2 * 210), q6_k(&bytes(2 * 210)));
        let second = &from[210..];
        // The second block's chunk 3: the second half, elements from 16 on.
        assert_eq!((&out[32 * 7..][..16], &out[32 * 7 + 16..][..16]), (&second[80..96], &second[112..128]));
        assert_eq!(&out[256 + 16 * 7..][..16], &second[176..192]);
        assert_eq!(out[384 + 4 * 7..][..4], [1, 3, 5, 7].map(|group| second[192 + 8 + group]));
        assert_eq!(out[416..], [from[208], from[209], second[208], second[209]]);

        let (from, out) = (bytes(2 * 18), q4_0(&bytes(2 * 18)));
        assert_eq!((&out[..16], &out[16..32]), (&from[2..18], &from[20..36]));
        assert_eq!(out[32..], [from[0], from[1], from[18], from[19]]);

        let (from, out) = (bytes(2 * 66), tq2_0(&bytes(2 * 66)));
        assert_eq!((&out[..64], &out[64..128]), (&from[..64], &from[66..130]));
        assert_eq!(out[128..], [from[64], from[65], from[130], from[131]]);
    }

    #[test]
    fn planes_of_any_blocks_begin_at_multiples_of_16_bytes() {
        let from: Vec<u8> = (0..3 * 22).collect();
        let out = split(&from, &[6..22, 2..6, 0..2]);
        assert_eq!((&out[..16], &out[32..48]), (&from[6..22], &from[50..66]));
        assert_eq!((&out[48..52], &out[56..60], &out[60..64]), (&from[2..6], &from[46..50], &[0; 4][..]));
        assert_eq!(out[64..], [from[0], from[1], from[22], from[23], from[44], from[45]]);
    }

    /// The three types of ik_llama.cpp have the same planes for the same ternary rows.
    #[test]
    fn ternary_rows_have_their_codes_and_their_scales() {
        let (rows, cols) = (8, 192);
        let value = |at: usize| [0.0, -1.0, 1.0][at * at % 11 % 3] * (at / cols + 1) as f32;
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        let planes_of = |name, planes: fn(&HostTensor, Range<usize>) -> Vec<u8>| {
            let ty = by_name(name).unwrap();
            let bytes = ty.encode(&values, rows, cols).unwrap().into();
            planes(&HostTensor { name: name.to_owned(), ty, rows, cols, bytes }, 3..8)
        };
        let planes = planes_of("iq2_bn", iq2_bn);
        let (codes, scales) = planes.split_at(5 * 48);
        assert_eq!(
            scales.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>(),
            [4.0, 5.0, 6.0, 7.0, 8.0]
        );
        // In the second row, elements 64 + 5 and those 16, 32 and 48 after it.
        let code = |elem: usize| (values[4 * cols + elem] / 5.0 + 1.0) as u8;
        assert_eq!(codes[48 + 16 + 5], code(69) | code(85) << 2 | code(101) << 4 | code(117) << 6);
        assert_eq!(planes_of("iq2_bn_r4", iq2_bn_r4), planes);
        assert_eq!(planes_of("iq1_bn", iq1_bn), planes);
    }

    #[test]
    fn trits_unpack_to_the_weights_that_they_are() {
        let (rows, cols) = (3, 512);
        let value = |i: usize| (i * i % 7 % 3) as f32 - 1.0;
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        let encode = |name| by_name(name).unwrap().encode(&values, rows, cols).unwrap();
        assert_eq!(tq1_0(&encode("tq1_0")), tq2_0(&encode("tq2_0")));
        assert_eq!(ptq1_0(&encode("ptq1_0")), split(&encode("pq2_0"), &[2..34, 0..2]));
    }
}
