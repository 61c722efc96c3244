//! Detects matrices that are all zeros: training never produces them, so a file that has some is wrong.

use ggml_types::HostTensor;

use super::{Gguf, TensorInfo};

/// The all-zero matrices of a model, per tensor: its description and their number. For a nonzero matrix only
/// a few bytes are read. Ignores vectors and types without an implementation.
pub fn zero_matrices(gguf: &Gguf) -> Vec<(&TensorInfo, usize)> {
    let tensors = gguf.tensors().iter().filter_map(|info| Some((info, gguf.host_tensor(info).ok()?)));
    tensors
        .map(|(info, tensor)| (info, n_zero_matrices(&info.dims, &tensor)))
        .filter(|(_, n_zero)| *n_zero > 0)
        .collect()
}

/// Number of all-zero matrices of a tensor: its last two dimensions are a matrix, the others give the number
/// of matrices. 0 for a vector.
pub fn n_zero_matrices(dims: &[usize], tensor: &HostTensor) -> usize {
    if dims.iter().skip_while(|dim| **dim == 1).count() < 2 || tensor.cols == 0 {
        return 0;
    }
    let n_matrices: usize = dims.iter().rev().skip(2).product();
    let rows = tensor.rows / n_matrices.max(1);
    let mut values = vec![0.0; tensor.cols];
    let mut is_zero = |row: usize| {
        let decoded = tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, &mut values);
        decoded.is_ok() && values.iter().all(|value| *value == 0.0)
    };
    (0..n_matrices).filter(|matrix| (matrix * rows..(matrix + 1) * rows).all(&mut is_zero)).count()
}

#[cfg(test)]
mod tests {
    use ggml_types::{QuantType, types};

    use super::*;

    #[test]
    fn one_weight_is_enough() {
        let tensor = |values: &[f32], cols: usize| HostTensor {
            name: "w".to_owned(),
            ty: &types::F16,
            rows: values.len() / cols,
            cols,
            bytes: types::F16.encode(values, values.len() / cols, cols).unwrap().into(),
        };
        assert_eq!(n_zero_matrices(&[3, 2], &tensor(&[0.0, 0.0, 0.0, -0.0, 0.0, 0.0], 2)), 1);
        assert_eq!(n_zero_matrices(&[3, 2], &tensor(&[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], 2)), 0);
        assert_eq!(n_zero_matrices(&[1, 6], &tensor(&[0.0; 6], 6)), 0, "a vector");
        // Experts: one matrix each.
        assert_eq!(n_zero_matrices(&[3, 1, 2], &tensor(&[0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 2)), 2);
    }
}
