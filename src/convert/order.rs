//! Bytes of tensors in another order.

use bytes::Bytes;

/// Bytes of some floats.
pub fn f32s(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// Returns one half of each matrix.
pub fn half(bytes: &[u8], n_matrices: usize, which: usize) -> Bytes {
    let half_bytes = bytes.len() / n_matrices / 2;
    let halves = bytes.chunks_exact(half_bytes.max(1));
    halves.skip(which).step_by(2).flatten().copied().collect::<Vec<u8>>().into()
}

/// Reorders value heads of a delta net: from groups, one per key head, to interleaved groups.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// Rows or columns before the first value head.
    pub lead: usize,
    /// Key heads.
    pub n_groups: usize,
    /// Value heads per key head.
    pub per_group: usize,
    /// Rows or columns per value head.
    pub unit: usize,
}

impl Tiles {
    /// Appends units of `bytes` in their new order: head `g p + i` of group `g` becomes head `i n + g`, with
    /// `p` heads per group and `n` groups.
    pub fn extend(self, out: &mut Vec<u8>, bytes: &[u8]) {
        let n_units = self.lead + self.n_groups * self.per_group * self.unit;
        let unit_bytes = bytes.len() / n_units;
        let (lead, values) = bytes.split_at(self.lead * unit_bytes);
        out.extend_from_slice(lead);
        let head_bytes = self.unit * unit_bytes;
        for i in 0..self.per_group {
            for group in 0..self.n_groups {
                let head = group * self.per_group + i;
                out.extend_from_slice(&values[head * head_bytes..][..head_bytes]);
            }
        }
    }
}

/// Moves rows of each head from halves to pairs: new row `2i + j` is row `j d / 2 + i`.
pub fn permuted(bytes: &[u8], n_heads: usize, row_bytes: usize) -> Bytes {
    let head_bytes = bytes.len() / n_heads;
    let half = head_bytes / row_bytes / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(head_bytes.max(1)) {
        for i in 0..half {
            for j in 0..2 {
                out.extend_from_slice(&head[(j * half + i) * row_bytes..][..row_bytes]);
            }
        }
    }
    out.into()
}

/// Transposes `[rows, cols]` to `[cols, rows]`.
pub fn transposed(bytes: &[u8], cols: usize, elem_bytes: usize) -> Bytes {
    let rows = bytes.len() / elem_bytes / cols.max(1);
    let mut out = Vec::with_capacity(bytes.len());
    for col in 0..cols {
        for row in 0..rows {
            out.extend_from_slice(&bytes[(row * cols + col) * elem_bytes..][..elem_bytes]);
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_heads_and_columns_move() {
        // Two heads of four rows of two bytes: 0, 2, 1, 3 in each.
        let bytes: Vec<u8> = (0..8).flat_map(|row| [row, row]).collect();
        let want: Vec<u8> = [0, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|row| [*row, *row]).collect();
        assert_eq!(permuted(&bytes, 2, 2), want);
        assert_eq!(
            transposed(&[1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6], 3, 2)[..],
            [1, 1, 4, 4, 2, 2, 5, 5, 3, 3, 6, 6]
        );
    }
}
