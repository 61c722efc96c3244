//! Weights in octets: 8 rows by 256 columns, stored together, as `cuda/lib/octets.cuh` describes. The octets
//! of eight rows follow each other; rows past the last one are 0.

use std::borrow::Cow;

use ggml_types::HostTensor;

use super::pack::q5_k_high;
use super::params::{OCTET_COLS, OCTET_ROWS};

const ROWS: usize = OCTET_ROWS as usize;
const COLS: usize = OCTET_COLS as usize;

/// Tiles of 8 rows that a kernel which streams octets multiplies at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum OctetTiles {
    One = 1,
    Two = 2,
    Four = 4,
    Eight = 8,
}

impl OctetTiles {
    /// All, the fewest first.
    pub const ALL: [Self; 4] = [Self::One, Self::Two, Self::Four, Self::Eight];

    /// The fewest that have `rows` rows, or `most`, which makes several passes.
    pub fn of_rows(rows: usize, most: Self) -> Self {
        let enough = |tiles: &Self| 8 * *tiles as usize >= rows || *tiles == most;
        Self::ALL.into_iter().find(enough).unwrap_or(most)
    }
}

/// Bytes of a run: 32 of each row.
const RUN: usize = 32 * ROWS;

/// Bytes of an octet of Q4_K.
pub const Q4_K_BYTES: usize = 4 * RUN + 16 * ROWS;
/// Bytes of an octet of Q5_K.
pub const Q5_K_BYTES: usize = Q4_K_BYTES + 32 * ROWS;
/// Bytes of an octet of Q6_K.
pub const Q6_K_BYTES: usize = 6 * RUN + 18 * ROWS;

/// Bytes of an octet of Q8_0.
pub const Q8_0_BYTES: usize = 8 * RUN + 16 * ROWS;
/// Bytes of an octet of Q4_0.
pub const Q4_0_BYTES: usize = 4 * RUN + 16 * ROWS;

/// Bytes of a tensor in octets of `octet_bytes`.
pub fn bytes(octet_bytes: usize, rows: usize, cols: usize) -> u64 {
    (rows.div_ceil(ROWS) as u64).saturating_mul(cols.div_ceil(COLS) as u64).saturating_mul(octet_bytes as u64)
}

/// Fills octets: `write` gets the blocks of up to 256 columns of a row, the row in the octet, and the octet.
fn each(w: &HostTensor, octet_bytes: usize, write: impl Fn(&[u8], usize, &mut [u8])) -> Cow<'_, [u8]> {
    let in_row = w.cols.div_ceil(COLS);
    let [row_bytes, cols_bytes] =
        [w.cols, COLS].map(|cols| w.ty.row_bytes(cols).expect("a shape that the type can hold"));
    let mut out = vec![0; w.rows.div_ceil(ROWS) * in_row * octet_bytes];
    for (row, from) in w.bytes[..w.rows * row_bytes].chunks_exact(row_bytes).enumerate() {
        let octets = out[row / ROWS * in_row * octet_bytes..].chunks_exact_mut(octet_bytes);
        for (blocks, octet) in from.chunks(cols_bytes).zip(octets) {
            write(blocks, row % ROWS, octet);
        }
    }
    Cow::Owned(out)
}

/// Piece `t` of a row's two in a run, which rows 4 to 7 have in reverse order.
fn piece(octet: &mut [u8], run: usize, row: usize, t: usize) -> &mut [u8] {
    &mut octet[run * RUN + row * 32 + (t ^ (row / 4)) * 16..][..16]
}

/// Writes a row's 32 bytes of a run.
fn write_run(octet: &mut [u8], run: usize, row: usize, from: &[u8]) {
    for (t, bytes) in from.chunks_exact(16).enumerate() {
        piece(octet, run, row, t).copy_from_slice(bytes);
    }
}

/// Q8_0: integers, scales.
pub fn q8_0(w: &HostTensor) -> Cow<'_, [u8]> {
    each(w, Q8_0_BYTES, |blocks, row, octet| {
        for (at, block) in blocks.chunks_exact(34).enumerate() {
            write_run(octet, at, row, &block[2..]);
            octet[8 * RUN + 16 * row + 2 * at..][..2].copy_from_slice(&block[..2]);
        }
    })
}

/// Q4_0: codes less 8 as signed nibbles, scales.
pub fn q4_0(w: &HostTensor) -> Cow<'_, [u8]> {
    each(w, Q4_0_BYTES, |blocks, row, octet| {
        for (at, block) in blocks.chunks_exact(18).enumerate() {
            let to = piece(octet, at / 2, row, at % 2);
            to.iter_mut().zip(&block[2..]).for_each(|(to, from)| *to = from ^ 0x88);
            octet[4 * RUN + 16 * row + 2 * at..][..2].copy_from_slice(&block[..2]);
        }
    })
}

/// Q4_K: low bits, heads.
pub fn q4_k(w: &HostTensor) -> Cow<'_, [u8]> {
    each(w, Q4_K_BYTES, |block, row, octet| {
        (0..4).for_each(|run| write_run(octet, run, row, &block[16 + 32 * run..][..32]));
        octet[4 * RUN + 16 * row..][..16].copy_from_slice(&block[..16]);
    })
}

/// Q5_K: the same, and the fifth bits of each chunk.
pub fn q5_k(w: &HostTensor) -> Cow<'_, [u8]> {
    each(w, Q5_K_BYTES, |block, row, octet| {
        (0..4).for_each(|run| write_run(octet, run, row, &block[48 + 32 * run..][..32]));
        octet[4 * RUN + 16 * row..][..16].copy_from_slice(&block[..16]);
        for chunk in 0..8 {
            let at = Q4_K_BYTES + chunk / 2 * 8 * ROWS + 8 * row + chunk % 2 * 4;
            octet[at..][..4].copy_from_slice(&q5_k_high(block, chunk).to_le_bytes());
        }
    })
}

/// Q6_K: low bits, high bits, group scales by chunks, block scales.
pub fn q6_k(w: &HostTensor) -> Cow<'_, [u8]> {
    each(w, Q6_K_BYTES, |block, row, octet| {
        (0..6).for_each(|run| write_run(octet, run, row, &block[32 * run..][..32]));
        for chunk in 0..4 {
            for group in 0..4 {
                octet[6 * RUN + 16 * row + 4 * chunk + group] =
                    block[192 + chunk / 2 * 8 + 2 * group + chunk % 2];
            }
        }
        octet[6 * RUN + 16 * ROWS + 2 * row..][..2].copy_from_slice(&block[208..]);
    })
}

#[cfg(test)]
mod tests {
    use ggml_types::QuantType;
    use ggml_types::types::{Q4_0, Q4K, Q5K, Q6K, Q8_0};
    use half::f16;

    use super::*;

    /// Bytes of a row's piece `t` of a run, as the kernels find them.
    fn piece_of(octet: &[u8], run: usize, row: usize, t: usize) -> &[u8] {
        &octet[run * 256 + row * 32 + if row < 4 { t } else { 1 - t } * 16..][..16]
    }

    fn half(octet: &[u8], at: usize) -> f32 {
        f16::from_le_bytes([octet[at], octet[at + 1]]).to_f32()
    }

    /// Column `col` of a row of Q4_K or Q5_K, by the description in `cuda/types/q4_k.cuh`.
    fn q4_k_value(octet: &[u8], row: usize, col: usize, has_high: bool) -> f32 {
        let (group, t, b) = (col / 32, col % 32 / 16, col % 16);
        let mut code = piece_of(octet, group / 2, row, t)[b] >> (group % 2 * 4) & 15;
        if has_high {
            let word = 1152 + (group / 2 * 8 + row) * 8 + t * 4;
            code |= (octet[word + b % 4] >> (4 * (group % 2) + b / 4) & 1) << 4;
        }
        let head = &octet[1024 + 16 * row..][..16];
        let (scale, min) = match group {
            0..4 => (head[4 + group] & 63, head[8 + group] & 63),
            _ => {
                let (low, high) = (head[8 + group], [head[group] >> 6, head[4 + group] >> 6]);
                (low & 15 | high[0] << 4, low >> 4 | high[1] << 4)
            }
        };
        f32::from(code) * (half(head, 0) * f32::from(scale)) - half(head, 2) * f32::from(min)
    }

    /// The same for Q6_K (`cuda/types/q6_k.cuh`).
    fn q6_k_value(octet: &[u8], row: usize, col: usize) -> f32 {
        let (h, i, t, b) = (col / 128, col % 128 / 32, col % 32 / 16, col % 16);
        let low = piece_of(octet, 2 * h + i % 2, row, t)[b] >> (i / 2 * 4) & 15;
        let high = piece_of(octet, 4 + h, row, t)[b] >> (2 * i) & 3;
        let group = octet[1536 + 16 * row + 4 * (2 * h + t) + i].cast_signed();
        half(octet, 1664 + 2 * row) * f32::from(group) * (f32::from(low | high << 4) - 32.0)
    }

    /// The same for Q4_0 (`cuda/types/q4_0.cuh`) and Q8_0 (`cuda/types/q8_0.cuh`).
    fn q4_0_value(octet: &[u8], row: usize, col: usize) -> f32 {
        let block = col / 32;
        let byte = piece_of(octet, block / 2, row, block % 2)[col % 16];
        let signed = (byte >> (col % 32 / 16 * 4) << 4).cast_signed() / 16;
        half(octet, 1024 + 16 * row + 2 * block) * f32::from(signed)
    }

    fn q8_0_value(octet: &[u8], row: usize, col: usize) -> f32 {
        let byte = piece_of(octet, col / 32, row, col % 32 / 16)[col % 16];
        half(octet, 2048 + 16 * row + 2 * (col / 32)) * f32::from(byte.cast_signed())
    }

    /// Every element of a tensor of random bytes is where the kernels look for it, and the rows and
    /// columns that fill the last octets are 0.
    #[test]
    fn octets_have_the_values_of_the_registry() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        /// Reads a column of a row from an octet.
        type Read = fn(&[u8], usize, usize) -> f32;
        let types: [(&'static dyn QuantType, usize, &[usize], Read); 5] = [
            (&Q4K, 768, &[0, 2], |octet, row, col| q4_k_value(octet, row, col, false)),
            (&Q5K, 768, &[0, 2], |octet, row, col| q4_k_value(octet, row, col, true)),
            (&Q6K, 768, &[208], q6_k_value),
            (&Q4_0, 736, &[0], q4_0_value),
            (&Q8_0, 736, &[0], q8_0_value),
        ];
        let rows = 13;
        for (ty, cols, halves, value) in types {
            let row_bytes = ty.row_bytes(cols).unwrap();
            let mut bytes: Vec<u8> = (0..rows * row_bytes).map(|_| random()).collect();
            // Scales that are numbers.
            for block in bytes.chunks_exact_mut(row_bytes / (cols / ty.block_elems())) {
                halves.iter().for_each(|at| block[at + 1] = block[at + 1] & 0x83 | 0x24);
            }
            let w = HostTensor { name: "w".into(), ty, rows, cols, bytes: bytes.into() };
            let packed = crate::cuda::weight::packed(&w);
            let octet_bytes = packed.len() / 6;
            let mut want = vec![0.0; 768];
            for row in 0..16 {
                want.fill(0.0);
                if row < rows {
                    ty.decode_row(&w.bytes, rows, row, &mut want[..cols]).unwrap();
                }
                for (col, want) in want.iter().enumerate() {
                    let octet = &packed[(row / 8 * 3 + col / 256) * octet_bytes..][..octet_bytes];
                    assert_eq!(value(octet, row % 8, col % 256), *want, "{}, {row}, {col}", ty.name());
                }
            }
        }
    }
}
